package transport

import (
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// ud sends and receives unreliable datagrams: SENDs of one packet, each with a destination of its own.
type ud struct {
	sender
	ah verbs.ProviderAH // of the latest datagram
}

func newUD(q *QP) *ud { return &ud{sender: sender{qp: q}} }

// AH returns the address handle of the datagram that Transmit wrote last. It is nil for the connected
// services, whose packets all go the same way.
func (q *QP) AH() verbs.ProviderAH {
	if u, ok := q.service.(*ud); ok {
		return u.ah
	}
	return nil
}

func (u *ud) transmit(_ time.Duration, buf []byte) int {
	q := u.qp
	w := u.next()
	for w != nil && w.length > maxPacketData {
		u.done() // IBTA C10-93.1.1: nothing is sent, and no error raised
		w = u.next()
	}
	if w == nil {
		return 0
	}
	op := wire.UDSendOnly
	if w.op == verbs.OpSendWithImm {
		op = wire.UDSendOnlyWithImm
	}
	p := q.header(op, psn(w.seq))
	way := w.cold
	p.DestQP = uint32(way.destQPN)
	p.AckReq = true // as Linux does; nobody answers
	p.DETH = wire.DETH{QKey: uint32(u.qkey(way.qkey)), SrcQP: uint32(q.cfg.QPN)}
	u.ah = way.ah
	n, f := q.payload(p, w, 0, w.length, buf)
	return u.wrote(w, n, f)
}

// privilegedQKey is the bit by which a work request asks for its QP's own Q_Key.
const privilegedQKey = 1 << 31

func (u *ud) qkey(asked verbs.QKey) verbs.QKey {
	if asked&privilegedQKey != 0 {
		return u.qp.attr.QKey
	}
	return asked
}

// handle takes a packet of a connected service. A UD QP drops it.
func (u *ud) handle(time.Duration, *wire.Packet) (progress bool) {
	u.qp.counters.Unexpected++
	return false
}

// HandleDatagram takes a UD packet. The caller has checked its ICRC, destination QPN and P_Key. grh is written before
// the payload into the receive buffer. HandleDatagram returns false if it dropped the packet for its Q_Key, which a
// port counts.
func (q *QP) HandleDatagram(p *wire.Packet, grh *[verbs.GRHSize]byte) bool {
	return q.HandleDatagramFrom(p, grh, nil)
}

// Origin is what a completion tells of a datagram's way, on InfiniBand.
type Origin struct {
	SLID         uint16
	SL, PathBits uint8
	Global       bool // it has a GRH
}

// HandleDatagramFrom is HandleDatagram for a datagram that came by InfiniBand, unless from is nil.
func (q *QP) HandleDatagramFrom(p *wire.Packet, grh *[verbs.GRHSize]byte, from *Origin) bool {
	if !q.receives() {
		return true
	}
	if p.Opcode.Service() != wire.ServiceUD {
		q.counters.Unexpected++
		return true
	}
	if verbs.QKey(p.DETH.QKey) != q.attr.QKey {
		q.counters.QKeyViolations++
		return false
	}
	in := &q.receiver
	n := uint32(len(p.Payload))
	// Datagrams come from anybody: a datagram that is too long must not cost a receive, nor keep that receive from
	// the other QPs of an SRQ.
	w, short := q.cfg.Receives.TakeFor(verbs.GRHSize + n)
	switch {
	case short:
		q.counters.TooLong++
		return true
	case w == nil:
		q.counters.NoReceive++
		return true
	}
	err := w.Place(0, grh[:])
	if err == nil && n > 0 {
		err = w.Place(verbs.GRHSize, p.Payload)
	}
	if err != nil {
		in.msg.recv = w
		in.fail(&refusal{status: verbs.WCLocProtErr, cause: err})
		return true
	}
	wc := q.completeRecv(w, verbs.WCSuccess, verbs.WCRecv, p.Solicited)
	wc.Flags, wc.ByteLen, wc.SrcQPN, wc.SL = verbs.WCFlagGRH, verbs.GRHSize+n, verbs.QPN(p.DETH.SrcQP), headerType(grh)
	if from != nil {
		if wc.SLID, wc.SL, wc.DLIDPathBits = from.SLID, from.SL, from.PathBits; !from.Global {
			wc.Flags &^= verbs.WCFlagGRH
		}
	}
	if p.Opcode.HasImm() {
		wc.Flags |= verbs.WCFlagWithImm
		wc.Imm = p.Imm
	}
	return true
}

// headerType returns what a completion tells of the header in front of a datagram, in place of a service level: the kind
// of IP header, and that there was a UDP header. The specification leaves open where a completion tells of them. ConnectX
// does so there, and UCX takes no IPv4 datagram without it.
func headerType(grh *[verbs.GRHSize]byte) uint8 {
	const udp, ipv6, ipv4 = 8, 1, 2
	if grh[0]>>4 == 6 {
		return udp | ipv6
	}
	return udp | ipv4
}
