package wire

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
)

// Input that is made to be small and to become large must stay within a multiple
// of its length.
func TestHostileInputCostsNoMoreThanAMultipleOfItsLength(t *testing.T) {
	const size, factor = 1 << 16, 64
	repeat := func(before, item, after string) string {
		return before + strings.Repeat(item, (size-len(before)-len(after))/len(item)) + after
	}
	texts := map[string]string{
		"heartbeat of empty consumers":     repeat(`{"consumerDataSet":[{}`, `,{}`, `]}`),
		"heartbeat of empty subscriptions": repeat(`{"consumerDataSet":[{"subscriptionDataSet":[{}`, `,{}`, `]}]}`),
		"heartbeat of short subscriptions": repeat(`{"consumerDataSet":[{"subscriptionDataSet":[{}`, `,{"topic":""}`, `]}]}`),
		"heartbeat of empty tags":          repeat(`{"consumerDataSet":[{"subscriptionDataSet":[{"tagsSet":[""`, `,""`, `]}]}]}`),
		"many codes":                       repeat(`{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":[0`, `,0`, `]}]}]}`),
		"empty brokers":                    repeat(`{"brokerDatas":[{}`, `,{}`, `]}`),
		"empty queues":                     repeat(`{"mqSet":[{}`, `,{}`, `]}`),
		"empty lists":                      repeat(`{"offsetTable":[[]`, `,[]`, `]}`),
		"short texts":                      repeat(`{"topicList":[00`, `,00`, `]}`),
		"escapes":                          `{"brokerAddr":"` + strings.Repeat(`\\`, size/2) + `"}`,
		"control characters":               `{"brokerAddr":"\n` + strings.Repeat("\x01", size) + `"}`,
		"unknown nesting":                  repeat(`{"x":[{}`, `,[{}]`, `]}`),
		"numbers without an end":           strings.Repeat("1", size),
	}
	for name, text := range texts {
		for _, c := range bodyCases() {
			if cost := allocated(func() { _, _ = c.parse([]byte(text)) }); cost > factor*size {
				t.Errorf("%s as %s: %d bytes allocated, more than %d times its length", name, c.name, cost, factor)
			}
		}
	}
	claims := make([]byte, size)
	for i := 0; i+4 <= size; i += 4 {
		binary.BigEndian.PutUint32(claims[i:], 0x7fffffff)
	}
	for name, read := range map[string]func(){
		"record that claims 2 GiB":        func() { _, _, _ = ParseStored(claims) },
		"batch that claims 2 GiB":         func() { _, _ = ParseBatch(claims) },
		"registration that claims 2 GiB":  func() { _, _ = parseRegisterPacked(claims) },
		"batch of empty messages":         func() { _, _ = ParseBatch(emptyBatch(size / batchFixed)) },
		"properties that are separators":  func() { ParseProperties(strings.Repeat("\x01", size)) },
		"properties that are short items": func() { ParseProperties(strings.Repeat("a\x01b\x02", size/4)) },
	} {
		if cost := allocated(read); cost > factor*size {
			t.Errorf("%s: %d bytes allocated, more than %d times its length", name, cost, factor)
		}
	}
}

func emptyBatch(count int) []byte {
	var item [batchFixed]byte
	binary.BigEndian.PutUint32(item[:], batchFixed)
	return []byte(strings.Repeat(string(item[:]), count))
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
