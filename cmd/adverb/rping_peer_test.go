package main

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// scriptedPeer is the other end of a program, of which a test says each step: what a C program
// does, and what none does.
type scriptedPeer struct {
	t        *testing.T
	ctx      context.Context
	ch       *rdmacm.EventChannel
	listener *rdmacm.ID
	id       *rdmacm.ID
	pd       *verbs.PD
	sent     *verbs.CQ
	received *verbs.CQ
	out, in  *verbs.MR
	outAt    int       // where the next message is put
	data     *verbs.MR // open to the program
	close    func()
}

const (
	peerRecvs   = 4
	peerMessage = 256 // bytes of room
)

func newScriptedPeer(ctx context.Context, t *testing.T, device string) *scriptedPeer {
	t.Helper()
	dev, err := verbs.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	p := &scriptedPeer{t: t, ctx: ctx, ch: rdmacm.NewEventChannel(dev)}
	closed := false
	p.close = func() {
		if closed {
			return
		}
		closed = true
		if p.id != nil {
			p.id.Close()
		}
		if p.listener != nil {
			p.listener.Close()
		}
		for _, mr := range []*verbs.MR{p.out, p.in, p.data} {
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
	t.Cleanup(p.close)
	return p
}

func (p *scriptedPeer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// dialScripted connects to a program, as soon as it listens.
func dialScripted(ctx context.Context, t *testing.T, port string) *scriptedPeer {
	t.Helper()
	p := newScriptedPeer(ctx, t, rpingClientDevice)
	for {
		p.id = p.newID()
		p.must(p.id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(net.JoinHostPort(rpingServerAddr, port))))
		p.expect(rdmacm.EventAddrResolved)
		p.must(p.id.ResolveRoute())
		p.expect(rdmacm.EventRouteResolved)
		p.setup()
		p.must(p.id.Connect(&rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}))
		if p.next().Type == rdmacm.EventEstablished {
			return p
		}
		p.must(p.id.Close())
	}
}

// listenScripted makes the peer a server. accept waits for the client.
func listenScripted(ctx context.Context, t *testing.T, port string) *scriptedPeer {
	t.Helper()
	p := newScriptedPeer(ctx, t, rpingServerDevice)
	p.listener = p.newID()
	p.must(p.listener.BindAddr(netip.MustParseAddrPort(net.JoinHostPort(rpingServerAddr, port))))
	p.must(p.listener.Listen(1))
	return p
}

func (p *scriptedPeer) accept() {
	p.t.Helper()
	p.id = p.expect(rdmacm.EventConnectRequest).ID
	p.setup()
	p.must(p.id.Accept(nil))
	p.expect(rdmacm.EventEstablished)
}

func (p *scriptedPeer) newID() *rdmacm.ID {
	p.t.Helper()
	id, err := rdmacm.NewID(p.ch, rdmacm.PortSpaceTCP)
	p.must(err)
	return id
}

func (p *scriptedPeer) next() rdmacm.Event {
	p.t.Helper()
	ev, err := p.ch.Next(p.ctx)
	p.must(err)
	return ev
}

func (p *scriptedPeer) expect(want rdmacm.EventType) rdmacm.Event {
	p.t.Helper()
	ev := p.next()
	if ev.Type != want {
		p.t.Fatalf("event %v: %v, want %v", ev.Type, ev.Err, want)
	}
	return ev
}

func (p *scriptedPeer) setup() {
	p.t.Helper()
	var err error
	if p.pd == nil {
		dev := p.id.Device()
		p.pd, err = dev.AllocPD()
		p.must(err)
		p.sent, err = dev.CreateCQ(16)
		p.must(err)
		p.received, err = dev.CreateCQ(16)
		p.must(err)
		p.out, err = p.pd.AllocMR(peerMessage, 0)
		p.must(err)
		p.in, err = p.pd.AllocMR(peerMessage, verbs.AccessLocalWrite)
		p.must(err)
		p.data, err = p.pd.AllocMR(1<<16, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
		p.must(err)
	}
	p.must(p.id.CreateQP(p.pd, verbs.QPInitAttr{SendCQ: p.sent, RecvCQ: p.received,
		Cap: verbs.QPCap{MaxSendWR: peerRecvs, MaxRecvWR: peerRecvs, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	p.postRecv()
}

func (p *scriptedPeer) postRecv() {
	p.t.Helper()
	_, err := p.id.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{p.in.SGE(0, peerMessage)}}})
	p.must(err)
}

// receive returns the next message, and has another receive posted.
func (p *scriptedPeer) receive() []byte {
	p.t.Helper()
	var wcs [1]verbs.WC
	_, err := p.received.Wait(p.ctx, wcs[:])
	p.must(err)
	p.must(wcs[0].Err())
	b := bytes.Clone(p.in.Bytes()[:wcs[0].ByteLen])
	p.postRecv()
	return b
}

// operate posts a READ or WRITE of p.data, and waits for its completion.
func (p *scriptedPeer) operate(op verbs.Opcode, remote verbs.RemoteAddr, n int) {
	p.t.Helper()
	const id = 1
	p.post(verbs.SendWR{ID: id, Op: op, Remote: remote, SGList: []verbs.SGE{p.data.SGE(0, n)}})
	for {
		var wcs [1]verbs.WC
		_, err := p.sent.Wait(p.ctx, wcs[:])
		p.must(err)
		p.must(wcs[0].Err())
		if wcs[0].ID == id {
			return
		}
	}
}

// send sends a message. It does not wait for the acknowledgement, which the disconnect that the message leads to
// may overtake.
func (p *scriptedPeer) send(message []byte) {
	p.t.Helper()
	n := copy(p.out.Bytes()[p.outAt:], message)
	p.post(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{p.out.SGE(p.outAt, n)}})
	p.outAt = (p.outAt + peerMessage/peerRecvs) % peerMessage
}

func (p *scriptedPeer) post(wr verbs.SendWR) {
	p.t.Helper()
	var wcs [8]verbs.WC
	p.sent.Poll(wcs[:]) // of earlier messages
	wr.Flags |= verbs.SendSignaled
	_, err := p.id.QP().PostSend([]verbs.SendWR{wr})
	p.must(err)
}

// advert describes the first n bytes of p.data from offset off on.
func (p *scriptedPeer) advert(off, n int) []byte {
	return rpingAdvert{Remote: p.data.Remote(off), Size: uint32(n)}.AppendTo(nil)
}

// The server against each step of a client: it reads as much as the client says, whatever that is, and
// writes back no more than the text and its end.
func TestRpingServerSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := rpingServer(ctx, t, "-v -S 128")
	p := dialScripted(ctx, t, rpingTestPort)
	const there, back = 0, 1024
	goAhead := make([]byte, rpingAdvertSize)
	for _, text := range []string{"one\x00two", "\x00", "longer, and without an end"} {
		copy(p.data.Bytes()[there:], text)
		rest := bytes.Repeat([]byte{0xee}, 256)
		copy(p.data.Bytes()[back:], rest)
		p.send(p.advert(there, len(text)))
		if m := p.receive(); !bytes.Equal(m, goAhead) {
			t.Fatalf("go-ahead %x", m)
		}
		p.send(p.advert(back, len(text)))
		if m := p.receive(); !bytes.Equal(m, goAhead) {
			t.Fatalf("go-ahead %x", m)
		}
		want := append([]byte(text[:len(cString([]byte(text)))]), 0)
		got := p.data.Bytes()[back:][:256]
		if !bytes.Equal(got[:len(want)], want) || !bytes.Equal(got[len(want):], rest[len(want):]) {
			t.Errorf("the server wrote %q for %q", got, text)
		}
	}
	p.must(p.id.Disconnect())
	checkLines(t, <-server, 0, "server ping data: one\nserver ping data: \nserver ping data: longer, and without an end\n"+
		"server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n")
}

// The client against each step of a server: adverts of 16 bytes, the data readable where the first
// says, and go-aheads whose content does not matter.
func TestRpingClientSteps(t *testing.T) {
	for _, tt := range []struct {
		flags  string
		answer func(data []byte) // what the server makes of the data
		code   int
		want   string
	}{
		{"-V -v -C 1", func([]byte) {}, 0, "ping data: rdma-ping-0: ABCDEFGHI\nclient DISCONNECT EVENT...\n"},
		{"-V -v -C 1", func(b []byte) { b[22] = 1 }, 255, "data mismatch!\nrping client failed: -1\nclient DISCONNECT EVENT...\n"},
		{"-v -C 1", func(b []byte) { copy(b, "other\x00") }, 0, "ping data: other\nclient DISCONNECT EVENT...\n"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		p := listenScripted(ctx, t, rpingTestPort)
		client := background(ctx, strings.Fields("rping -c -S 23 -p "+rpingTestPort+" --ib-dev "+rpingClientDevice+" -a "+rpingServerAddr+" "+tt.flags)...)
		p.accept()
		operate := func(op verbs.Opcode) {
			m := p.receive()
			a := decodeRpingAdvert(m)
			if len(m) != rpingAdvertSize || a.Size != 23 {
				t.Fatalf("advert %x", m)
			}
			p.operate(op, a.Remote, 23)
			p.send([]byte("sixteen bytes...")[:rpingAdvertSize])
		}
		operate(verbs.OpRDMARead)
		if got := string(p.data.Bytes()[:23]); got != "rdma-ping-0: ABCDEFGHI\x00" {
			t.Errorf("data %q", got)
		}
		tt.answer(p.data.Bytes()[:23])
		operate(verbs.OpRDMAWrite)
		p.expect(rdmacm.EventDisconnected)
		p.must(p.id.Disconnect())
		checkLines(t, <-client, tt.code, tt.want)
		p.close()
		cancel()
	}
}

// What no rping sends ends the connection with the C program's lines, and a reason.
func TestRpingBogusMessage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := rpingServer(ctx, t, "")
	p := dialScripted(ctx, t, rpingTestPort)
	for range 2 { // a round, after which the server knows that it is connected
		p.send(p.advert(0, 1))
		p.receive()
	}
	p.send(make([]byte, 8))
	p.expect(rdmacm.EventDisconnected)
	p.must(p.id.Disconnect())
	checkLines(t, <-server, 255, "Received bogus data, size 8\nrecv wc error: -1\nwait for RDMA_READ_ADV state 11\n"+
		"adverb: the peer's message has 8 bytes, and rping's have 16: the peer is another program\n"+
		"rping server failed: -1\nserver DISCONNECT EVENT...\n")
}

// An end that is silent is asked whether it is there. It goes on when it is, and fails when not.
func TestFeedProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dev, err := verbs.Open(rpingServerDevice)
	if err != nil {
		t.Fatal(err)
	}
	pd, err1 := dev.AllocPD()
	cq, err2 := dev.CreateCQ(16)
	var qps [2]*verbs.QP
	for i := range qps {
		qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err1 != nil || err2 != nil || err != nil {
			t.Fatal(err1, err2, err)
		}
		qps[i] = qp
	}
	entry, err := dev.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, qp := range qps {
		const code = 8 // 1 ms
		err1 := qp.Init(1, verbs.AccessRemoteWrite)
		err2 := qp.RTR(verbs.Peer{QPN: qps[1-i].QPN(), GID: entry.GID}, verbs.Path{})
		err3 := qp.RTS(0, verbs.Retry{Timeout: code, Count: 1})
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
	}
	f := newFeed(ctx)
	f.cq = cq
	f.probe(qps[0])
	f.after = time.Millisecond
	probe, probes := f.idle, 0
	f.idle = func() error {
		if probes++; probes == 10 {
			f.events <- rdmacm.Event{Type: rdmacm.EventEstablished}
		}
		return probe()
	}
	if wc, ev, err := f.wait(); wc != nil || err != nil || ev.Type != rdmacm.EventEstablished {
		t.Errorf("a peer that answers: completion %v, error %v", wc, err)
	}
	if err := qps[1].Close(); err != nil {
		t.Fatal(err)
	}
	if wc, _, err := f.wait(); err != nil || wc == nil || wc.ID != probeID || wc.Status != verbs.WCRetryExceeded {
		t.Errorf("a peer that is gone: completion %+v, error %v", wc, err)
	}
	for _, close := range []func() error{qps[0].Close, cq.Close, pd.Close, dev.Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
}
