package linktest

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Multicast runs the conformance suite of link.Multicaster. Open is as for Run. The two groups must
// be of the links' IP version, and nobody else may use them.
func Multicast(t *testing.T, group, other netip.Addr, open func(t *testing.T) (a, b link.Link)) {
	for _, c := range []struct {
		name string
		f    func(t *testing.T, a, b link.Link, groups [2]netip.Addr)
	}{
		{"Join", testJoin},
		{"NotJoined", testNotJoined},
		{"Leave", testLeave},
		{"OtherGroup", testOtherGroup},
		{"Itself", testItself},
		{"Members", testMembers},
		{"SeveralGroups", testSeveralGroups},
		{"WaitArriving", testMulticastWait},
		{"JoinDuringWait", testJoinDuringWait},
		{"Errors", testMulticastErrors},
		{"Concurrent", testConcurrentJoins},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t)
			defer closeAll(t, a, b)
			c.f(t, a, b, [2]netip.Addr{group, other})
		})
	}
}

// MulticastAllocs is Allocs for datagrams to a group, and for datagrams to a member's own address.
func MulticastAllocs(t *testing.T, group netip.Addr, open func(t *testing.T) (a, b link.Link)) {
	a, b := open(t)
	defer closeAll(t, a, b)
	join(t, b, group)
	checkAllocs(t, a, b, at(group))
	checkAllocs(t, a, b, b.Addr())
}

func join(t *testing.T, l link.Link, group netip.Addr) {
	t.Helper()
	if err := link.Join(l, group); err != nil {
		t.Fatal(err)
	}
}

func leave(t *testing.T, l link.Link, group netip.Addr) {
	t.Helper()
	if err := link.Leave(l, group); err != nil {
		t.Fatal(err)
	}
}

func at(group netip.Addr) netip.AddrPort { return netip.AddrPortFrom(group, link.PortOf(group)) }

func testJoin(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	join(t, b, groups[0])
	for i := range 20 {
		src := a.Source(uint32(i))
		for _, dst := range []netip.AddrPort{at(groups[0]), b.Addr()} { // a member still receives datagrams to its own address
			want := fmt.Sprintf("datagram %d to %v", i, dst)
			send(t, a, link.Datagram{Src: src, Dst: dst, Payload: []byte(want), TrafficClass: uint8(i % 2 * 0x68)})
			got := collect(t, b, 1)[0]
			if string(got.payload) != want || got.Src != src || got.Dst != dst {
				t.Fatalf("%q from %v to %v arrived, want %q from %v to %v", got.payload, got.Src, got.Dst, want, src, dst)
			}
			if got.IDKnown && got.ID != 0 {
				t.Errorf("identification %d, want 0", got.ID)
			}
		}
	}
	if s := b.Stats(); s.Received != 40 {
		t.Errorf("%d datagrams were received, want 40", s.Received)
	}
	if s := a.Stats(); s.Sent != 40 {
		t.Errorf("%d datagrams were sent, want 40", s.Sent)
	}
}

// only checks that b receives the datagram that a sends to it next, and nothing else.
func only(t *testing.T, a, b link.Link, after string) {
	t.Helper()
	received := b.Stats().Received
	for i := range 3 {
		want := fmt.Sprintf("the marker %d", i)
		send(t, a, link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: []byte(want)})
		if got := collect(t, b, 1)[0]; string(got.payload) != want {
			t.Fatalf("%s: %q to %v arrived, want %q", after, got.payload, got.Dst, want)
		}
	}
	if n := b.Stats().Received - received; n != 3 {
		t.Errorf("%s: %d datagrams were received, want 3", after, n)
	}
}

func testNotJoined(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	send(t, a, link.Datagram{Src: a.Source(1), Dst: at(groups[0]), Payload: []byte("to the group")})
	only(t, a, b, "a datagram to a group not joined")
	join(t, b, groups[0])
	only(t, a, b, "a datagram from before Join")
}

func testLeave(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	early := link.Datagram{Src: a.Source(1), Dst: at(groups[0]), Payload: []byte("early")}
	for range 3 {
		join(t, b, groups[0])
		send(t, a, early)
		leave(t, b, groups[0])
		only(t, a, b, "a datagram that had arrived before Leave")
		send(t, a, early)
		only(t, a, b, "a datagram after Leave")
	}
	join(t, b, groups[0])
	send(t, a, link.Datagram{Src: a.Source(1), Dst: at(groups[0]), Payload: []byte("joined again")})
	if got := collect(t, b, 1)[0]; string(got.payload) != "joined again" {
		t.Errorf("%q arrived, want the datagram from after the second Join", got.payload)
	}
}

func testOtherGroup(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	if a == b {
		t.Skip("needs two links")
	}
	join(t, b, groups[0])
	join(t, a, groups[1]) // so that this host receives datagrams to the group
	send(t, a, link.Datagram{Src: a.Source(1), Dst: at(groups[1]), Payload: []byte("to the other group")})
	only(t, a, b, "a datagram to another group")
	if got := collect(t, a, 1)[0]; got.Dst != at(groups[1]) {
		t.Errorf("%q to %v arrived, want the datagram to %v", got.payload, got.Dst, groups[1])
	}
}

func testItself(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	join(t, a, groups[0])
	send(t, a, link.Datagram{Src: a.Source(1), Dst: at(groups[0]), Payload: []byte("to us")})
	if got := collect(t, a, 1)[0]; string(got.payload) != "to us" || got.Dst != at(groups[0]) || got.Src != a.Source(1) {
		t.Errorf("%q from %v to %v arrived, want \"to us\" from %v to %v", got.payload, got.Src, got.Dst, a.Source(1), groups[0])
	}
	only(t, b, a, "the own datagram, once")
}

func testMembers(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	if a == b {
		t.Skip("needs two links")
	}
	join(t, a, groups[0])
	join(t, b, groups[0])
	const n = 10
	for i := range n {
		send(t, a, link.Datagram{Src: a.Source(uint32(i)), Dst: at(groups[0]), Payload: pattern(uint64(i), 256)})
	}
	for name, l := range map[string]link.Link{"the sender": a, "the other member": b} {
		for i, got := range collect(t, l, n) {
			if want := pattern(uint64(i), 256); string(got.payload) != string(want) || got.Dst != at(groups[0]) {
				t.Errorf("%s: datagram %d to %v did not arrive as it was sent", name, i, got.Dst)
			}
		}
	}
	if err := a.Close(); err != nil { // this must not end the other link's membership
		t.Fatal(err)
	}
	send(t, b, link.Datagram{Src: b.Source(1), Dst: at(groups[0]), Payload: []byte("still here")})
	if got := collect(t, b, 1)[0]; string(got.payload) != "still here" {
		t.Errorf("%q arrived, want \"still here\"", got.payload)
	}
}

func testSeveralGroups(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	join(t, b, groups[0])
	join(t, b, groups[1])
	const rounds = 30
	for i := range rounds {
		for _, dst := range []netip.AddrPort{at(groups[0]), at(groups[1]), b.Addr()} {
			send(t, a, link.Datagram{Src: a.Source(1), Dst: dst, Payload: fmt.Appendf(nil, "%d", i)})
		}
	}
	next := map[netip.AddrPort]int{}
	for _, got := range collect(t, b, 3*rounds) {
		if want := fmt.Sprint(next[got.Dst]); string(got.payload) != want {
			t.Fatalf("%q to %v arrived, want %q", got.payload, got.Dst, want)
		}
		next[got.Dst]++
	}
	if len(next) != 3 {
		t.Errorf("the datagrams were to %v, want the link and both groups", next)
	}
	leave(t, b, groups[0])
	send(t, a, link.Datagram{Src: a.Source(1), Dst: at(groups[0]), Payload: []byte("left")})
	send(t, a, link.Datagram{Src: a.Source(1), Dst: at(groups[1]), Payload: []byte("still joined")})
	if got := collect(t, b, 1)[0]; string(got.payload) != "still joined" {
		t.Errorf("%q to %v arrived, want \"still joined\"", got.payload, got.Dst)
	}
}

// receiving starts a goroutine that receives, and mostly sleeps in Wait. It returns a channel of the received
// datagrams. The channel is closed when l is.
func receiving(l link.Link) <-chan string {
	got := make(chan string)
	go func() {
		defer close(got)
		batch := make([]link.Datagram, 1)
		for {
			n, err := l.Recv(batch)
			if err != nil {
				return
			}
			if n > 0 {
				got <- string(batch[0].Payload)
				continue
			}
			if l.Wait(-1) != nil {
				return
			}
		}
	}()
	return got
}

func wantNext(t *testing.T, got <-chan string, want string) {
	t.Helper()
	select {
	case s := <-got:
		if s != want {
			t.Fatalf("%q arrived, want %q", s, want)
		}
	case <-time.After(Patience):
		t.Fatalf("Wait slept on after %q had arrived", want)
	}
}

func testMulticastWait(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	join(t, b, groups[0])
	got := receiving(b)
	for i := range 200 {
		dst := at(groups[0])
		if i%3 == 0 {
			dst = b.Addr()
		}
		want := fmt.Sprint(i)
		send(t, a, link.Datagram{Src: a.Source(1), Dst: dst, Payload: []byte(want)})
		wantNext(t, got, want)
	}
}

func testJoinDuringWait(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	got := receiving(b)
	for i := range 50 {
		group := groups[i%2]
		join(t, b, group)
		want := fmt.Sprint(i)
		send(t, a, link.Datagram{Src: a.Source(1), Dst: at(group), Payload: []byte(want)})
		wantNext(t, got, want)
		leave(t, b, group)
	}
}

func testMulticastErrors(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	join(t, a, groups[0])
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"to join twice", link.Join(a, groups[0]), link.ErrJoined},
		{"to leave another group", link.Leave(a, groups[1]), link.ErrNotJoined},
		{"to leave", link.Leave(a, groups[0]), nil},
		{"to leave twice", link.Leave(a, groups[0]), link.ErrNotJoined},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
		}
	}
	strange := []netip.Addr{{}, a.Addr().Addr(), netip.MustParseAddr("::ffff:239.1.2.3")}
	if groups[0].Is4() {
		strange = append(strange, netip.MustParseAddr("ff12::1"))
	} else {
		strange = append(strange, netip.MustParseAddr("239.1.2.3"), groups[0].WithZone("lo"))
	}
	for _, g := range strange {
		if link.Join(a, g) == nil {
			t.Errorf("a link on %v joined %v, want an error", a.Addr(), g)
		}
	}
	join(t, a, groups[1])
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := link.Join(a, groups[0]); !errors.Is(err, link.ErrClosed) {
		t.Errorf("Join on a closed link: %v, want %v", err, link.ErrClosed)
	}
	if err := link.Leave(a, groups[1]); !errors.Is(err, link.ErrClosed) {
		t.Errorf("Leave on a closed link: %v, want %v", err, link.ErrClosed)
	}
}

// Links join and leave while datagrams come and go, and one is closed in the middle of it.
func testConcurrentJoins(t *testing.T, a, b link.Link, groups [2]netip.Addr) {
	var wg sync.WaitGroup
	for g := range groups {
		wg.Go(func() {
			for {
				if err := link.Join(b, groups[g]); err != nil {
					if !errors.Is(err, link.ErrClosed) {
						t.Errorf("Join: %v", err)
					}
					return
				}
				if err := link.Leave(b, groups[g]); err != nil {
					if !errors.Is(err, link.ErrClosed) {
						t.Errorf("Leave: %v", err)
					}
					return
				}
			}
		})
	}
	got := receiving(b)
	for i := range 100 {
		for _, dst := range []netip.AddrPort{at(groups[0]), at(groups[1]), b.Addr()} {
			send(t, a, link.Datagram{Src: a.Source(1), Dst: dst, Payload: fmt.Appendf(nil, "%d to %v", i, dst)})
		}
		want := fmt.Sprintf("%d to %v", i, b.Addr())
		timeout := time.After(Patience)
		for s := ""; s != want; {
			select {
			case s = <-got:
			case <-timeout:
				t.Fatalf("%q did not arrive", want)
			}
		}
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	wg.Wait()
	for range got { // until the receiving goroutine has ended
	}
}
