package udp_test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/trace"
	"github.com/adverb-rdma/adverb/internal/link/udp"
)

// loopback finds the interface.
func loopback(t testing.TB) *udp.Netdev {
	t.Helper()
	devs, err := udp.Netdevs()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devs {
		s, err := d.State()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range s.Addrs {
			if a.IsLoopback() {
				return d
			}
		}
	}
	t.Skip("no loopback interface with an address")
	return nil
}

// testAddr returns a loopback address that only this process uses. The tests of several packages
// run at the same time, and only one of them can have UDP port 4791 of an address.
func testAddr(n byte) netip.Addr {
	if runtime.GOOS != "linux" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 64 | byte(pid>>8)&63, byte(pid), n})
}

func open(t testing.TB, addr netip.Addr) link.Link {
	t.Helper()
	l, err := loopback(t).Open(addr)
	if errors.Is(err, syscall.EADDRINUSE) && addr == netip.IPv6Loopback() {
		t.Skip(err) // there is only one IPv6 loopback address
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func openPair(t testing.TB) (a, b link.Link) {
	a = open(t, testAddr(1))
	if testAddr(2) == testAddr(1) {
		return a, a
	}
	return a, open(t, testAddr(2))
}

func openIPv6(t testing.TB) (a, b link.Link) {
	linktest.OwnLoopback(t)
	d := loopback(t)
	if s, err := d.State(); err != nil {
		t.Fatal(err)
	} else if !strings.Contains(strings.Join(texts(s.Addrs), " "), "::1") {
		t.Skip("no IPv6 on loopback")
	}
	a = open(t, netip.IPv6Loopback())
	return a, a
}

func texts(addrs []netip.Addr) (s []string) {
	for _, a := range addrs {
		s = append(s, a.String())
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Run("IPv4", func(t *testing.T) {
		linktest.Run(t, func(t *testing.T) (a, b link.Link) { return openPair(t) })
	})
	t.Run("IPv6", func(t *testing.T) {
		linktest.Run(t, func(t *testing.T) (a, b link.Link) { return openIPv6(t) })
	})
}

// Middleware in front of real sockets.
func TestConformanceStack(t *testing.T) {
	linktest.Run(t, func(t *testing.T) (a, b link.Link) {
		w, err := pcap.New(io.Discard, pcap.Options{})
		if err != nil {
			t.Fatal(err)
		}
		a, b = openPair(t)
		stack := []link.Middleware{trace.New(time.Now(), trace.ToWriter(io.Discard, "dev")), w.Middleware(), fault.New(fault.Config{})}
		if a == b {
			a = link.Chain(a, stack...)
			return a, a
		}
		return link.Chain(a, stack...), link.Chain(b, stack...)
	})
}

func TestOpenErrors(t *testing.T) {
	dev := loopback(t)
	addr := testAddr(1)
	open(t, addr)
	_, err := dev.Open(addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("Open of an address in use: %v, want EADDRINUSE", err)
	}
	for _, want := range []string{addr.String(), "4791", "another process", "rdma_rxe"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Open of an address in use: %v: does not mention %q, want it named", err, want)
		}
	}
	strange := netip.MustParseAddr("198.51.100.77")
	if _, err := dev.Open(strange); err == nil || !strings.Contains(err.Error(), "does not have this address") {
		t.Errorf("Open of an address of nobody's: %v, want an error that says so", err)
	}
	if _, err := udp.NetdevForAddr(dev.Name(), strange); err == nil {
		t.Error("NetdevForAddr took an address of nobody's")
	}
	if _, err := udp.OpenNetdev("no-such-interface"); err == nil || !strings.Contains(err.Error(), dev.Name()) {
		t.Errorf("OpenNetdev of an unknown name: %v, want the names that there are", err)
	}
}

func TestNetdevForAddr(t *testing.T) {
	dev := loopback(t)
	addr := testAddr(9)
	one, err := udp.NetdevForAddr(dev.Name(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	s, err := one.State()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Addrs) != 1 || s.Addrs[0] != addr || !s.Up || s.MTU <= 0 || s.Index <= 0 {
		t.Errorf("state %+v; want up, with the address %v only", s, addr)
	}
	l, err := one.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if want := netip.AddrPortFrom(addr, link.Port); l.Addr() != want {
		t.Errorf("Addr = %v, want %v", l.Addr(), want)
	}
	if other := netip.AddrFrom4([4]byte{127, 0, 0, 1}); other != addr {
		if l, err := one.Open(other); err == nil {
			l.Close()
			t.Errorf("a netdev restricted to %v opened %v, want an error", addr, other)
		}
	}
}

func TestClosedNetdev(t *testing.T) {
	for _, watched := range []bool{false, true} {
		d := loopback(t)
		if watched {
			d.Changed()
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // one value may be pending
			select {
			case <-d.Changed():
			case <-time.After(linktest.Patience):
				t.Fatal("Changed is not closed by Close")
			}
		}
		if d.Close() == nil {
			t.Error("a second Close succeeded")
		}
	}
}

func TestWrongSource(t *testing.T) {
	a, b := openPair(t)
	if err := a.Send([]link.Datagram{{Src: netip.AddrPortFrom(a.Addr().Addr(), 1), Dst: b.Addr(), Payload: make([]byte, 20)}}); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats(); s.SendErrors != 1 || s.LastSendError == nil || !strings.Contains(s.LastSendError.Error(), b.Addr().String()) {
		t.Errorf("SendErrors = %d, LastSendError = %v; want 1, and the destination named", s.SendErrors, s.LastSendError)
	}
}

// BenchmarkPingPong bounces a datagram between two goroutines that poll busily. ns/op is a round
// trip, ns/one-way half of it.
func BenchmarkPingPong(b *testing.B) {
	x, y := openPair(b)
	if x == y {
		b.Skip("needs two addresses")
	}
	const maxPolls = 100e6 // some ten seconds; a datagram must have been lost
	pong := make(chan struct{})
	go func() {
		defer close(pong)
		in := make([]link.Datagram, 8)
		out := []link.Datagram{{Src: y.Source(0), Dst: x.Addr(), Payload: make([]byte, 64)}}
		for {
			n, err := y.Recv(in)
			if err != nil {
				return
			}
			if n > 0 {
				y.Send(out)
			}
		}
	}()
	in := make([]link.Datagram, 8)
	out := []link.Datagram{{Src: x.Source(0), Dst: y.Addr(), Payload: make([]byte, 64)}}
	b.ReportAllocs()
	for b.Loop() {
		x.Send(out)
		for polls := 0; ; polls++ {
			if n, err := x.Recv(in); err != nil {
				b.Fatal(err)
			} else if n > 0 {
				break
			}
			if polls == maxPolls {
				b.Fatalf("%d polls find no answer, want it found", polls)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/one-way")
	y.Close()
	<-pong
}

// BenchmarkPingPongWait does the same, but both goroutines sleep in Wait between datagrams.
func BenchmarkPingPongWait(b *testing.B) {
	x, y := openPair(b)
	if x == y {
		b.Skip("needs two addresses")
	}
	next := func(l link.Link, in []link.Datagram) error {
		for deadline := time.Now().Add(linktest.Patience); ; {
			if n, err := l.Recv(in); n > 0 || err != nil {
				return err
			}
			if err := l.Wait(linktest.Patience); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("nothing arrived within %v", linktest.Patience)
			}
		}
	}
	pong := make(chan struct{})
	go func() {
		defer close(pong)
		in := make([]link.Datagram, 8)
		out := []link.Datagram{{Src: y.Source(0), Dst: x.Addr(), Payload: make([]byte, 64)}}
		for next(y, in) == nil {
			y.Send(out)
		}
	}()
	in := make([]link.Datagram, 8)
	out := []link.Datagram{{Src: x.Source(0), Dst: y.Addr(), Payload: make([]byte, 64)}}
	b.ReportAllocs()
	for b.Loop() {
		x.Send(out)
		if err := next(x, in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/one-way")
	y.Close()
	<-pong
}

// BenchmarkBatch sends batches of 32 and receives them, in one goroutine. It shows the cost of the system calls for
// each packet.
func BenchmarkBatch(b *testing.B) {
	x, y := openPair(b)
	const n, size = 32, 4096
	out := make([]link.Datagram, n)
	for i := range out {
		out[i] = link.Datagram{Src: x.Source(0), Dst: y.Addr(), Payload: make([]byte, size)}
	}
	in := make([]link.Datagram, n)
	b.SetBytes(n * size)
	b.ReportAllocs()
	for b.Loop() {
		x.Send(out)
		for got := 0; got < n; {
			k, err := y.Recv(in)
			if err != nil {
				b.Fatal(err)
			}
			got += k
		}
	}
}
