package mq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/pocketmq/mq/storage"
)

// reopenPeriod is how often a broker whose store stopped after a failed write
// tries to leave the failure, so that a disk with room again needs no restart.
const reopenPeriod = 10 * time.Second

// openStore opens the store that the config asks for.
func (b *Broker) openStore(ctx context.Context) error {
	o := storage.Options{
		Dir:         b.cfg.Dir,
		MemoryLimit: b.cfg.MemoryLimit,
		Logger:      b.log,
		Grown:       func(queues []storage.Growth) { b.holds.grown(queues) },
		Failed:      b.storeFailed,
	}
	if b.cfg.Flush == AsyncFlush {
		o.Flush = storage.FlushAsync
	}
	if b.cfg.storage != nil {
		b.cfg.storage(&o)
	}
	if o.Dir == "" {
		b.log.Info("no directory given: everything is kept in memory and lost at the end", "limit", o.MemoryLimit)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := storage.Open(o)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	b.store = s
	return nil
}

// storeFailed wakes the goroutine that reopens the store.
func (b *Broker) storeFailed(err error) {
	b.log.Error("the store takes no writes; sends are refused until it can be opened again", "err", err)
	select {
	case b.failed <- struct{}{}:
	default: // it is awake already
	}
}

// reopenStore leaves failures of the store until ctx ends.
func (b *Broker) reopenStore(ctx context.Context) {
	for {
		select {
		case <-b.failed:
		case <-ctx.Done():
			return
		}
		for b.store.Err() != nil {
			select {
			case <-time.After(reopenPeriod):
			case <-ctx.Done():
				return
			}
			if err := b.store.Reopen(ctx); err == nil {
				b.log.Info("the store takes writes again")
			} else if !errors.Is(err, context.Canceled) {
				b.log.Warn("the store still cannot be opened", "err", err)
			}
		}
	}
}

// metaFormat encodes metadata values. Unknown fields are skipped, so that a
// value of a later release can be read.
var metaFormat codec.MsgpackHandle

func encodeMeta(v any) ([]byte, error) {
	var value []byte
	if err := codec.NewEncoderBytes(&value, &metaFormat).Encode(v); err != nil {
		return nil, fmt.Errorf("mq: encode %T: %w", v, err)
	}
	return value, nil
}

func decodeMeta(value []byte, v any) error {
	if err := codec.NewDecoderBytes(value, &metaFormat).Decode(v); err != nil {
		return fmt.Errorf("mq: decode %T: %w", v, err)
	}
	return nil
}
