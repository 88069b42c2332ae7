package wire

import (
	"cmp"
	"strings"
)

// A MessageQueue names one queue of a topic at one broker.
type MessageQueue struct {
	Topic      string
	BrokerName string
	QueueID    int32
}

// Compare orders queues by topic, broker and number, as RocketMQ does before it
// allocates them.
func (q MessageQueue) Compare(o MessageQueue) int {
	return cmp.Or(strings.Compare(q.Topic, o.Topic), strings.Compare(q.BrokerName, o.BrokerName), cmp.Compare(q.QueueID, o.QueueID))
}

func (q *MessageQueue) read(d *decoder) {
	d.object(func(key string) { q.member(d, key) })
}

// member reads the member of the name key, and skips it when it is unknown.
func (q *MessageQueue) member(d *decoder, key string) {
	switch key {
	case "brokerName":
		q.BrokerName = d.text()
	case "queueId":
		q.QueueID = d.int32()
	case "topic":
		q.Topic = d.text()
	default:
		d.skip()
	}
}

func (q MessageQueue) write(e *encoder) {
	e.object(func() {
		e.member("brokerName", q.BrokerName)
		e.intMember("queueId", int64(q.QueueID))
		e.member("topic", q.Topic)
	})
}

func readQueues(d *decoder) []MessageQueue {
	var queues []MessageQueue
	d.array(func() {
		var q MessageQueue
		q.read(d)
		queues = append(queues, q)
	})
	return queues
}

func writeQueues(e *encoder, queues []MessageQueue) {
	writeList(e, queues, func(q MessageQueue) { q.write(e) })
}

// LockBatchRequest is the body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.
type LockBatchRequest struct {
	ClientID      string
	ConsumerGroup string
	Queues        []MessageQueue
}

// UnlockBatchRequest is the body of UNLOCK_BATCH_MQ.
type UnlockBatchRequest = LockBatchRequest

// Marshal is the body as it travels.
func (r *LockBatchRequest) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.member("clientId", r.ClientID)
			e.member("consumerGroup", r.ConsumerGroup)
			e.key("mqSet")
			writeQueues(e, r.Queues)
		})
	})
}

// ParseLockBatchRequest reads the body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ.
func ParseLockBatchRequest(b []byte) (r LockBatchRequest, err error) {
	err = parseJSON(b, "lock request", func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "clientId":
				r.ClientID = d.text()
			case "consumerGroup":
				r.ConsumerGroup = d.text()
			case "mqSet":
				r.Queues = readQueues(d)
			default:
				d.skip()
			}
		})
	})
	return r, err
}

// LockBatchResponse is the body of the answer to LOCK_BATCH_MQ: the queues that
// were granted, those held before included.
type LockBatchResponse struct {
	Locked []MessageQueue
}

// Marshal is the body as it travels.
func (r *LockBatchResponse) Marshal() []byte {
	return marshalJSON(func(e *encoder) {
		e.object(func() {
			e.key("lockOKMQSet")
			writeQueues(e, r.Locked)
		})
	})
}

// ParseLockBatchResponse reads the body of the answer to LOCK_BATCH_MQ.
func ParseLockBatchResponse(b []byte) (r LockBatchResponse, err error) {
	err = parseJSON(b, "lock response", func(d *decoder) {
		d.object(func(key string) {
			if key != "lockOKMQSet" {
				d.skip()
				return
			}
			r.Locked = readQueues(d)
		})
	})
	return r, err
}
