package rsocket

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A rawPeer is the other end of a connection, written by hand, so that it can break the rules.
type rawPeer struct {
	*rdmacm.Conn
	ring   *verbs.MR
	theirs parameters
}

// listen listens at the second device of a simulated network.
func listen(t *testing.T, d *verbs.Device) net.Listener {
	t.Helper()
	lc := ListenConfig{Devices: []*verbs.Device{d}}
	l, err := lc.Listen(context.Background(), "rsocket", "10.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// join makes a connection, and returns both its ends.
func join(t *testing.T, d *Dialer, l net.Listener) (c, other net.Conn) {
	t.Helper()
	c, err := d.Dial("rsocket", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if other, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return c, other
}

// joinWith makes a connection over a simulated network, from an end with cfg to one with defaults.
func joinWith(t *testing.T, cfg Config) (x, y *Conn) {
	t.Helper()
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	l := listen(t, b)
	defer l.Close()
	c, other := join(t, &Dialer{Devices: []*verbs.Device{a}, Config: cfg}, l)
	t.Cleanup(func() {
		c.Close()
		other.Close()
	})
	return c.(*Conn), other.(*Conn)
}

// rawDial connects a peer whose parameters are those of hello. By default it has two targets.
func rawDial(t *testing.T, n *rdmatest.Network, hello []byte) (*rawPeer, *Conn, error) {
	t.Helper()
	return rawDialTargets(t, n, hello, sglSize)
}

// rawDialTargets is rawDial for a peer with so many targets, if it has no hello of its own.
func rawDialTargets(t *testing.T, n *rdmatest.Network, hello []byte, targets uint32) (*rawPeer, *Conn, error) {
	t.Helper()
	return rawDialSetup(t, n, func(ring *verbs.MR) []byte {
		if hello != nil {
			return hello
		}
		return appendHello(nil, &parameters{credits: 10, maps: 1, sgl: extent{ring.Remote(0), targets}, data: extent{ring.Remote(4096), 4096}})
	})
}

// rawDialSetup is rawDial for a peer whose hello depends on its memory.
func rawDialSetup(t *testing.T, n *rdmatest.Network, hello func(ring *verbs.MR) []byte) (*rawPeer, *Conn, error) {
	t.Helper()
	a, b := n.Device(), n.Device()
	l := listen(t, b)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	p := &rawPeer{}
	var err error
	to := netip.MustParseAddrPort(l.Addr().String())
	private := make([]byte, helloSize)
	p.Conn, err = (&rdmacm.Dialer{Devices: []*verbs.Device{a}}).Dial(ctx, to, &rdmacm.Config{PrivateData: private, Setup: func(c *rdmacm.Conn) (err error) {
		if p.ring, err = c.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
			return err
		}
		copy(private, hello(p.ring))
		for i := range 10 {
			if err := c.QP().PostOneRecv(uint64(i)); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { p.Close() })
	if p.theirs, err = parseHello(p.PrivateData()); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return p, c.(*Conn), nil
}

func (p *rawPeer) post(t *testing.T, wr verbs.SendWR) {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	if err := p.QP().PostOneSend(wr); err != nil {
		t.Fatal(err)
	}
}

// say sends a message without data.
func (p *rawPeer) say(t *testing.T, msg uint32) {
	p.post(t, verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Imm: msg})
}

func TestPeerBreaksProtocol(t *testing.T) {
	for name, misdeed := range map[string]func(*rawPeer){
		"more data than there is room": func(p *rawPeer) { p.say(t, word(kindData, DefaultBuffer+1)) },
		"the largest number":           func(p *rawPeer) { p.say(t, word(kindData, numberMask)) },
		"data after the end": func(p *rawPeer) {
			p.say(t, word(kindControl, controlShutdown))
			p.say(t, word(kindData, 1))
		},
		"an unknown kind": func(p *rawPeer) { p.say(t, word(5, 0)) },
		"a SEND":          func(p *rawPeer) { p.post(t, verbs.SendWR{Op: verbs.OpSend}) },
	} {
		t.Run(name, func(t *testing.T) {
			p, c, err := rawDial(t, rdmatest.New(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			misdeed(p)
			// A write fails too, once the reader has seen it.
			_, err = c.WriteTo(io.Discard)
			if err == nil {
				c.mu.Lock()
				for c.err == nil {
					c.await(&c.r, func(c *Conn) (bool, error) { return c.err != nil, nil })
				}
				c.mu.Unlock()
				_, err = c.Write([]byte("x"))
			}
			if !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, errProtocol) {
				t.Errorf("got error %v, want %v for %v", err, syscall.ECONNRESET, errProtocol)
			}
		})
	}
}

// Messages that mean nothing today do nothing.
func TestPeerKeepAlive(t *testing.T) {
	p, c, err := rawDial(t, rdmatest.New(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.say(t, word(kindControl, controlKeepAlive))
	p.say(t, word(kindControl, 77))
	p.say(t, word(kindData, 3)) // three bytes of the ring as it is
	if n, err := c.Read(make([]byte, 9)); n != 3 || err != nil {
		t.Errorf("read: %d, %v, want 3", n, err)
	}
}

// A peer that gives an address or a key that is none of its memory gets nothing, and the connection ends.
func TestPeerGivesWrongMemory(t *testing.T) {
	hello := appendHello(nil, &parameters{credits: 10, sgl: extent{length: 2}, data: extent{verbs.RemoteAddr{VA: 1, RKey: 2}, 100}})
	_, c, err := rawDial(t, rdmatest.New(t), hello)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(make([]byte, 1))
	if !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, verbs.WCRemAccessErr) {
		t.Errorf("got error %v, want %v for %v", err, syscall.ECONNRESET, verbs.WCRemAccessErr)
	}
}

// Who does not speak the protocol is refused.
func TestPeerIsNoRsocket(t *testing.T) {
	_, _, err := rawDial(t, rdmatest.New(t), make([]byte, helloSize))
	if !errors.Is(err, rdmacm.ErrRefused) {
		t.Errorf("a REQ without version: %v, want %v", err, rdmacm.ErrRefused)
	}

	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.MustParseAddrPort("10.0.0.2:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		if r, err := l.Accept(t.Context()); err == nil {
			if c, err := r.Accept(t.Context(), nil); err == nil {
				t.Cleanup(func() { c.Close() })
				accepted <- c
			}
		}
	}()
	d := Dialer{Devices: []*verbs.Device{a}}
	_, err = d.Dial("tcp", l.Addr().String())
	var e *net.OpError
	if !errors.As(err, &e) || !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), "version 0") {
		t.Errorf("a REP without version: %v, want %v", err, errProtocol)
	}
	if c := <-accepted; c != nil {
		select {
		case <-c.Disconnected():
		case <-time.After(rdmatest.Patience):
			t.Error("the connection to a peer that speaks something else stays, want it to end")
		}
	}
}

// A peer whose program dies says nothing, but its connection manager does. One whose host vanishes
// does not even that, and is missed by the keep-alive.
func TestPeerDies(t *testing.T) {
	p, c, err := rawDial(t, rdmatest.New(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.say(t, word(kindData, 3))
	if err := p.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 9)); n != 3 || err != nil {
		t.Errorf("what came before: %d, %v, want 3", n, err)
	}
	if _, err = c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) || !errors.Is(err, rdmacm.ErrDisconnected) {
		t.Errorf("read: %v, want %v", err, syscall.ECONNRESET)
	}
	if _, err = c.Write(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write: %v, want %v", err, syscall.ECONNRESET)
	}
}

// A severable is a connection that can be cut off and joined again.
type severable struct {
	c, other    net.Conn
	cut, rejoin func()
}

func newSeverable(t *testing.T, cfg Config) *severable {
	t.Helper()
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	l := listen(t, b)
	defer l.Close()
	c, other := join(t, &Dialer{Devices: []*verbs.Device{a}, Config: cfg}, l)
	return &severable{c, other, func() { n.Partition(a, b) }, func() { n.Heal(a, b) }}
}

func TestPeerVanishes(t *testing.T) {
	for _, period := range []time.Duration{0, -1} { // by default, and when SetKeepAlive turns it on
		synctest.Test(t, func(t *testing.T) {
			s := newSeverable(t, Config{KeepAlive: period})
			c, other := s.c, s.other
			if period < 0 {
				if err := c.(*Conn).SetKeepAlive(true); err != nil {
					t.Error(err)
				}
			}
			s.cut()
			start := time.Now()
			c.SetReadDeadline(start.Add(time.Hour))
			_, err := c.Read(make([]byte, 1))
			var ne net.Error
			if !errors.Is(err, syscall.ETIMEDOUT) || !errors.As(err, &ne) || !ne.Timeout() {
				t.Errorf("got error %v, want %v", err, syscall.ETIMEDOUT)
			}
			if d := time.Since(start); d < DefaultKeepAlive || d > DefaultKeepAlive+5*time.Second {
				t.Errorf("the peer was missed after %v, want %v and the retries", d, DefaultKeepAlive)
			}
			c.Close()
			other.Close()
		})
	}
}

// Close waits as long as SetLinger says, and then drops the bytes that have not arrived. By default it waits for a
// moment, and sending goes on behind it.
func TestLinger(t *testing.T) {
	const away = 500 * time.Millisecond // less than the retries last
	for _, tt := range []struct {
		sec         int
		least, most time.Duration
		arrives     bool
	}{
		{-1, closeWait, closeWait, true},
		{0, 0, closeWait, false},
		{9, away, 2 * away, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSeverable(t, Config{})
			defer s.other.Close()
			if err := s.c.(*Conn).SetLinger(tt.sec); err != nil {
				t.Fatal(err)
			}
			s.cut()
			if _, err := s.c.Write([]byte("end")); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(away, s.rejoin)
			start := time.Now()
			if err := s.c.Close(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < tt.least || took > tt.most {
				t.Errorf("SetLinger(%d): Close took %v, want %v to %v", tt.sec, took, tt.least, tt.most)
			}
			if n, err := s.other.Read(make([]byte, 9)); (n == 3) != tt.arrives {
				t.Errorf("SetLinger(%d): %d bytes have arrived, error %v; want what was written: %v", tt.sec, n, err, tt.arrives)
			}
		})
	}
}

// The bytes that a peer may write are counted over its messages, and those that it is granted over the messages that
// grant them.
func TestGrants(t *testing.T) {
	_, c, err := rawDial(t, rdmatest.New(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range []uint32{1, DefaultBuffer - 1} {
		if err := c.receive(kindData, n); err != nil {
			t.Fatalf("%d bytes of the ring: %v", n, err)
		}
	}
	if err := c.receive(kindData, 1); !errors.Is(err, errProtocol) {
		t.Errorf("a byte more than the ring: error %v, want %v", err, errProtocol)
	}
	// No grant leaves while the memory of the messages that tell of grants is in use, and none goes to who has ended.
	half := len(c.inRing) / 2
	for name, prevent := range map[string]func(){
		"all messages are under way": func() { c.controls = 0 },
		"this end is closed":         func() { c.closed = true },
		"the peer has ended":         func() { c.peerShut = true },
		"the connection has failed":  func() { c.err = io.ErrUnexpectedEOF },
	} {
		before := c.state
		c.freed, c.granted = half, 0
		prevent()
		c.grant()
		if c.granted != 0 {
			t.Errorf("%s: %d bytes are granted, want none", name, c.granted)
		}
		c.state = before
	}
	c.freed, c.granted = half, 0
	if c.grant(); c.granted != half || c.controls != controls-1 {
		t.Errorf("%d bytes are granted, and %d more messages may go; want %d and %d", c.granted, c.controls, half, controls-1)
	}
}

// The first half of a ring that is granted anew stands in entry 1 of the target SGL, and the next in entry 0: the
// targets that the ends told each other at first count as entry 0.
func TestTargets(t *testing.T) {
	p, c, err := rawDial(t, rdmatest.New(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	half := len(c.inRing) / 2
	for i, entry := range []int{1, 0, 1} {
		c.freed = half
		c.grant()
		ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
		var wcs [1]verbs.WC
		_, err := p.RecvCQ().Wait(ctx, wcs[:])
		cancel()
		if err != nil || wcs[0].Err() != nil {
			t.Fatal(err, wcs[0].Err())
		}
		if e := loadSGE(p.ring, entry*sgeSize); int(e.length) != half || e.remote != c.in.Remote(c.inStart+i%2*half) {
			t.Errorf("grant %d: entry %d is %+v, want %d bytes from %+v on", i, entry, e, half, c.in.Remote(c.inStart+i%2*half))
		}
		p.ring.Store64(entry*sgeSize+8, 0) // as who takes it does
	}
	for i, entry := range []int{1, 0, 1} {
		want := extent{verbs.RemoteAddr{VA: uint64(1 + i), RKey: 7}, 100}
		putSGE(c.in.Bytes()[entry*sgeSize:], order(false), want)
		c.target = extent{}
		if c.takeTarget(); c.target != want {
			t.Errorf("target %d is %+v, want %+v of entry %d", i, c.target, want, entry)
		}
		if c.target = (extent{}); loadSGE(c.in, entry*sgeSize).length != 0 {
			t.Errorf("entry %d is there still, want it taken", entry)
		}
	}
}

// A peer may have more targets than two. Its iomap stands behind them.
func TestMoreTargets(t *testing.T) {
	p, c, err := rawDialTargets(t, rdmatest.New(t), nil, 3)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	for _, next := range []int{2, 0, 1} {
		c.freed = len(c.inRing) / 2
		if c.grant(); c.peerEntry != next {
			t.Errorf("the next grant is entry %d, want %d", c.peerEntry, next)
		}
	}
	c.mu.Unlock()
	if _, err := c.Map(100, 77); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	for range 4 { // the grants, and the word of the mapping
		var wcs [1]verbs.WC
		if _, err := p.RecvCQ().Wait(ctx, wcs[:]); err != nil {
			t.Fatal(err)
		}
	}
	if at := loadWord(p.ring, 3*sgeSize); at != 77 {
		t.Errorf("behind the targets stands a mapping of offset %d, want 77", at)
	}
}

// A peer may say that its memory is as long as the protocol has words for: more than an int of 32 bits counts.
func TestHugeExtents(t *testing.T) {
	const huge = 1<<32 - 1
	p, c, err := rawDialSetup(t, rdmatest.New(t), func(ring *verbs.MR) []byte {
		return appendHello(nil, &parameters{credits: 10, sgl: extent{ring.Remote(0), maxSGL}, data: extent{ring.Remote(4096), huge}})
	})
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	// The entries that the peer may write here: a target, and an entry of the iomap, for which a Conn has room anyway.
	putSGE(c.in.Bytes()[c.next*sgeSize:], binary.LittleEndian, extent{p.ring.Remote(4096), 1 << 31})
	putIomap(c.in.Bytes()[sglSize*sgeSize:], binary.LittleEndian, 5, extent{p.ring.Remote(0), 1 << 31})
	c.cfg.Maps = 1
	c.mu.Unlock()
	for i, want := range []uint32{huge - 100, 1<<31 - 100} {
		if n, err := c.Write(make([]byte, 100)); n != 100 || err != nil {
			t.Errorf("write to target %d: %d, %v, want all 100 bytes written", i, n, err)
		}
		c.mu.Lock()
		if c.target.length != want {
			t.Errorf("target %d has %d bytes left, want %d", i, c.target.length, want)
		}
		c.target.length = 0 // as if it were full
		c.mu.Unlock()
	}
	if n, err := c.WriteAt(make([]byte, 100), 5); n != 100 || err != nil {
		t.Errorf("write at an offset: %d, %v, want all 100 bytes written", n, err)
	}
}

// Each side is woken by the event for which it waits, though no other event for which it might wait has come.
func TestWakes(t *testing.T) {
	for name, tt := range map[string]struct {
		side func(*Conn) *side
		ready
		come func(*Conn)
	}{
		"data":                    {func(c *Conn) *side { return &c.r }, (*Conn).canRead, func(c *Conn) { c.unread = 1 }},
		"room for a message":      {func(c *Conn) *side { return &c.w }, (*Conn).canWrite, func(c *Conn) { c.wrs, c.limit = c.wrsDone, c.sent+1 }},
		"room for WriteAt":        {func(c *Conn) *side { return &c.w }, (*Conn).canPlace, func(c *Conn) { c.wrs = c.wrsDone }},
		"room for the word of it": {func(c *Conn) *side { return &c.w }, (*Conn).canAnnounce, func(c *Conn) { c.controls, c.limit = 1, c.sent+1 }},
		"room for the last word":  {func(c *Conn) *side { return &c.f }, (*Conn).canControl, func(c *Conn) { c.controls = 1 }},
		"all has arrived":         {func(c *Conn) *side { return &c.f }, (*Conn).allSent, func(c *Conn) { c.lastDone = true }},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, c, err := rawDial(t, rdmatest.New(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			c.mu.Lock()
			before := c.state
			c.want, c.wrs, c.limit, c.controls = 1, c.wrsDone+uint32(c.cfg.Depth), c.sent, 0
			c.mu.Unlock()
			woken := false
			go func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				if err := c.await(tt.side(c), tt.ready); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				woken = true
			}()
			synctest.Wait()
			c.mu.Lock()
			if woken {
				t.Errorf("%s: the side does not wait, want it to", name)
			}
			tt.come(c)
			c.progress() // by another side, which had the event
			c.mu.Unlock()
			synctest.Wait()
			c.mu.Lock()
			if !woken {
				t.Errorf("%s: the side sleeps, want it to be woken", name)
				c.fail(net.ErrClosed)
				c.progress()
			}
			before.err = c.err
			c.state = before
			c.mu.Unlock()
		})
	}
}

// No more messages are under way than the send queue has places for beside those of our own.
func TestDepth(t *testing.T) {
	_, c, err := rawDial(t, rdmatest.New(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, done := range []uint32{0, wrMask - 3} { // and where the count wraps around
		for under, want := range map[uint32]bool{0: true, uint32(c.cfg.Depth) - 1: true, uint32(c.cfg.Depth): false} {
			c.wrsDone, c.wrs = done, (done+under)&wrMask
			write, err := c.canWrite()
			place, perr := c.canPlace()
			if write != want || place != want || err != nil || perr != nil {
				t.Errorf("with %d of %d under way: may write %v, may place %v, errors %v and %v; want %v", under, c.cfg.Depth, write, place, err, perr, want)
			}
		}
	}
	c.wrs, c.wrsDone = 0, 0
	sent := c.sent
	c.sent = c.limit
	if ok, err := c.canAnnounce(); ok || err != nil {
		t.Errorf("a mapping may be told of though the peer takes no message: %v, error %v; want it to wait", ok, err)
	}
	c.sent = sent
}

// The peer takes as many messages as it says, and not as many as this end takes.
func TestPeerDepth(t *testing.T) {
	c, other := joinWith(t, Config{Depth: 2 * DefaultDepth})
	for x, want := range map[*Conn]uint16{c: DefaultDepth, other: 2 * DefaultDepth} {
		x.mu.Lock()
		if got := x.limit - x.sent; got != want {
			t.Errorf("with a depth of %d: %d messages may go, want %d", x.cfg.Depth, got, want)
		}
		x.mu.Unlock()
	}
}

// The numbers of messages and of bytes wrap around.
func TestWrapAround(t *testing.T) {
	from, to := joinWith(t, Config{})
	const messages, size = 4 * DefaultDepth, 100
	for _, x := range []*Conn{from, to} {
		x.mu.Lock()
		x.sent, x.limit, x.received, x.creditsAt = x.sent-messages/2, x.limit-messages/2, x.received-messages/2, x.creditsAt-messages/2
		x.posted, x.done = x.posted-messages/2*size, x.done-messages/2*size
		x.mu.Unlock()
	}
	if err := from.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := to.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(to, make([]byte, messages*size))
		read <- err
	}()
	for i := range messages {
		if _, err := from.Write(make([]byte, size)); err != nil {
			t.Fatalf("message %d of %d: error %v, want none", i, messages, err)
		}
	}
	if err := <-read; err != nil {
		t.Errorf("to read all of it: error %v, want none", err)
	}
}

// CloseRead wakes a Read that sleeps. Nothing else would, while the peer says nothing.
func TestCloseReadWakes(t *testing.T) {
	x, _ := joinWith(t, Config{})
	if err := x.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := x.Read(make([]byte, 1))
		read <- err
	}()
	for sleeps := false; !sleeps && !x.r.deadline.over.Load(); runtime.Gosched() {
		x.mu.Lock()
		sleeps = x.r.sleeps != nil
		x.mu.Unlock()
	}
	if err := x.CloseRead(); err != nil {
		t.Error(err)
	}
	if err := <-read; err != io.EOF || x.r.deadline.over.Load() {
		t.Errorf("a Read that slept: error %v, over its deadline: %v; want %v, and at once", err, x.r.deadline.over.Load(), io.EOF)
	}
}

// Word of a mapping is a message too: the peer counts it, and grants another.
func TestManyMaps(t *testing.T) {
	c, x := joinWith(t, Config{Maps: 1, Depth: minDepth})
	go io.Copy(io.Discard, c) // so that the end that takes mappings looks
	if err := x.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 * minDepth {
		m, err := x.Map(8, 0)
		if err != nil {
			t.Fatalf("mapping %d, where the peer takes %d messages at a time: error %v, want none", i, minDepth, err)
		}
		m.Close()
	}
}

// A timer that fires late does not end a deadline that was moved.
func TestLateTimer(t *testing.T) {
	var d deadline
	d.set(time.Now().Add(time.Hour))
	if d.fire(); d.over.Load() {
		t.Error("the deadline has passed, want it in an hour")
	}
	d.set(time.Time{})
}

// TestShortRing: bytes that fill a short ring go in several messages, so that the next is copied while one is on its
// way.
func TestShortRing(t *testing.T) {
	const ring = 64 << 10
	x, y := joinWith(t, Config{SendBuffer: ring})
	for _, tt := range []struct{ bytes, messages uint32 }{{ring, 4}, {ring / 4, 1}, {ring/4 + 1, 2}} {
		before := x.wrs
		if _, err := x.Write(make([]byte, tt.bytes)); err != nil {
			t.Fatal(err)
		}
		if n := (x.wrs - before) & wrMask; n != tt.messages {
			t.Errorf("%d bytes by a ring of %d went in %d messages, want %d", tt.bytes, ring, n, tt.messages)
		}
		if _, err := io.ReadFull(y, make([]byte, tt.bytes)); err != nil {
			t.Fatal(err)
		}
	}
}
