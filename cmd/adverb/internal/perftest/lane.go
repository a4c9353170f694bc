package perftest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	qkey        = 0x11111111 // of UD without -R
	minRNRTimer = 12
	retries     = 7

	// latencySends is how many sends of a latency program may lack their completion. The next one
	// need not wait for the acknowledgement of the last.
	latencySends = 4
)

// lane is a QP of the test, with its buffers. An XRC QP is an initiator or a target, so a lane that sends and receives
// has one of each.
type lane struct {
	qp  *verbs.QP // the initiator or, at an end that only receives, the target
	end *cmEnd    // of -R
	ah  *verbs.AH
	mr  *verbs.MR

	sendOff int // where in mr the QP sends from
	recvOff int // where in mr it receives, and the peer writes and reads

	local, remote dest // of qp and of what it is connected to
	remoteQKey    verbs.QKey

	target                    *verbs.QP // beside the initiator; or nil
	targetLocal, targetRemote dest      // of target and of what it is connected to

	sends []verbs.SendWR // a list to post
	recvs []verbs.RecvWR // a list to post
	next  int            // where in its cycle the next message is

	posted    int64 // sends
	completed int64 // sends
	received  int64
	promised  int64 // receives that have been posted
	unused    int   // receives that are not posted again yet

	// With credits:
	granted int64          // messages that the peer has said it has taken
	told    int64          // messages that the peer was told of
	tell    []verbs.SendWR // the WRITE that tells it
	telling bool           // that is under way
}

func (l *lane) close() (err error) {
	if l.end != nil {
		err = l.end.id.Close() // with the QP
	} else if l.qp != nil {
		err = l.qp.Close()
	}
	if l.target != nil {
		err = errors.Join(err, l.target.Close())
	}
	if l.ah != nil {
		err = errors.Join(err, l.ah.Close())
	}
	return err
}

// why returns the error of a failed completion. That of a work request that was flushed says less than the QP.
func (l *lane) why(wc *verbs.WC) error {
	if wc.Status == verbs.WCFlushErr {
		if err := l.qp.Err(); err != nil {
			return err
		}
	}
	return wc.Err()
}

// receives reports whether this end gets messages, and so needs receives.
func (t *tester) receives() bool {
	return t.kind.verb == verbSend && (t.kind.latency || !t.sender || t.bidi)
}

// sends reports whether this end posts sends.
func (t *tester) sends() bool { return t.kind.latency || t.sender || t.bidi }

// makeObjects makes everything but the QPs.
func (t *tester) makeObjects() (err error) {
	if t.pd, err = t.dev.AllocPD(); err != nil {
		return fail(err, "Couldn't allocate PD")
	}
	if err := t.settleLimits(); err != nil {
		return err
	}
	t.lanes = make([]lane, t.qps)
	if err := t.makeBuffers(); err != nil {
		return err
	}
	if t.needsCredits() {
		if err := t.makeCredits(); err != nil {
			return err
		}
	}
	cqes := t.qps * t.sendDepth()
	if t.srq {
		cqes += t.rxDepth
	} else {
		cqes += t.qps * t.rxDepth
	}
	if t.cq, err = t.dev.CreateCQEx(verbs.CQAttr{Entries: cqes, CompVector: t.vector}); err != nil {
		return fail(err, "Failed to create CQs")
	}
	if t.xrc() {
		if err := t.makeXRC(); err != nil {
			return err
		}
	} else if t.srq && t.receives() {
		if t.sharedRQ, err = t.pd.CreateSRQ(verbs.SRQAttr{MaxWR: t.rxDepth, MaxSGE: 1}); err != nil {
			return fail(err, "Couldn't create SRQ")
		}
	}
	return nil
}

// settleLimits bounds inline data and outstanding READs by the device's limits.
func (t *tester) settleLimits() error {
	attr, err := t.dev.Query()
	if err != nil {
		return fail(err, "Couldn't get context for the device")
	}
	if t.inline < 0 {
		t.inline = t.defaultInline()
		if attr.MaxInline == verbs.MaxInlineUnknown && !t.grantsInline() {
			t.inline = 0
		}
	}
	if attr.MaxInline != verbs.MaxInlineUnknown && t.inline > attr.MaxInline {
		t.inv.Printf("  Actual inline-size(%d) < requested inline-size(%d)\n", attr.MaxInline, t.inline)
		t.inline = attr.MaxInline
	}
	if !t.kind.verb.oneSidedRead() {
		t.outs = 1
		return nil
	}
	most := min(attr.MaxQPRdAtom, attr.MaxQPInitRdAtom)
	if t.outs > most {
		t.inv.Errorf(" Number of outstanding reads is above max = %d\n Changing to that max value\n", most)
	}
	if t.outs == 0 || t.outs > most {
		t.outs = most
	}
	return nil
}

// defaultInline is how many bytes the C programs post inline to a card.
func (t *tester) defaultInline() int {
	switch {
	case t.kind.verb == verbWrite:
		return 220
	case t.qpType == verbs.QPTypeUD:
		return 188
	}
	return 236
}

// grantsInline reports whether a device that does not say how much inline data it takes makes a QP for the default.
func (t *tester) grantsInline() bool {
	cq, err := t.dev.CreateCQ(1)
	if err != nil {
		return true // what comes next fails for the same cause, and says so
	}
	attr := verbs.QPInitAttr{Type: t.qpType, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: t.inline}}
	if t.xrc() {
		attr.RecvCQ, attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = nil, 0, 0
	}
	qp, err := t.pd.CreateQP(attr)
	if err == nil {
		err = qp.Close()
	}
	return errors.Join(err, cq.Close()) == nil
}

// makeBuffers registers the memory. Each QP has a part to send from and, behind those of all QPs, a
// part to receive in.
func (t *tester) makeBuffers() error {
	t.stride = roundUp(max(t.size, t.cycle), t.line)
	if t.qpType == verbs.QPTypeUD {
		t.stride += roundUp(verbs.GRHSize, t.line)
	}
	access := verbs.AccessLocalWrite
	switch t.kind.verb {
	case verbWrite:
		access |= verbs.AccessRemoteWrite
	case verbRead:
		access |= verbs.AccessRemoteRead
	case verbAtomic:
		access |= verbs.AccessRemoteAtomic
	}
	if t.odp {
		access |= verbs.AccessOnDemand
	}
	share := t.qps
	if t.mrPerQP {
		share = 1
	}
	for i := range t.lanes {
		l := &t.lanes[i]
		if i%share == 0 {
			mr, err := t.pd.AllocMR(2*share*t.stride, access)
			if err != nil {
				return fail(err, "Couldn't allocate MR")
			}
			l.mr = mr
			if t.kind.verb != verbWrite || !t.kind.latency { // write_lat waits for bytes to change
				if err := fill(t.ctx, mr.Bytes()); err != nil {
					return err
				}
			}
		} else {
			l.mr = t.lanes[i-1].mr
		}
		l.sendOff, l.recvOff = i%share*t.stride, (share+i%share)*t.stride
		l.local = dest{lid: t.port.LID, outs: uint32(t.outs), psn: verbs.PSN(rand.Uint32N(1 << 24)),
			rkey: l.mr.RKey(), vaddr: l.mr.Remote(l.recvOff).VA, gid: t.sgid.GID}
		l.targetLocal = l.local
		l.targetLocal.psn = verbs.PSN(rand.Uint32N(1 << 24))
	}
	return nil
}

// fill writes 0 to 255 into b, over and over, unless ctx ends before. The largest buffers take seconds.
func fill(ctx context.Context, b []byte) error {
	const step = 1 << 20 // bytes, a multiple of 256
	first := b[:min(step, len(b))]
	for i := range first {
		first[i] = byte(i)
	}
	for off := len(first); off < len(b); off += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		copy(b[off:], first)
	}
	return nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// sendDepth is how many work requests a send queue has room for.
func (t *tester) sendDepth() int {
	switch {
	case t.kind.latency:
		return max(t.txDepth, latencySends)
	case t.credits != nil:
		return t.txDepth + 1
	}
	return t.txDepth
}

// qpAttr describes the QPs of the test.
func (t *tester) qpAttr() verbs.QPInitAttr {
	attr := verbs.QPInitAttr{Type: t.qpType, SendCQ: t.cq, RecvCQ: t.cq, SRQ: t.sharedRQ,
		Cap: verbs.QPCap{MaxSendWR: t.sendDepth(), MaxSendSGE: 1, MaxInlineData: t.inline}}
	if t.xrc() { // an initiator
		attr.RecvCQ, attr.SRQ = nil, nil
		return attr
	}
	if t.sharedRQ == nil {
		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = t.rxDepth, 1
	}
	return attr
}

// createLanes makes the QPs of a test without -R, in INIT.
func (t *tester) createLanes() error {
	for i := range t.lanes {
		l := &t.lanes[i]
		create := func() (*verbs.QP, error) { return t.pd.CreateQP(t.qpAttr()) }
		if t.xrc() && !t.sends() {
			create = t.createTarget
		}
		qp, err := t.createLane(create)
		if err != nil {
			return err
		}
		l.qp, l.local.qpn = qp, qp.QPN()
		if t.xrcBothWays() {
			if l.target, err = t.createLane(t.createTarget); err != nil {
				return err
			}
			l.targetLocal.qpn = l.target.QPN()
		}
	}
	return nil
}

// createLane makes a QP, in INIT.
func (t *tester) createLane(create func() (*verbs.QP, error)) (*verbs.QP, error) {
	qp, err := create()
	if err != nil {
		return nil, fail(err, "Failed to create QP. Current TX depth is %d and inline size is %d .", t.txDepth, t.inline)
	}
	attr := verbs.QPAttr{State: verbs.QPStateInit, PKeyIndex: t.pkey, Port: t.ibPort, QKey: qkey}
	mask := verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort
	if t.qpType == verbs.QPTypeUD {
		mask |= verbs.MaskQKey
	} else {
		mask |= verbs.MaskAccessFlags
		attr.Access = [...]verbs.Access{verbSend: verbs.AccessRemoteWrite | verbs.AccessLocalWrite, verbWrite: verbs.AccessRemoteWrite,
			verbRead: verbs.AccessRemoteRead, verbAtomic: verbs.AccessRemoteAtomic}[t.kind.verb]
	}
	if err := qp.Modify(&attr, mask); err != nil {
		return nil, errors.Join(fail(err, "Failed to modify QP to INIT"), qp.Close())
	}
	return qp, nil
}

// path is the way to the peer of a lane.
func (t *tester) path(lane int, to *dest) verbs.AHAttr {
	attr := verbs.AHAttr{DLID: to.lid, SL: uint8(t.sl), Port: t.ibPort, DGID: to.gid, SGIDIndex: t.sgid.Index,
		TrafficClass: uint8(t.tclass)}
	if n := len(t.flowLabels); n > 0 {
		attr.FlowLabel = t.flowLabels[lane%n]
	}
	return attr
}

// connectLanes takes the QPs of a test without -R to RTS, connected to the peer's.
func (t *tester) connectLanes() error {
	for i := range t.lanes {
		l := &t.lanes[i]
		if l.target != nil {
			if err := t.toRTR(l.target, i, &l.targetRemote); err != nil {
				return err
			}
		}
		if err := t.toRTR(l.qp, i, &l.remote); err != nil {
			return err
		}
		if l.qp.Type() == verbs.QPTypeXRCRecv {
			continue // which sends nothing but answers
		}
		retry := verbs.Retry{Timeout: uint8(t.timeout), RetryCount: retries, RNRRetryCount: retries, MaxRDAtomic: int(l.remote.outs)}
		if retry.MaxRDAtomic > t.outs && t.kind.verb.oneSidedRead() {
			retry.MaxRDAtomic = t.outs
		}
		if err := l.qp.RTS(l.local.psn, retry); err != nil {
			return fail(err, "Failed to modify QP to RTS")
		}
		if t.qpType == verbs.QPTypeUD {
			ah, err := t.pd.CreateAH(t.path(i, &l.remote))
			if err != nil {
				return fail(err, "Failed to create AH")
			}
			l.ah, l.remoteQKey = ah, qkey
		}
	}
	return nil
}

// toRTR connects a lane's QP to an end of the peer's.
func (t *tester) toRTR(qp *verbs.QP, lane int, to *dest) error {
	attr := verbs.QPAttr{State: verbs.QPStateRTR, AH: t.path(lane, to), PathMTU: t.pathMTU, DestQPN: to.qpn,
		RQPSN: to.psn, MaxDestRDAtomic: t.outs, MinRNRTimer: minRNRTimer}
	mask := verbs.MaskState
	if qp.Type() != verbs.QPTypeUD {
		mask |= verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPN | verbs.MaskRQPSN
	}
	if qp.Type() == verbs.QPTypeRC || qp.Type() == verbs.QPTypeXRCRecv {
		mask |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	}
	if err := qp.Modify(&attr, mask); err != nil {
		return fail(err, "Failed to modify QP %d to RTR", qp.QPN())
	}
	return nil
}

// connect connects the QPs, and tells the peer of the buffers.
func (t *tester) connect() error {
	if err := t.makeObjects(); err != nil {
		return err
	}
	if t.cmQP {
		if err := t.connectByCM(); err != nil {
			return fail(err, "Failed to create RDMA CM connection with resources.")
		}
	} else if err := t.createLanes(); err != nil {
		return err
	}
	t.printTestInfo()
	if t.kind.verb == verbWrite && t.kind.latency || t.kind.latency && t.kind.verb.oneSidedRead() {
		if err := t.talk.sync(&t.lanes[0].local); err != nil { // the programs say it twice
			return err
		}
	}
	if err := t.swapDests(); err != nil {
		return err
	}
	if !t.cmQP {
		if t.withGID && t.lanes[0].local.isIPv4() != t.lanes[0].remote.isIPv4() {
			return fail(fmt.Errorf("one end has an IPv4 address as GID (%v), the other an IPv6 address (%v): choose by -x or --ipv6",
				t.lanes[0].local.gid, t.lanes[0].remote.gid), "Found Incompatibility issue with GID types.")
		}
		if err := t.connectLanes(); err != nil {
			return err
		}
	}
	if t.kind.verb == verbSend {
		if err := t.sync(); err != nil {
			return err
		}
	}
	list := t.ends()
	for _, e := range list {
		t.printDest("local", e.local)
	}
	for _, e := range list {
		if err := t.syncEnd(e); err != nil {
			return err
		}
		t.printDest("remote", e.remote)
	}
	if t.kind.verb != verbSend {
		return t.sync()
	}
	return nil
}

// swapDests tells the peer of each QP, and learns of its QPs.
func (t *tester) swapDests() (err error) {
	list := t.ends()
	for i, e := range list {
		if *e.remote, err = t.talk.swapDest(e.local); err != nil {
			return err
		}
		for _, other := range list[:i] {
			if other.remote.qpn == e.remote.qpn {
				return errOtherQP
			}
		}
	}
	return nil
}

// portSpace is where the QPs of -R connect.
func (t *tester) portSpace() rdmacm.PortSpace {
	if t.qpType == verbs.QPTypeUD {
		return rdmacm.PortSpaceUDP
	}
	return rdmacm.PortSpaceTCP
}
