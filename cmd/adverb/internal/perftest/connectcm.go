package perftest

import (
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// connectByCM makes and connects the QPs of -R. Each has a connection of its own.
func (t *tester) connectByCM() (err error) {
	src, dst, err := t.addresses(t.ctx)
	if err != nil {
		return err
	}
	if t.host == "" && t.portSpace() != rdmacm.PortSpaceTCP {
		l, err := t.agent.listen(t.portSpace(), src)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
	}
	if err := t.talk.sync(&t.lanes[0].local); err != nil {
		return err
	}
	for i := range t.lanes {
		if err := t.connectLane(&t.lanes[i], src, dst); err != nil {
			return err
		}
	}
	return t.talk.sync(&t.lanes[0].local)
}

func (t *tester) connectLane(l *lane, src, dst netip.AddrPort) (err error) {
	param := &rdmacm.ConnParam{RetryCount: uint8(t.retryCount), RNRRetryCount: uint8(t.retryCount)}
	if t.kind.verb.oneSidedRead() {
		param.ResponderResources, param.InitiatorDepth = uint8(t.outs), uint8(t.outs)
	}
	space := t.portSpace()
	setup := func(id *rdmacm.ID) error { return t.setupLane(l, id) }
	if t.host == "" {
		if l.end, err = t.agent.accept(space, param, setup); err == nil && t.learns() {
			err = t.learnPath(l)
		}
		return err
	}
	var ev rdmacm.Event
	l.end, ev, err = t.agent.connect(space, src, dst, t.tos, connectTries, param, setup)
	if err != nil || space != rdmacm.PortSpaceUDP {
		return err
	}
	if l.ah, err = t.pd.CreateAH(ev.UD.AH); err != nil {
		return err
	}
	l.remote.qpn, l.remoteQKey = ev.UD.QPN, ev.UD.QKey
	if t.learns() {
		return t.tellPath(l)
	}
	return nil
}

// setupLane gives the ID of a connection its QP.
func (t *tester) setupLane(l *lane, id *rdmacm.ID) error {
	if id.Device() != t.dev {
		return errors.New("the QP is to be on another device than the exchange: name one by -d")
	}
	if t.timeout != defaultTimeout && t.qpType == verbs.QPTypeRC {
		if err := id.SetACKTimeout(uint8(t.timeout)); err != nil {
			return err
		}
	}
	if err := id.CreateQP(t.pd, t.qpAttr()); err != nil {
		return err
	}
	l.qp = id.QP()
	l.local.qpn = l.qp.QPN()
	if t.learns() && t.host == "" {
		return t.postRecv(l, []verbs.RecvWR{{SGList: []verbs.SGE{l.mr.SGE(l.recvOff, verbs.GRHSize+4)}}})
	}
	return nil
}

// learns reports whether the server has to send too, and so must learn where the client's UD QPs
// are. The connection manager tells it to the client alone.
func (t *tester) learns() bool {
	return t.qpType == verbs.QPTypeUD && (t.kind.latency || t.bidi)
}

// tellPath sends the number of the client's QP to the server.
func (t *tester) tellPath(l *lane) error {
	_, err := l.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(l.qp.QPN()),
		SGList: []verbs.SGE{l.mr.SGE(l.sendOff, 4)}, AH: l.ah, RemoteQPN: l.remote.qpn, RemoteQKey: l.remoteQKey}})
	if err == nil {
		_, err = t.waitOne()
	}
	return err
}

// learnPath receives that number.
func (t *tester) learnPath(l *lane) error {
	wc, err := t.waitOne()
	if err != nil {
		return err
	}
	if l.ah, err = t.pd.CreateAHFromWC(t.ibPort, &wc, l.mr.Bytes()[l.recvOff:l.recvOff+verbs.GRHSize]); err != nil {
		return err
	}
	l.remote.qpn, l.remoteQKey = verbs.QPN(wc.Imm), rdmacm.UDQKey
	return nil
}

func (t *tester) waitOne() (verbs.WC, error) {
	var wcs [1]verbs.WC
	if _, err := t.wait(t.ctx, wcs[:]); err != nil {
		return wcs[0], err
	}
	return wcs[0], wcs[0].Err()
}

// postRecv posts receives to the QP or to the queue that it shares.
func (t *tester) postRecv(l *lane, wrs []verbs.RecvWR) (err error) {
	if t.sharedRQ != nil {
		_, err = t.sharedRQ.PostRecv(wrs)
	} else {
		_, err = l.qp.PostRecv(wrs)
	}
	return err
}
