// Package linktest is the conformance suite of link.Link. It tests the contract of every link, however the link
// carries datagrams.
package linktest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

const (
	// Patience is how long the suite waits for something that must happen soon.
	Patience = 10 * time.Second

	// maxPayload is the length of the largest datagram that a link must carry. 4096 bytes with the
	// longest headers and the ICRC are less.
	maxPayload = 4096 + 100

	batchSize = 32
)

// Run runs the suite. Open returns two links that reach each other and lose nothing, or the same
// link twice. Run closes them.
func Run(t *testing.T, open func(t *testing.T) (a, b link.Link)) {
	for _, c := range []struct {
		name string
		f    func(t *testing.T, a, b link.Link)
	}{
		{"Source", testSource},
		{"Integrity", testIntegrity},
		{"Order", testOrder},
		{"BothWays", testBothWays},
		{"Train", testTrain},
		{"TooLong", testTooLong},
		{"RecvEmpty", testRecvEmpty},
		{"WaitTimeout", testWaitTimeout},
		{"WaitArrived", testWaitArrived},
		{"WaitArriving", testWaitArriving},
		{"WakeBeforeWait", testWakeBeforeWait},
		{"WakeDuringWait", testWakeDuringWait},
		{"CloseDuringWait", testCloseDuringWait},
		{"Closed", testClosed},
		{"ConcurrentSend", testConcurrentSend},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t)
			defer closeAll(t, a, b)
			c.f(t, a, b)
		})
	}
}

// Allocs checks that neither Send nor Recv allocates once they have warmed up.
func Allocs(t *testing.T, open func(t *testing.T) (a, b link.Link)) {
	a, b := open(t)
	defer closeAll(t, a, b)
	checkAllocs(t, a, b, b.Addr())
}

// checkAllocs checks that a's Send to dst and b's Recv of it do not allocate.
func checkAllocs(t *testing.T, a, b link.Link, dst netip.AddrPort) {
	out := make([]link.Datagram, 8)
	for i := range out {
		out[i] = link.Datagram{Src: a.Source(uint32(i / 4)), Dst: dst, Payload: make([]byte, 1024)}
	}
	in := make([]link.Datagram, batchSize)
	round := func() {
		if err := a.Send(out); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(Patience)
		for got := 0; got < len(out); {
			n, err := b.Recv(in)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 && time.Now().After(deadline) {
				t.Fatalf("%d datagrams arrived within %v, want %d", got, Patience, len(out))
			}
			if n == 0 {
				runtime.Gosched() // AllocsPerRun leaves one processor, which timers and readers need too
			}
			got += n
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("Send and Recv of %d datagrams allocate %v times, want 0", len(out), n)
	}
}

func closeAll(t *testing.T, links ...link.Link) {
	for _, l := range links {
		if err := l.Close(); err != nil && !errors.Is(err, link.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	}
}

// A message is a datagram that collect has copied.
type message struct {
	link.Datagram
	payload []byte
}

// collect receives n datagrams. Those of a train count one by one.
func collect(t *testing.T, l link.Link, n int) []message {
	t.Helper()
	var got []message
	batch := make([]link.Datagram, batchSize)
	deadline := time.Now().Add(Patience)
	for len(got) < n {
		k, err := l.Recv(batch)
		if err != nil {
			t.Fatalf("Recv: %v", err)
		}
		for i := range batch[:k] {
			d := &batch[i]
			for s := range d.Segments() {
				m := message{*d, bytes.Clone(d.Segment(s))}
				m.ID += uint16(s)
				got = append(got, m)
			}
		}
		if k > 0 {
			continue
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d datagrams arrived within %v, want %d; stats %+v", len(got), Patience, n, l.Stats())
		}
		if err := l.Wait(Patience); err != nil {
			t.Fatalf("Wait: %v", err)
		}
	}
	if len(got) > n {
		t.Fatalf("%d datagrams arrived, want %d", len(got), n)
	}
	return got
}

func send(t *testing.T, l link.Link, batch ...link.Datagram) {
	t.Helper()
	if err := l.Send(batch); err != nil {
		t.Fatalf("Send: %v", err)
	}
	if s := l.Stats(); s.SendErrors != 0 {
		t.Fatalf("Send: %d datagrams were lost, the latest for: %v", s.SendErrors, s.LastSendError)
	}
}

func pattern(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	p := make([]byte, n)
	r.Read(p)
	return p
}

// soon runs f on a goroutine and fails unless it returns within Patience.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(Patience):
		t.Fatalf("%s did not return within %v", what, Patience)
	}
}

func testSource(t *testing.T, a, b link.Link) {
	v1 := link.IsV1(a.Addr().Addr()) // which has no ports
	if port := link.PortOf(a.Addr().Addr()); a.Addr().Port() != port {
		t.Errorf("Addr = %v, want port %d", a.Addr(), port)
	}
	ports := make(map[uint16]bool)
	for flow := range uint32(64) {
		src := a.Source(flow)
		if again := a.Source(flow); again != src {
			t.Fatalf("Source(%d) = %v, then %v; want the same", flow, src, again)
		}
		if src.Addr() != a.Addr().Addr() || (src.Port() == link.PortV1) != v1 {
			t.Fatalf("Source(%d) = %v, want a port of %v", flow, src, a.Addr().Addr())
		}
		ports[src.Port()] = true
	}
	if len(ports) < 2 && !v1 {
		t.Errorf("64 flows have %d source ports, want several", len(ports))
	}
	for flow := range uint32(8) {
		send(t, a, link.Datagram{Src: a.Source(flow), Dst: b.Addr(), Payload: pattern(1, 64)})
		if got := collect(t, b, 1)[0]; got.Src != a.Source(flow) {
			t.Errorf("flow %d arrived from %v, want Source(%d) = %v", flow, got.Src, flow, a.Source(flow))
		} else if got.Dst != b.Addr() {
			t.Errorf("a datagram arrived as one to %v, want to %v", got.Dst, b.Addr())
		}
	}
}

func testIntegrity(t *testing.T, a, b link.Link) {
	for i, size := range []int{16, 17, 20, 280, 1024 + 16, 1500, 2048 + 32, 4096, maxPayload - 1, maxPayload, 60} {
		want := pattern(uint64(i), size)
		tc := uint8(0)
		if i%2 == 1 {
			tc = 0x68 // DSCP 26
		}
		send(t, a, link.Datagram{Src: a.Source(7), Dst: b.Addr(), Payload: want, TrafficClass: tc})
		got := collect(t, b, 1)[0]
		if !bytes.Equal(got.payload, want) {
			t.Errorf("%d bytes did not arrive as they were sent", size)
		}
		if got.IDKnown && got.ID != 0 {
			t.Errorf("identification %d, want 0", got.ID)
		}
	}
}

func testOrder(t *testing.T, a, b link.Link) {
	const rounds, perRound = 40, 24
	sentBefore, receivedBefore := a.Stats(), b.Stats()
	next := 0
	for range rounds {
		batch := make([]link.Datagram, perRound)
		for i := range batch {
			batch[i] = link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: fmt.Appendf(nil, "datagram %06d", next+i)}
		}
		send(t, a, batch...)
		for i, m := range collect(t, b, perRound) {
			if want := fmt.Sprintf("datagram %06d", next+i); string(m.payload) != want {
				t.Fatalf("%q arrived, want %q", m.payload, want)
			}
		}
		next += perRound
	}
	sent, received := a.Stats(), b.Stats()
	wantBytes := uint64(next * len("datagram 000000"))
	if n := sent.Sent - sentBefore.Sent; n != uint64(next) {
		t.Errorf("Stats.Sent grew by %d, want %d", n, next)
	}
	if n := sent.SentBytes - sentBefore.SentBytes; n != wantBytes {
		t.Errorf("Stats.SentBytes grew by %d, want %d", n, wantBytes)
	}
	if n := received.Received - receivedBefore.Received; n != uint64(next) {
		t.Errorf("Stats.Received grew by %d, want %d", n, next)
	}
	if n := received.ReceivedBytes - receivedBefore.ReceivedBytes; n != wantBytes {
		t.Errorf("Stats.ReceivedBytes grew by %d, want %d", n, wantBytes)
	}
}

func testBothWays(t *testing.T, a, b link.Link) {
	for i := range 20 {
		for _, way := range [][2]link.Link{{a, b}, {b, a}} {
			from, to := way[0], way[1]
			want := pattern(uint64(i), 100+i)
			send(t, from, link.Datagram{Src: from.Source(uint32(i)), Dst: to.Addr(), Payload: want})
			got := collect(t, to, 1)[0]
			if !bytes.Equal(got.payload, want) || got.Src != from.Source(uint32(i)) {
				t.Fatalf("round %d: %d bytes from %v arrived, want %d from %v", i, len(got.payload), got.Src, len(want), from.Source(uint32(i)))
			}
		}
	}
}

func testTrain(t *testing.T, a, b link.Link) {
	for n := 1; n <= a.MaxTrain(); n *= 2 {
		const size = 1000 // bytes: an IP packet has room for 64
		whole := pattern(uint64(n), n*size-10)
		send(t, a, link.Datagram{Src: a.Source(3), Dst: b.Addr(), Payload: whole, SegmentSize: size})
		for i, m := range collect(t, b, n) {
			if want := whole[i*size : min((i+1)*size, len(whole))]; !bytes.Equal(m.payload, want) {
				t.Fatalf("segment %d of a train of %d did not arrive as it was sent", i, n)
			}
			if m.IDKnown && m.ID != uint16(i) {
				t.Errorf("segment %d of a train has identification %d, want %[1]d", i, m.ID)
			}
		}
	}
	n := a.MaxTrain() + 1
	if err := a.Send([]link.Datagram{{Src: a.Source(3), Dst: b.Addr(), Payload: make([]byte, 100*n), SegmentSize: 100}}); err != nil {
		t.Fatalf("Send of a train longer than MaxTrain: %v, want it counted as lost", err)
	}
	if s := a.Stats(); s.SendErrors != uint64(n) || s.LastSendError == nil {
		t.Errorf("after a train of %d, longer than MaxTrain: SendErrors = %d, LastSendError = %v; want %[1]d and the cause", n, s.SendErrors, s.LastSendError)
	}
}

func testTooLong(t *testing.T, a, b link.Link) {
	long := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: make([]byte, 1<<16)}
	good := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("the one after")}
	if err := a.Send([]link.Datagram{long, good}); err != nil {
		t.Fatalf("Send of 64 KiB: %v, want it counted as lost", err)
	}
	if got := collect(t, b, 1)[0]; string(got.payload) != "the one after" {
		t.Errorf("%d bytes arrived, want the datagram after the one that was too long", len(got.payload))
	}
	if s := a.Stats(); s.SendErrors != 1 || s.LastSendError == nil {
		t.Errorf("SendErrors = %d, LastSendError = %v; want 1 and the cause", s.SendErrors, s.LastSendError)
	}
}

func testRecvEmpty(t *testing.T, a, b link.Link) {
	soon(t, "Recv of nothing", func() {
		if n, err := b.Recv(make([]link.Datagram, 4)); n != 0 || err != nil {
			t.Errorf("Recv = %d, %v; want 0, nil", n, err)
		}
	})
}

func testWaitTimeout(t *testing.T, a, b link.Link) {
	soon(t, "Wait(1ms)", func() {
		for _, d := range []time.Duration{0, time.Millisecond, time.Nanosecond} {
			if err := b.Wait(d); err != nil {
				t.Errorf("Wait(%v): %v", d, err)
			}
		}
	})
}

func testWaitArrived(t *testing.T, a, b link.Link) {
	send(t, a, link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: pattern(1, 64)})
	soon(t, "Wait for a sent datagram", func() {
		if err := b.Wait(-1); err != nil {
			t.Errorf("Wait: %v", err)
		}
	})
	collect(t, b, 1)
}

func testWaitArriving(t *testing.T, a, b link.Link) {
	for i := range 200 {
		got := make(chan []byte)
		go func() {
			batch := make([]link.Datagram, 1)
			for {
				if n, err := b.Recv(batch); err != nil {
					close(got)
					return
				} else if n > 0 {
					got <- bytes.Clone(batch[0].Payload)
					return
				}
				if err := b.Wait(-1); err != nil {
					close(got)
					return
				}
			}
		}()
		send(t, a, link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: pattern(uint64(i), 64)})
		select {
		case p := <-got:
			if !bytes.Equal(p, pattern(uint64(i), 64)) {
				t.Fatalf("round %d: datagram did not arrive as it was sent", i)
			}
		case <-time.After(Patience):
			t.Fatalf("round %d: Wait slept on after a datagram had arrived", i)
		}
	}
}

func testWakeBeforeWait(t *testing.T, a, b link.Link) {
	for range 50 {
		b.Wake()
		soon(t, "Wait after Wake", func() {
			if err := b.Wait(-1); err != nil {
				t.Errorf("Wait: %v", err)
			}
		})
	}
}

func testWakeDuringWait(t *testing.T, a, b link.Link) {
	for range 200 {
		done := make(chan error)
		go func() { done <- b.Wait(-1) }()
		b.Wake()
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("Wait: %v", err)
			}
		case <-time.After(Patience):
			t.Fatal("Wake did not end Wait")
		}
	}
}

func testCloseDuringWait(t *testing.T, a, b link.Link) {
	done := make(chan error)
	go func() {
		for {
			if err := b.Wait(-1); err != nil { // Wait may return nil first, because it may return early
				done <- err
				return
			}
		}
	}()
	if err := b.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, link.ErrClosed) {
			t.Errorf("Wait during Close: %v, want %v", err, link.ErrClosed)
		}
	case <-time.After(Patience):
		t.Fatal("Close did not end Wait")
	}
}

func testClosed(t *testing.T, a, b link.Link) {
	peer := b.Addr()
	if err := a.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	soon(t, "a method of a closed link", func() {
		a.Wake()
		_ = a.Stats()
		_, recvErr := a.Recv(make([]link.Datagram, 1))
		for _, c := range []struct {
			name string
			err  error
		}{
			{"Send", a.Send([]link.Datagram{{Src: a.Source(1), Dst: peer, Payload: make([]byte, 64)}})},
			{"Recv", recvErr},
			{"Wait", a.Wait(-1)},
			{"Wait", a.Wait(time.Millisecond)},
			{"Close", a.Close()},
		} {
			if !errors.Is(c.err, link.ErrClosed) {
				t.Errorf("%s of a closed link: %v, want %v", c.name, c.err, link.ErrClosed)
			}
		}
	})
}

func testConcurrentSend(t *testing.T, a, b link.Link) {
	const senders, each = 4, 50
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				if err := a.Send([]link.Datagram{{Src: a.Source(uint32(s)), Dst: b.Addr(), Payload: fmt.Appendf(nil, "%d %d", s, i)}}); err != nil {
					t.Errorf("Send: %v", err)
				}
				b.Wake()
				_ = a.Stats()
			}
		})
	}
	var next [senders]int
	for _, m := range collect(t, b, senders*each) {
		var s, i int
		if _, err := fmt.Sscan(string(m.payload), &s, &i); err != nil || s < 0 || s >= senders {
			t.Fatalf("%q arrived, want a sender's number below %d and the datagram's; %v", m.payload, senders, err)
		}
		if i != next[s] {
			t.Fatalf("sender %d: datagram %d arrived, want %d", s, i, next[s])
		}
		next[s]++
	}
	wg.Wait()
	if s := a.Stats(); s.SendErrors != 0 {
		t.Errorf("%d datagrams were lost, want none; the latest for: %v", s.SendErrors, s.LastSendError)
	}
}
