package verbstest

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// cmConns is how many connections each side makes at the same time.
const cmConns = 32

// cmQP is a small QP with its own CQs.
var cmQP = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}

// cm is a side's connection manager.
type cm struct {
	*Side
	ch *rdmacm.EventChannel
}

func (s *Side) cm() *cm {
	if _, err := s.Device.GSI(); err != nil && !s.iwarp() {
		if why := connector.CheckKernel(s.Device); why != nil {
			s.need(CM, why)
		}
	}
	if e, err := s.Device.GID(s.Port, s.GIDIndex); err == nil && e.Type == verbs.GIDTypeRoCEv1 {
		if addrs, err := connector.Addrs(s.Device); err == nil && !slices.Contains(addrs, e.GID.Addr()) {
			s.Skipf("the GID %v of RoCEv1 is no IP address", e.GID)
		}
	}
	return &cm{s, rdmacm.NewEventChannel(s.Device)}
}

// iwarp reports whether the device speaks iWARP, whose connections MPA frames open: with private data of any
// length, without a time to wait in the end, and without the numbers of InfiniBand.
func (s *Side) iwarp() bool { return s.Device.Info().Transport == verbs.TransportIWARP }

// addr returns the address that the case's GID stands for, or on iWARP the device's first.
func (c *cm) addr(port uint16) netip.AddrPort {
	if c.iwarp() {
		addrs, err := connector.Addrs(c.Device)
		c.must(err)
		return netip.AddrPortFrom(addrs[0], port)
	}
	e, err := c.Device.GID(c.Port, c.GIDIndex)
	c.must(err)
	return netip.AddrPortFrom(e.GID.Addr(), port)
}

func (c *cm) id(ps rdmacm.PortSpace) *rdmacm.ID {
	id, err := rdmacm.NewID(c.ch, ps)
	c.must(err)
	c.Cleanup(func() { c.closed(id) })
	return id
}

func (c *cm) closed(id *rdmacm.ID) {
	if err := id.Close(); err != nil {
		c.Errorf("close id: %v", err)
	}
}

// next returns the next event. It must be of type due.
func (c *cm) next(due rdmacm.EventType) rdmacm.Event {
	ev, err := c.ch.Next(c.Context())
	c.must(err)
	if ev.Type != due {
		c.Fatalf("event %v, status %d, %v; %v is due", ev.Type, ev.Status, ev.Err, due)
	}
	if due == rdmacm.EventConnectRequest {
		c.Cleanup(func() { c.closed(ev.ID) })
	}
	return ev
}

// listen listens on any free port, and tells the other side which it is.
func (c *cm) listen(ps rdmacm.PortSpace) *rdmacm.ID {
	id := c.id(ps)
	c.need(CM, id.BindAddr(c.addr(0)))
	c.must(id.Listen(0))
	Exchange(c.Side, id.LocalAddr())
	return id
}

// listening returns the address that the other side listens on.
func (c *cm) listening() netip.AddrPort { return Exchange(c.Side, netip.AddrPort{}) }

// routed returns an ID that can connect to the other side.
func (c *cm) routed(ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.ID {
	id := c.id(ps)
	c.must(id.ResolveAddr(c.addr(0), to))
	c.next(rdmacm.EventAddrResolved)
	c.must(id.ResolveRoute())
	c.next(rdmacm.EventRouteResolved)
	return id
}

// connect asks the other side for a connection.
func (c *cm) connect(to netip.AddrPort, p *rdmacm.ConnParam) *rdmacm.ID {
	id := c.routed(rdmacm.PortSpaceTCP, to)
	c.must(id.CreateQP(nil, cmQP))
	c.must(id.Connect(p))
	return id
}

// requested waits for the other side's request, and posts a receive of n bytes.
func (c *cm) requested(n int) (rdmacm.Event, *verbs.MR) {
	ev := c.next(rdmacm.EventConnectRequest)
	c.must(ev.ID.CreateQP(nil, cmQP))
	return ev, c.inbox(ev.ID, n)
}

// inbox posts a receive of n bytes.
func (c *cm) inbox(id *rdmacm.ID, n int) *verbs.MR {
	mr, err := id.PD().AllocMR(n, everything)
	c.must(err)
	c.Cleanup(func() { c.must(mr.Close()) })
	_, err = id.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, n)}}})
	c.must(err)
	return mr
}

// done waits for one completion.
func (c *cm) done(cq *verbs.CQ) verbs.WC {
	var wcs [1]verbs.WC
	_, err := cq.Wait(c.Context(), wcs[:])
	c.must(err)
	c.must(wcs[0].Err())
	return wcs[0]
}

// send sends the first n bytes of a region.
func (c *cm) send(id *rdmacm.ID, mr *verbs.MR, n int) {
	_, err := id.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, n)}}})
	c.must(err)
	c.done(id.QP().SendCQ())
}

// private checks private data. It comes filled up with zeros, but on iWARP.
func (c *cm) private(got []byte, want string, length int) {
	if c.iwarp() {
		length = len(want)
	}
	if len(got) != length || !bytes.Equal(got, append([]byte(want), make([]byte, length-len(want))...)) {
		c.Errorf("private data: got %q, want %q and zeros, %d bytes", got, want, length)
	}
}

var cmCases = []Case{
	// A connection, from the request to the last event, with private data and a message each way.
	{
		Name: "cm/connection", Needs: CM,
		A: func(s *Side) {
			c := s.cm()
			param := rdmacm.DefaultConnParam()
			param.PrivateData = []byte("request")
			id := c.connect(c.listening(), &param)
			mr := c.inbox(id, 16)
			ev := c.next(rdmacm.EventEstablished)
			c.private(ev.Param.PrivateData, "reply", rdmacm.MaxAcceptData)
			want(s, "state", id.QP().State(), verbs.QPStateRTS)
			copy(mr.Bytes(), "ping")
			c.send(id, mr, 4)
			c.done(id.QP().RecvCQ())
			want(s, "answer", string(mr.Bytes()[:4]), "pong")
			s.must(id.Disconnect())
			c.next(rdmacm.EventDisconnected)
			if !s.iwarp() {
				c.next(rdmacm.EventTimewaitExit)
			}
		},
		B: func(s *Side) {
			c := s.cm()
			l := c.listen(rdmacm.PortSpaceTCP)
			ev, mr := c.requested(16)
			want(s, "listener", ev.ListenID, l)
			c.private(ev.Param.PrivateData, "request", rdmacm.MaxConnectData)
			param := rdmacm.DefaultConnParam()
			param.PrivateData = []byte("reply")
			s.must(ev.ID.Accept(&param))
			c.next(rdmacm.EventEstablished)
			c.done(ev.ID.QP().RecvCQ())
			want(s, "message", string(mr.Bytes()[:4]), "ping")
			copy(mr.Bytes(), "pong")
			c.send(ev.ID, mr, 4)
			c.next(rdmacm.EventDisconnected)
			s.must(ev.ID.Disconnect())
			want(s, "state", ev.ID.QP().State(), verbs.QPStateErr)
		},
	},
	// The values of the negotiation are those of the QPs at both ends.
	{
		Name: "cm/negotiation", Needs: CM,
		A: func(s *Side) {
			c := s.cm()
			id := c.connect(c.listening(), &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 2, RetryCount: 5, RNRRetryCount: 4})
			c.next(rdmacm.EventEstablished)
			a, _, err := id.QP().Query()
			s.must(err)
			b := Exchange(s, a)
			want(s, "MaxRDAtomic", a.MaxRDAtomic, 2)
			want(s, "MaxDestRDAtomic", a.MaxDestRDAtomic, 1)
			want(s, "the other's MaxRDAtomic", b.MaxRDAtomic, 1)
			want(s, "the other's MaxDestRDAtomic", b.MaxDestRDAtomic, 2)
			if s.iwarp() {
				return
			}
			want(s, "RetryCnt", a.RetryCnt, 5)
			want(s, "the other's RetryCnt", b.RetryCnt, 5)
			want(s, "RNRRetry", a.RNRRetry, 3)
			want(s, "the other's RNRRetry", b.RNRRetry, 4)
			want(s, "first PSN out", a.SQPSN, b.RQPSN)
			want(s, "first PSN in", a.RQPSN, b.SQPSN)
			want(s, "path MTU", a.PathMTU, b.PathMTU)
		},
		B: func(s *Side) {
			c := s.cm()
			c.listen(rdmacm.PortSpaceTCP)
			ev, _ := c.requested(16)
			want(s, "the peer's ResponderResources", ev.Param.InitiatorDepth, 1)
			want(s, "the peer's InitiatorDepth", ev.Param.ResponderResources, 2)
			s.must(ev.ID.Accept(&rdmacm.ConnParam{ResponderResources: 2, InitiatorDepth: 1, RNRRetryCount: 3}))
			c.next(rdmacm.EventEstablished)
			b, _, err := ev.ID.QP().Query()
			s.must(err)
			Exchange(s, b)
		},
	},
	// A connection is refused if nobody listens, and if the listener rejects it.
	{
		Name: "cm/refused", Needs: CM,
		A: func(s *Side) {
			c := s.cm()
			to := c.listening()
			c.connect(netip.AddrPortFrom(to.Addr(), to.Port()^1), nil)
			ev := c.next(rdmacm.EventRejected)
			want(s, "reason", rdmacm.RejectReason(ev.Status), rdmacm.RejectInvalidServiceID)
			if !errors.Is(ev.Err, rdmacm.ErrRefused) {
				s.Errorf("nobody listens: %v, want ErrRefused", ev.Err)
			}
			c.connect(to, nil)
			ev = c.next(rdmacm.EventRejected)
			want(s, "reason", rdmacm.RejectReason(ev.Status), rdmacm.RejectConsumerDefined)
			c.private(ev.Param.PrivateData, "no", rdmacm.MaxRejectData)
		},
		B: func(s *Side) {
			c := s.cm()
			c.listen(rdmacm.PortSpaceTCP)
			s.must(c.next(rdmacm.EventConnectRequest).ID.Reject([]byte("no")))
		},
	},
	// Both sides make connections to each other at the same time, and then all disconnect.
	{
		Name: "cm/many at a time", Needs: CM,
		A: func(s *Side) { manyAtATime(s) },
		B: func(s *Side) { manyAtATime(s) },
	},
	// A UD service is looked up by its port, and a datagram reaches it.
	{
		Name: "cm/datagrams", Needs: CM | UD,
		A: func(s *Side) {
			c := s.cm()
			id := c.routed(rdmacm.PortSpaceUDP, c.listening())
			s.must(id.CreateQP(nil, cmQP))
			s.must(id.Connect(&rdmacm.ConnParam{PrivateData: []byte("where")}))
			ev := c.next(rdmacm.EventEstablished)
			c.private(ev.UD.PrivateData, "here", rdmacm.MaxUDAcceptData)
			ah, err := id.PD().CreateAH(ev.UD.AH)
			s.must(err)
			s.Cleanup(func() { s.must(ah.Close()) })
			mr := c.inbox(id, 64)
			copy(mr.Bytes(), "datagram")
			_, err = id.QP().PostSend([]verbs.SendWR{{
				Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 8)}, AH: ah, RemoteQPN: ev.UD.QPN, RemoteQKey: ev.UD.QKey,
			}})
			s.must(err)
			c.done(id.QP().SendCQ())
		},
		B: func(s *Side) {
			c := s.cm()
			c.listen(rdmacm.PortSpaceUDP)
			ev, mr := c.requested(64)
			c.private(ev.UD.PrivateData, "where", rdmacm.MaxUDConnectData)
			s.must(ev.ID.Accept(&rdmacm.ConnParam{PrivateData: []byte("here")}))
			c.done(ev.ID.QP().RecvCQ())
			want(s, "datagram", string(mr.Bytes()[verbs.GRHSize:][:8]), "datagram")
		},
	},
	// A port has one listener. It is free again when the listener has closed.
	{
		Name: "cm/port in use", Needs: CM,
		A: func(s *Side) {
			c := s.cm()
			id := c.listen(rdmacm.PortSpaceTCP)
			again := c.id(rdmacm.PortSpaceTCP)
			if err := again.BindAddr(id.LocalAddr()); !errors.Is(err, rdmacm.ErrAddrInUse) {
				s.Errorf("a second listener: %v, want ErrAddrInUse", err)
			}
			s.must(id.Close())
			s.must(again.BindAddr(id.LocalAddr()))
			s.must(again.Listen(0))
			s.Barrier()
			s.must(c.next(rdmacm.EventConnectRequest).ID.Reject(nil))
		},
		B: func(s *Side) {
			c := s.cm()
			to := c.listening()
			s.Barrier()
			c.connect(to, nil)
			want(s, "reason", rdmacm.RejectReason(c.next(rdmacm.EventRejected).Status), rdmacm.RejectConsumerDefined)
		},
	},
}

// manyAtATime makes connections to the other side, which makes as many to this one.
func manyAtATime(s *Side) {
	c := s.cm()
	l := c.id(rdmacm.PortSpaceTCP)
	s.must(l.BindAddr(c.addr(0)))
	s.must(l.Listen(0))
	to := Exchange(s, l.LocalAddr())
	for range cmConns {
		id := c.id(rdmacm.PortSpaceTCP)
		s.must(id.ResolveAddr(c.addr(0), to))
	}
	open, ended := map[*rdmacm.ID]bool{}, 0
	for ended < 2*cmConns {
		ev, err := c.ch.Next(s.Context())
		s.must(err)
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			s.must(ev.ID.ResolveRoute())
		case rdmacm.EventRouteResolved:
			s.must(ev.ID.CreateQP(nil, cmQP))
			s.must(ev.ID.Connect(nil))
		case rdmacm.EventConnectRequest:
			s.Cleanup(func() { c.closed(ev.ID) })
			s.must(ev.ID.CreateQP(nil, cmQP))
			s.must(ev.ID.Accept(nil))
		case rdmacm.EventEstablished:
			if open[ev.ID] = true; len(open) == 2*cmConns {
				for id := range open { // both sides do so at about the same time
					s.must(id.Disconnect())
				}
			}
		case rdmacm.EventDisconnected:
			ended++
		case rdmacm.EventTimewaitExit:
		default:
			s.Fatalf("event %v, status %d: %v; want one of a connection that is made or ends", ev.Type, ev.Status, ev.Err)
		}
	}
}
