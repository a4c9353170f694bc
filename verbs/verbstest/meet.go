package verbstest

import (
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// meet connects a QP in RESET to the other side's by the connection manager, on devices whose QPs nobody connects by
// hand: iWARP's. Side A asks, and side B listens.
func (e *end) meet() {
	if e.o.stay {
		e.mustHave(ByHand) // the connection manager leaves no QP in RTR
	}
	c := e.cm()
	if e.Name == "A" {
		e.ask(c, c.listening())
		c.next(rdmacm.EventEstablished)
		return
	}
	l := c.listen(rdmacm.PortSpaceTCP)
	e.answer(c)
	c.closed(l)
}

// meetItself connects two QPs of one side.
func meetItself(x, y *end) {
	here, there := x.cm(), y.cm()
	l := there.id(rdmacm.PortSpaceTCP)
	there.need(CM, l.BindAddr(there.addr(0)))
	there.must(l.Listen(0))
	x.ask(here, l.LocalAddr())
	y.answer(there)
	here.next(rdmacm.EventEstablished)
	there.closed(l)
}

// placed returns when the peer has what was sent before. Where a completion says that already, it does nothing. Else the
// answer to an empty READ does: it stands behind the WRITEs.
func (e *end) placed() {
	if e.has(Acknowledged) {
		return
	}
	e.send(read(behindID, verbs.RemoteAddr{}))
	e.sent(behindID, verbs.WCRDMARead)
}

// behindID is the ID of work requests that show what became of others.
const behindID uint64 = 1 << 40

// denied waits for the failure of a SEND or WRITE that the peer refuses, as failed does, and for those of others that
// were posted behind it. Without acknowledgements these may have been completed, or make no completion, before the
// peer's refusal comes. Then nothing more goes through: what is posted behind them fails.
func (e *end) denied(id uint64, status verbs.WCStatus, behind ...uint64) {
	if e.has(Acknowledged) {
		e.failed(id, status)
		e.flushed(behind...)
		return
	}
	e.send(read(behindID, verbs.RemoteAddr{}))
	for {
		wc := e.next(e.scq)
		switch ours := wc.ID == id || wc.ID == behindID || slices.Contains(behind, wc.ID); {
		case !ours || wc.QP != e.qp:
			e.Fatalf("completion %d of qp %v; want %d, %d or those behind, of qp %v", wc.ID, wc.QPN, id, behindID, e.qp.QPN())
		case wc.ID != behindID && wc.Status == verbs.WCSuccess, wc.Status == verbs.WCFlushErr, e.isStatus(wc.Status, status):
		default:
			e.Fatalf("completion %d with %v; want it flushed or %v", wc.ID, wc.Status, status)
		}
		if wc.ID == behindID {
			e.inState(verbs.QPStateErr)
			return
		}
	}
}

// ask asks for a connection of the QP.
func (e *end) ask(c *cm, to netip.AddrPort) {
	id := c.routed(rdmacm.PortSpaceTCP, to)
	e.init()
	c.must(id.Connect(e.param()))
}

// answer accepts the next request with the QP.
func (e *end) answer(c *cm) {
	ev := c.next(rdmacm.EventConnectRequest)
	e.init()
	c.must(ev.ID.Accept(e.param()))
	c.next(rdmacm.EventEstablished)
}

func (e *end) init() { e.must(e.qp.Init(e.Port, e.o.access)) }

// param asks for what the setup does.
func (e *end) param() *rdmacm.ConnParam {
	p := rdmacm.DefaultConnParam()
	p.QPN, p.SRQ = e.qp.QPN(), e.o.srq != nil
	p.InitiatorDepth = uint8(min(e.o.retry.MaxRDAtomic, int(p.InitiatorDepth)))
	if n := e.o.path.MaxDestRDAtomic; n != 0 {
		p.ResponderResources = uint8(n)
	}
	return &p
}

// pair makes two QPs of one side that are connected to each other.
func (s *Side) pair(pd *verbs.PD) (x, y *end) {
	x, y = s.newEnd(setup{pd: pd}), s.newEnd(setup{pd: pd})
	x.to, y.to = y.self(), x.self()
	x.mtu = s.activeMTU().Bytes()
	y.mtu = x.mtu
	if !s.has(ByHand) {
		meetItself(x, y)
		return x, y
	}
	for _, e := range []*end{x, y} {
		e.rtr()
		e.rts()
	}
	return x, y
}
