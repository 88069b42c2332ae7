package mq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pocketmq/mq/internal/wire"
	"github.com/pocketmq/mq/storage"
)

// brokerSettings are what administrators may change while the broker runs, under
// RocketMQ's names. A value is never written: a change makes a new one.
type brokerSettings struct {
	permission       int32 // of the broker: PermRead, PermWrite
	autoCreateTopic  bool
	autoCreateGroup  bool
	defaultQueues    int32
	maxMessageSize   int
	registerInterval time.Duration
	acceptSendsFrom  int64 // milliseconds since 1970; sends before are refused
	region           string
	traceOn          bool
	changed          map[string]string // what was set by requests, unknown keys too
	version          wire.DataVersion

	refused *wire.SendFailure // the header of refused sends, made of region and traceOn
}

const (
	defaultRegion  = "DefaultRegion"
	keySettings    = "settings"
	maxSettingsLen = 64 << 10
)

// A brokerSetting is one key of brokerSettings.
type brokerSetting struct {
	read  func(*brokerSettings) string
	write func(*brokerSettings, string) error
}

// settingKeys are the keys that take effect at once.
var settingKeys = map[string]brokerSetting{
	"brokerPermission": {
		func(s *brokerSettings) string { return strconv.Itoa(int(s.permission)) },
		func(s *brokerSettings, v string) error { return readNumber(v, 0, 7, &s.permission) }},
	"autoCreateTopicEnable": {
		func(s *brokerSettings) string { return strconv.FormatBool(s.autoCreateTopic) },
		func(s *brokerSettings, v string) error { return readFlag(v, &s.autoCreateTopic) }},
	"autoCreateSubscriptionGroup": {
		func(s *brokerSettings) string { return strconv.FormatBool(s.autoCreateGroup) },
		func(s *brokerSettings, v string) error { return readFlag(v, &s.autoCreateGroup) }},
	"defaultTopicQueueNums": {
		func(s *brokerSettings) string { return strconv.Itoa(int(s.defaultQueues)) },
		func(s *brokerSettings, v string) error { return readNumber(v, 1, maxQueues, &s.defaultQueues) }},
	"maxMessageSize": {
		func(s *brokerSettings) string { return strconv.Itoa(s.maxMessageSize) },
		func(s *brokerSettings, v string) error { return readNumber(v, 1, maxMessageLimit, &s.maxMessageSize) }},
	"registerNameServerPeriod": {
		func(s *brokerSettings) string { return strconv.FormatInt(s.registerInterval.Milliseconds(), 10) },
		func(s *brokerSettings, v string) error {
			var ms int64
			err := readNumber(v, 1, 1<<31, &ms)
			s.registerInterval = clampRegisterInterval(time.Duration(ms) * time.Millisecond)
			return err
		}},
	"startAcceptSendRequestTimeStamp": {
		func(s *brokerSettings) string { return strconv.FormatInt(s.acceptSendsFrom, 10) },
		func(s *brokerSettings, v string) error { return readNumber(v, 0, 1<<53, &s.acceptSendsFrom) }},
	"regionId": {
		func(s *brokerSettings) string { return s.region },
		func(s *brokerSettings, v string) error { s.region = v; return nil }},
	"traceOn": {
		func(s *brokerSettings) string { return strconv.FormatBool(s.traceOn) },
		func(s *brokerSettings, v string) error { return readFlag(v, &s.traceOn) }},
}

func readNumber[T int | int32 | int64](text string, low, high T, dst *T) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < int64(low) || n > int64(high) {
		return fmt.Errorf("%q: want a number from %d to %d", text, low, high)
	}
	*dst = T(n)
	return nil
}

func readFlag(text string, dst *bool) error {
	if text != "true" && text != "false" {
		return fmt.Errorf("%q: want true or false", text)
	}
	*dst = text == "true"
	return nil
}

// initialSettings are those of the config.
func (c BrokerConfig) initialSettings() *brokerSettings {
	s := &brokerSettings{
		permission:       permRW,
		autoCreateTopic:  !c.DisableAutoCreateTopic,
		autoCreateGroup:  !c.DisableAutoCreateGroup,
		defaultQueues:    int32(c.DefaultQueues),
		maxMessageSize:   c.MaxMessageSize,
		registerInterval: c.RegisterInterval,
		region:           defaultRegion,
		traceOn:          true,
		changed:          map[string]string{},
		version:          wire.DataVersion{Timestamp: time.Now().UnixMilli()},
	}
	s.refused = &wire.SendFailure{Region: s.region, TraceOn: s.traceOn}
	return s
}

// with returns the settings with values set, or all faults of the values.
func (s *brokerSettings) with(values map[string]string) (*brokerSettings, error) {
	next := *s
	next.changed = maps.Clone(s.changed)
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if k, known := settingKeys[key]; known {
			if err := k.write(&next, values[key]); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", key, err))
			}
		}
		next.changed[key] = values[key]
	}
	next.version = wire.DataVersion{Timestamp: time.Now().UnixMilli(), Counter: s.version.Counter + 1}
	next.refused = &wire.SendFailure{Region: next.region, TraceOn: next.traceOn}
	return &next, errors.Join(faults...)
}

// loadSettings applies what requests changed in earlier lives over the config.
func (b *Broker) loadSettings() error {
	s := b.cfg.initialSettings()
	b.settings.Store(s)
	value, ok, err := b.store.Meta(metaBroker, keySettings)
	if err != nil || !ok {
		return err
	}
	changed := map[string]string{}
	if err := decodeMeta(value, &changed); err != nil {
		return fmt.Errorf("mq: stored settings: %w", err)
	}
	s, err = s.with(changed)
	if err != nil {
		return fmt.Errorf("mq: stored settings: %w", err)
	}
	b.settings.Store(s)
	b.log.Info("settings changed by earlier requests are in force", "settings", changed)
	return nil
}

// changeSettings stores and applies values.
func (b *Broker) changeSettings(ctx context.Context, values map[string]string) error {
	select {
	case b.changing <- struct{}{}: // one change at a time
		defer func() { <-b.changing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s, err := b.settings.Load().with(values)
	if err != nil {
		return refused(wire.SystemError, "%v", err)
	}
	for key, value := range values {
		if fixed, ok := b.fixedSettings()[key]; ok && fixed != value {
			return refused(wire.SystemError, "%s is fixed while the broker runs (%q); change it where the broker is configured",
				key, fixed)
		}
	}
	text, err := encodeMeta(s.changed)
	if err != nil {
		return err
	}
	if err := b.store.Apply(ctx, &storage.Request{Changes: []storage.Change{
		storage.PutMeta(metaBroker, keySettings, text)}}); err != nil {
		return err
	}
	b.settings.Store(s)
	if err := b.addBootTopics(ctx); err != nil { // automatic creation may have come with this change
		return err
	}
	b.topics.touch() // the permission is part of what name servers are told
	b.registry.change()
	return nil
}

// fixedSettings are the keys that only the config decides.
func (b *Broker) fixedSettings() map[string]string {
	_, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		port = ""
	}
	flush := "SYNC_FLUSH"
	if b.cfg.Flush == AsyncFlush {
		flush = "ASYNC_FLUSH"
	}
	var levels []string
	for _, d := range delayLevels {
		levels = append(levels, levelText(d))
	}
	return map[string]string{
		"brokerClusterName": b.cfg.Cluster,
		"brokerName":        b.name,
		"brokerId":          strconv.FormatInt(b.cfg.ID, 10),
		"brokerIP1":         b.host.Addr().String(),
		"listenPort":        port,
		"namesrvAddr":       strings.Join(b.cfg.NameServers, ";"),
		"brokerRole":        "ASYNC_MASTER",
		"flushDiskType":     flush,
		"storePathRootDir":  b.cfg.Dir,
		"messageDelayLevel": strings.Join(levels, " "),
	}
}

// levelText writes a delay as RocketMQ's setting does: 30s, 2m, 1h.
func levelText(d time.Duration) string {
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// settingsTable lists every setting.
func (b *Broker) settingsTable() map[string]string {
	s := b.settings.Load()
	all := maps.Clone(s.changed)
	maps.Copy(all, b.fixedSettings())
	for key, k := range settingKeys {
		all[key] = k.read(s)
	}
	return all
}
