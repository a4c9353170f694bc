package tooltest

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Peer is the other end of a connection with a program. The test takes each of its steps: those that
// a C program takes, and those that none takes.
type Peer struct {
	t        *testing.T
	ctx      context.Context
	ch       *rdmacm.EventChannel
	listener *rdmacm.ID
	ID       *rdmacm.ID
	pd       *verbs.PD
	sent     *verbs.CQ
	received *verbs.CQ
	out, in  *verbs.MR
	outAt    int       // where in out the next message goes
	Data     *verbs.MR // open to the program
	Close    func()
}

const (
	peerRecvs   = 4
	peerMessage = 256 // bytes of room
)

func newPeer(ctx context.Context, t *testing.T, device string) *Peer {
	t.Helper()
	dev, err := verbs.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	p := &Peer{t: t, ctx: ctx, ch: rdmacm.NewEventChannel(dev)}
	closed := false
	p.Close = func() {
		if closed {
			return
		}
		closed = true
		if p.ID != nil {
			p.ID.Close()
		}
		if p.listener != nil {
			p.listener.Close()
		}
		for _, mr := range []*verbs.MR{p.out, p.in, p.Data} {
			if mr != nil {
				mr.Close()
			}
		}
		if p.pd != nil {
			p.pd.Close()
			p.sent.Close()
			p.received.Close()
		}
		p.ch.Close()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(p.Close)
	return p
}

// Must fails the test if err is not nil.
func (p *Peer) Must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// DialPeer connects to a program as soon as the program listens.
func DialPeer(ctx context.Context, t *testing.T, device, addr, port string) *Peer {
	t.Helper()
	p := newPeer(ctx, t, device)
	for {
		p.ID = p.newID()
		p.Must(p.ID.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(net.JoinHostPort(addr, port))))
		p.Expect(rdmacm.EventAddrResolved)
		p.Must(p.ID.ResolveRoute())
		p.Expect(rdmacm.EventRouteResolved)
		p.setup()
		p.Must(p.ID.Connect(&rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}))
		if p.next().Type == rdmacm.EventEstablished {
			return p
		}
		p.Must(p.ID.Close())
		p.forget()
	}
}

// ListenPeer makes a peer that is a server. Accept waits for its client.
func ListenPeer(ctx context.Context, t *testing.T, device, addr, port string) *Peer {
	t.Helper()
	p := newPeer(ctx, t, device)
	p.listener = p.newID()
	p.Must(p.listener.BindAddr(netip.MustParseAddrPort(net.JoinHostPort(addr, port))))
	p.Must(p.listener.Listen(1))
	return p
}

// Accept accepts the connection of a client.
func (p *Peer) Accept() {
	p.t.Helper()
	p.ID = p.Expect(rdmacm.EventConnectRequest).ID
	p.setup()
	p.Must(p.ID.Accept(nil))
	p.Expect(rdmacm.EventEstablished)
}

func (p *Peer) newID() *rdmacm.ID {
	p.t.Helper()
	id, err := rdmacm.NewID(p.ch, rdmacm.PortSpaceTCP)
	p.Must(err)
	return id
}

func (p *Peer) next() rdmacm.Event {
	p.t.Helper()
	for {
		ev, err := p.ch.Next(p.ctx)
		p.Must(err)
		if ev.Type != rdmacm.EventAddrChange { // the host's addresses are not the test's
			return ev
		}
	}
}

// Expect returns the next event, which must be of type want.
func (p *Peer) Expect(want rdmacm.EventType) rdmacm.Event {
	p.t.Helper()
	ev := p.next()
	if ev.Type != want {
		p.t.Fatalf("event %v: %v, want %v", ev.Type, ev.Err, want)
	}
	return ev
}

func (p *Peer) setup() {
	p.t.Helper()
	var err error
	if p.pd == nil {
		dev := p.ID.Device()
		p.pd, err = dev.AllocPD()
		p.Must(err)
		p.sent, err = dev.CreateCQ(16)
		p.Must(err)
		p.received, err = dev.CreateCQ(16)
		p.Must(err)
		p.out, err = p.pd.AllocMR(peerMessage, 0)
		p.Must(err)
		p.in, err = p.pd.AllocMR(peerMessage, verbs.AccessLocalWrite)
		p.Must(err)
		p.Data, err = p.pd.AllocMR(1<<16, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
		p.Must(err)
	}
	p.Must(p.ID.CreateQP(p.pd, verbs.QPInitAttr{SendCQ: p.sent, RecvCQ: p.received,
		Cap: verbs.QPCap{MaxSendWR: peerRecvs, MaxRecvWR: peerRecvs, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	p.postRecv()
}

func (p *Peer) postRecv() {
	p.t.Helper()
	_, err := p.ID.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{p.in.SGE(0, peerMessage)}}})
	p.Must(err)
}

// forget drops the completions of a QP that is closed: the refused connection flushed its receive.
func (p *Peer) forget() {
	p.t.Helper()
	for _, cq := range []*verbs.CQ{p.sent, p.received} {
		for {
			n, err := cq.Poll(make([]verbs.WC, peerRecvs))
			p.Must(err)
			if n == 0 {
				break
			}
		}
	}
}

// Receive returns the next message, and posts another receive.
func (p *Peer) Receive() []byte {
	p.t.Helper()
	var wcs [1]verbs.WC
	_, err := p.received.Wait(p.ctx, wcs[:])
	p.Must(err)
	p.Must(wcs[0].Err())
	b := bytes.Clone(p.in.Bytes()[:wcs[0].ByteLen])
	p.postRecv()
	return b
}

// Operate posts a READ or WRITE of p.Data, and waits for its completion.
func (p *Peer) Operate(op verbs.Opcode, remote verbs.RemoteAddr, n int) {
	p.t.Helper()
	const id = 1
	p.post(verbs.SendWR{ID: id, Op: op, Remote: remote, SGList: []verbs.SGE{p.Data.SGE(0, n)}})
	for {
		var wcs [1]verbs.WC
		_, err := p.sent.Wait(p.ctx, wcs[:])
		p.Must(err)
		p.Must(wcs[0].Err())
		if wcs[0].ID == id {
			return
		}
	}
}

// Send sends a message. It does not wait for the acknowledgement: the message may lead to a
// disconnect that overtakes it.
func (p *Peer) Send(message []byte) {
	p.t.Helper()
	n := copy(p.out.Bytes()[p.outAt:], message)
	p.post(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{p.out.SGE(p.outAt, n)}})
	p.outAt = (p.outAt + peerMessage/peerRecvs) % peerMessage
}

func (p *Peer) post(wr verbs.SendWR) {
	p.t.Helper()
	var wcs [8]verbs.WC
	p.sent.Poll(wcs[:]) // of earlier messages
	wr.Flags |= verbs.SendSignaled
	_, err := p.ID.QP().PostSend([]verbs.SendWR{wr})
	p.Must(err)
}

// AwaitCM blocks until a connection manager answers at the address, even if it answers with a no. A
// message that is sent there earlier is lost, and repeated only after a second, so AwaitCM sends another before. It
// waits twice as long for the answer to each: on a busy machine the answer may just be slow.
func AwaitCM(ctx context.Context, t *testing.T, device, addr string) {
	t.Helper()
	p := newPeer(ctx, t, device)
	defer p.Close()
	const nobodysPort = 1
	for wait := 5 * time.Millisecond; ; wait *= 2 {
		id := p.newID()
		p.Must(id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(addr), nobodysPort)))
		p.Expect(rdmacm.EventAddrResolved)
		p.Must(id.ResolveRoute())
		p.Expect(rdmacm.EventRouteResolved)
		p.Must(id.CreateQP(nil, verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		p.Must(id.Connect(nil))
		answer, cancel := context.WithTimeout(ctx, wait)
		ev, err := p.ch.Next(answer)
		cancel()
		p.Must(id.Close())
		switch {
		case err == nil && ev.Status == int(rdmacm.RejectInvalidServiceID):
			return
		case ctx.Err() != nil:
			t.Fatal("nobody answers")
		}
	}
}
