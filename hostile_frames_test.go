package mq

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/pocketmq/mq/internal/wire"
)

func bytesOf(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

// malformedFrames end the connection that they come on, and nothing else.
var malformedFrames = map[string][]byte{
	"2 GiB":                             bytesOf(0x7fffffff, 0x20),
	"a negative length":                 bytesOf(0x80000000, 0x20),
	"4 GiB":                             bytesOf(0xffffffff, 0xffffffff),
	"one byte over 16 MiB":              bytesOf(16<<20-4+1, 0x20),
	"no length":                         bytesOf(0, 0),
	"a length that holds no mark":       bytesOf(3, 0),
	"a header longer than the frame":    append(bytesOf(100, 200), make([]byte, 300)...),
	"a header of 16 MiB in a small one": bytesOf(50, 0x00ffffff),
	"a header of 2 MiB":                 bytesOf(4<<20, 2<<20),
	"serialize type 9":                  rawFrame(9, []byte(`{"code":10}`), nil),
	"serialize type 255":                rawFrame(255, []byte(`{"code":10}`), nil),
	"MSGPACK that nobody agreed on":     rawFrame(2, []byte{0x97, 10, 9, 1, 5, 0, 0xa0, 0xa0}, nil),
	"an empty header":                   rawFrame(0, nil, nil),
	"garbage as JSON":                   rawFrame(0, []byte("\x00\xffgarbage"), nil),
	"half of a JSON header":             rawFrame(0, []byte(`{"code":10,"extFields":{"topic":"t"`), nil),
	"a JSON list as header":             rawFrame(0, []byte(`[1,2,3]`), nil),
	"two JSON headers":                  rawFrame(0, []byte(`{"code":10}{"code":10}`), nil),
	"a code that is a text":             rawFrame(0, []byte(`{"code":"send"}`), nil),
	"deep JSON":                         rawFrame(0, []byte(`{"extFields":`+strings.Repeat(`{"a":`, 100_000)), nil),
	"a deep JSON list":                  rawFrame(0, []byte(`{"x":`+strings.Repeat(`[`, 500_000)), nil),
	"garbage as ROCKETMQ":               rawFrame(1, []byte(strings.Repeat("\xff", 40)), nil),
	"half of a ROCKETMQ header":         rawFrame(1, []byte{0, 10, 9, 1, 0x3d, 0, 0}, nil),
	"ROCKETMQ fields of 2 GiB":          rawFrame(1, append([]byte{0, 10, 9, 1, 0x3d, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0}, 0x7f, 0xff, 0xff, 0xff), nil),
	"a ROCKETMQ remark of 2 GiB":        rawFrame(1, append([]byte{0, 10, 9, 1, 0x3d, 0, 0, 0, 9, 0, 0, 0, 0}, 0x7f, 0xff, 0xff, 0xff), nil),
	"HTTP":                              []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}

func TestMalformedFrameClosesItsConnectionOnly(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		for _, addr := range []string{s.broker.Addr(), s.ns.Addr()} {
			for name, frame := range malformedFrames {
				other := dialBad(t, addr)
				other.served("a connection beside " + name)
				p := dialBad(t, addr)
				p.put(frame)
				p.closed(name)
				p.quit()
				other.served("a connection beside " + name)
				other.quit()
			}
		}
	})
}

func TestFrameThatNeverComesTakesNoMemory(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		const peers = 100
		header := []byte(`{"code":10,"opaque":1}`)
		before := heapInUse()
		var all []*badPeer
		for i := range peers {
			p := dialBad(t, []string{s.broker.Addr(), s.ns.Addr()}[i%2])
			p.put(append(bytesOf(16<<20-4, uint32(len(header))), header...))
			all = append(all, p)
		}
		for _, p := range all { // half of the prefix, half of a header, some of a body
			p.put(make([]byte, 1000))
		}
		for _, addr := range []string{s.broker.Addr(), s.ns.Addr()} {
			p := dialBad(t, addr)
			p.served("beside frames that never come")
			p.quit()
		}
		if grown := heapInUse() - before; grown > 64<<20 {
			t.Errorf("%d announced frames of 16 MiB hold %d bytes", peers, grown)
		}
		for _, p := range all {
			p.quit()
		}
	})
}

func TestHalfAFrameAndTheEndHarmsNobody(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		whole := jsonRequest(wire.CodeSendMessage, 5, []byte("a body"), "producerGroup", "p", "topic", "half", "defaultTopic", autoCreateTopic,
			"defaultTopicQueueNums", "1", "queueId", "0", "sysFlag", "0", "bornTimestamp", "1", "flag", "0")
		for _, addr := range []string{s.broker.Addr(), s.ns.Addr()} {
			for n := range whole {
				p := dialBad(t, addr)
				p.put(whole[:n])
				if n%2 == 0 {
					p.quit()
					continue
				}
				if err := p.Conn.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				p.closed("half a frame")
				p.quit()
			}
		}
		if _, ok := s.broker.topics.lookup("half"); ok {
			t.Error("half a request was served")
		}
	})
}

func TestRandomBytesHarmNobody(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		var peers sync.WaitGroup
		for i := range uint64(8) {
			peers.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, i))
				for range 25 {
					p := dialBad(t, []string{s.broker.Addr(), s.ns.Addr()}[i%2])
					noise := make([]byte, 1+rnd.IntN(64<<10))
					for j := range noise {
						noise[j] = byte(rnd.Uint32())
					}
					if rnd.IntN(2) == 0 { // lengths that are believed
						binary.BigEndian.PutUint32(noise, uint32(rnd.IntN(len(noise))))
						if len(noise) > 8 {
							binary.BigEndian.PutUint32(noise[4:], uint32(rnd.IntN(2))<<24|uint32(rnd.IntN(1000)))
						}
					}
					if noise[0] == 0x16 { // would be told, in TLS, that there is none
						noise[0]++
					}
					p.put(noise)
					_ = p.Conn.(*net.TCPConn).CloseWrite() // fails when the other side was faster
					p.closed("random bytes")
					p.quit()
				}
			})
		}
		peers.Wait()
	})
}

// Requests that are nearly right: whatever a changed byte makes of them, the
// process lives and the connection is served or closed.
func TestDamagedRequestsHarmNobody(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		beat := `{"clientID":"damaged","producerDataSet":[{"groupName":"g"}],"consumerDataSet":[{"groupName":"damaged","consumeType":"CONSUME_PASSIVELY",` +
			`"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"damaged","subString":"a||b","tagsSet":["a","b"],"codeSet":[97,98],"subVersion":1}]}]}`
		send := []string{"a", "p", "b", "damaged", "c", autoCreateTopic, "d", "1", "e", "0", "f", "0", "g", "1", "h", "0", "i", "KEYS\x01k\x02TAGS\x01a", "j", "0", "m", "false"}
		pull := []string{"consumerGroup", "damaged", "topic", "damaged", "queueId", "0", "queueOffset", "0", "maxMsgNums", "32", "sysFlag", "6", "commitOffset", "0",
			"suspendTimeoutMillis", "5", "subscription", "*", "subVersion", "1"}
		batch, err := wire.AppendBatch(nil, []wire.BatchMessage{{Body: []byte("one"), Properties: "KEYS\x01x"}, {Body: []byte("two")}})
		if err != nil {
			t.Fatal(err)
		}
		requests := [][]byte{
			jsonRequest(wire.CodeHeartBeat, 1, []byte(beat)),
			jsonRequest(wire.CodeSendMessageV2, 2, []byte("a body"), send...),
			jsonRequest(wire.CodeSendBatchMessage, 3, batch, append(send, "m", "true")...),
			jsonRequest(wire.CodePullMessage, 4, nil, pull...),
			jsonRequest(wire.CodeLockBatchMQ, 5, []byte(`{"clientId":"c","consumerGroup":"damaged","mqSet":[{"brokerName":"b","queueId":0,"topic":"damaged"}]}`)),
			jsonRequest(wire.CodeConsumerSendMsgBack, 6, nil, "offset", "0", "group", "damaged", "delayLevel", "3", "maxReconsumeTimes", "16"),
			jsonRequest(wire.CodeQueryMessage, 7, nil, "topic", "damaged", "key", "k", "maxNum", "32", "beginTimestamp", "0", "endTimestamp", "9999999999999"),
			jsonRequest(wire.CodeUpdateAndCreateSubscriptionGroup, 8, []byte(`{"groupName":"damaged","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}`)),
			jsonRequest(wire.CodeRegisterBroker, 9, []byte(`{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{"damaged":{"topicName":"damaged","readQueueNums":1,"writeQueueNums":1,"perm":6}}}}`),
				"brokerName", "damaged", "brokerAddr", "127.0.0.1:1", "clusterName", "DefaultCluster", "haServerAddr", "127.0.0.1:2", "brokerId", "0"),
			jsonRequest(wire.CodeGetRouteInfoByTopic, 10, nil, "topic", "damaged"),
		}
		var peers sync.WaitGroup
		for i := range uint64(4) {
			peers.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, i))
				for range 150 {
					p := dialBad(t, []string{s.broker.Addr(), s.ns.Addr()}[i%2])
					for range 1 + rnd.IntN(4) {
						request := damaged(rnd, requests[rnd.IntN(len(requests))])
						p.put(request)
					}
					_ = p.Conn.(*net.TCPConn).CloseWrite() // fails when the other side was faster
					_, _ = io.Copy(io.Discard, p.r)        // answers of any kind, until the other side has closed
					p.quit()
				}
			})
		}
		peers.Wait()
	})
}

// damaged changes a few bytes, and often leaves the lengths alone so that the rest
// is read.
func damaged(rnd *rand.Rand, frame []byte) []byte {
	b := append([]byte(nil), frame...)
	for range 1 + rnd.IntN(4) {
		switch at := 8 + rnd.IntN(len(b)-8); rnd.IntN(5) {
		case 0:
			b[at] ^= 1 << rnd.IntN(8)
		case 1:
			b[at] = "09-.{}[]\",:\\ \x00\x01\x02\xff"[rnd.IntN(17)]
		case 2:
			copy(b[at:], b[8+rnd.IntN(len(b)-8):])
		case 3:
			copy(b[at:], "-9223372036854775808")
		case 4:
			if rnd.IntN(10) == 0 {
				b[rnd.IntN(8)] ^= 1 << rnd.IntN(8)
			}
		}
	}
	return b
}

func TestThousandsOfConnectionsThatComeAndGo(t *testing.T) {
	atHostileSite(t, BrokerConfig{}, func(s *hostileSite) {
		perPeer := 400
		if testing.Short() {
			perPeer = 50
		}
		var peers sync.WaitGroup
		for i := range 8 {
			peers.Go(func() {
				for n := range perPeer {
					p := dialBad(t, []string{s.broker.Addr(), s.ns.Addr()}[i%2])
					switch n % 4 {
					case 0: // not a byte
					case 1:
						p.put(jsonRequest(wire.CodeHeartBeat, 1, []byte(`{"clientID":"gone","consumerDataSet":[{"groupName":"gone","subscriptionDataSet":[{"topic":"gone","subString":"*"}]}]}`)))
					case 2:
						p.put([]byte{0, 0})
					case 3:
						p.served("one of thousands")
					}
					if n%3 == 0 { // with a reset instead of a good-bye
						if err := p.Conn.(*net.TCPConn).SetLinger(0); err != nil {
							t.Error(err)
						}
					}
					p.quit()
				}
			})
		}
		peers.Wait()
	})
}
