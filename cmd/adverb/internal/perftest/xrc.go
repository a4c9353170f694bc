package perftest

import (
	"github.com/adverb-rdma/adverb/verbs"
)

// xrcBothWays reports whether each lane has an initiator and a target.
func (t *tester) xrcBothWays() bool { return t.xrc() && (t.bidi || t.kind.latency) }

// numQP is how many QPs an end has.
func (t *tester) numQP() int {
	if t.xrcBothWays() {
		return 2 * t.qps
	}
	return t.qps
}

// checkXRC refuses a device without XRC before the peer is called.
func (t *tester) checkXRC() error {
	attr, err := t.dev.Query()
	if err == nil && attr.DeviceCapFlags&verbs.DeviceXRC == 0 {
		err = verbs.Errorf(verbs.ErrUnsupported, "%s has no XRC (device_cap_flags): without -c XRC the QPs are RC", t.dev.Name())
	}
	if err != nil {
		return fail(err, "Couldn't create XRC resources")
	}
	return nil
}

// makeXRC makes the domain of the targets, and the SRQ that peers name in each request. A test of READs, WRITEs or
// atomics posts no receives to it: it says whose memory is meant.
func (t *tester) makeXRC() (err error) {
	if t.xrcd, err = t.dev.OpenXRCD(verbs.XRCDAttr{}); err != nil {
		return fail(err, "Couldn't create XRC resources")
	}
	if t.sharedRQ, err = t.xrcd.CreateSRQ(t.pd, t.cq, verbs.SRQAttr{MaxWR: t.rxDepth, MaxSGE: 1}); err != nil {
		return fail(err, "Couldn't create SRQ XRC resources")
	}
	for i := range t.lanes {
		l := &t.lanes[i]
		l.local.srqn = uint32(t.sharedRQ.Num())
		l.targetLocal.srqn = l.local.srqn
	}
	return nil
}

func (t *tester) createTarget() (*verbs.QP, error) {
	return t.xrcd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCRecv})
}

// endPair is an end of a QP and the peer's end that travels at the same place of the exchange.
type endPair struct{ local, remote *dest }

// ends returns the ends of all QPs, in the order of the exchange. With XRC both ways it begins with the initiators of
// all lanes, and their targets follow. The peer's initiators, which come first too, are connected to the targets here.
func (t *tester) ends() (list []endPair) {
	if !t.xrcBothWays() {
		for i := range t.lanes {
			list = append(list, endPair{&t.lanes[i].local, &t.lanes[i].remote})
		}
		return list
	}
	for i := range t.lanes {
		list = append(list, endPair{&t.lanes[i].local, &t.lanes[i].targetRemote})
	}
	for i := range t.lanes {
		list = append(list, endPair{&t.lanes[i].targetLocal, &t.lanes[i].remote})
	}
	return list
}
