package transport

import "sync/atomic"

// The ext field by which our own ends agree to use MSGPACK on a connection.
const (
	upgradeKey   = "pmq"
	upgradeValue = "1"
	// signatureKey is the ext field of a signed request. The signature covers all
	// ext fields, so nothing may be added to such a request.
	signatureKey = "Signature"
)

// An accord is what the two ends of one connection have agreed on about codecs.
// The dialling end asks in its first call; the accepting end answers those who
// asked. A peer that is not ours ignores the field, and never sees MSGPACK.
type accord struct {
	base     Codec // codec of requests without an agreement
	upgrade  bool  // this end wants MSGPACK
	dialled  bool
	asked    atomic.Bool
	mayRead  atomic.Bool // the peer may send MSGPACK
	mayWrite atomic.Bool // this end may: the peer has seen, or will see first, the agreement
}

// request chooses the codec of a request and asks if it is time to.
func (a *accord) request(req *Frame, s *stamp) {
	s.codec = a.base
	if a.mayWrite.Load() {
		s.codec = MsgPack
		return
	}
	if !a.upgrade || !a.dialled || a.asked.Load() || s.flag&FlagOneWay != 0 {
		return
	}
	if _, signed := req.Field(signatureKey); signed {
		if offers(req) { // whoever signed it asked on our behalf
			a.asked.Store(true)
		}
		return
	}
	s.upgrade = a.asked.CompareAndSwap(false, true)
}

// answered looks for the peer's consent in a response.
func (a *accord) answered(resp *Frame) {
	if !a.dialled || !a.upgrade || a.mayRead.Load() || !a.asked.Load() || !offers(resp) {
		return
	}
	a.mayRead.Store(true)
	a.mayWrite.Store(true)
}

// accept tells whether the answer to req is to carry our consent. From then on
// the peer may write MSGPACK, but we only after the answer is queued.
func (a *accord) accept(req *Frame) bool {
	return !a.dialled && a.upgrade && !a.mayRead.Load() && offers(req) && a.mayRead.CompareAndSwap(false, true)
}

func (a *accord) accepted() { a.mayWrite.Store(true) }

func offers(f *Frame) bool {
	v, ok := f.Field(upgradeKey)
	return ok && v == upgradeValue
}
