package probe

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// connected returns two ends that are connected.
func connected(t *testing.T) (a, b Socket) {
	t.Helper()
	var ends [2]Socket
	for i := range ends {
		s, err := Open(loopback)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		ends[i] = s
	}
	for i, s := range ends {
		if err := s.Connect(ends[1-i].Addr()); err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

func never() bool { return false }

// Messages of every kind of size arrive, far more than fit into the window. The receiver fails at any
// ICRC that is wrong.
func TestStream(t *testing.T) {
	for _, s := range []Shape{
		{64, 4096, 64 << 10, 0}, {4096, 4096, 64 << 10, 0}, {64 << 10, 4096, 64 << 10, 0}, {1 << 20, 4096, 1 << 20, 0}, {64 << 10, 1024, 64 << 10, 0},
		{64, 4096, 64 << 10, 1}, {64, 4096, 64 << 10, 5},
	} {
		a, b := connected(t)
		stop := make(chan struct{})
		sent := make(chan error)
		go func() {
			sent <- a.Stream(s, func() bool {
				select {
				case <-stop:
					return true
				default:
					return false
				}
			})
		}()
		want := int64(4 * maxWindow / s.Size)
		var got int64
		err := b.Receive(s, func(n int64) bool { got = n; return n < want }, never)
		close(stop)
		if err != nil || got < want {
			t.Errorf("%+v: got %d messages, %v, want %d", s, got, err, want)
		}
		if err := <-sent; !errors.Is(err, ErrStopped) {
			t.Errorf("%+v: the sender: got %v, want that it was stopped", s, err)
		}
	}
}

func TestBounce(t *testing.T) {
	for _, tt := range []struct {
		s     Shape
		block bool
	}{{Shape{Size: 64, PathMTU: 4096, Region: 64}, false}, {Shape{Size: 64, PathMTU: 4096, Region: 64}, true}, {Shape{Size: 4096, PathMTU: 1024, Region: 4096}, false},
		{Shape{Size: 4096, PathMTU: 1024, Region: 4096}, true}} {
		s, block := tt.s, tt.block
		a, b := connected(t)
		const want = 100
		done := make(chan struct{})
		answered := make(chan error)
		go func() {
			answered <- b.Bounce(s, false, block, nil, func() bool {
				select {
				case <-done:
					return true
				default:
					return false
				}
			})
		}()
		got := int64(0)
		if err := a.Bounce(s, true, block, func(n int64) bool { got = n; return n < want }, never); err != nil || got != want {
			t.Errorf("%+v, block %v: got %d round trips, %v, want %d", s, block, got, err, want)
		}
		close(done)
		if err := <-answered; !errors.Is(err, ErrStopped) {
			t.Errorf("%+v, block %v: the other end: got %v, want that it was stopped", s, block, err)
		}
	}
}

// A packet with wrong bytes is no measurement.
func TestDamage(t *testing.T) {
	s := Shape{Size: 64, PathMTU: 4096, Region: 64 << 10}
	for _, n := range []int{1, packetSize(64), packetSize(64) + 4} {
		_, b := connected(t)
		c, err := net.Dial("udp", b.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if err := b.Receive(s, func(int64) bool { return true }, never); !errors.Is(err, errICRC) {
			t.Errorf("%d bytes of zeros: got %v, want that the ICRC is wrong", n, err)
		}
	}
}

func TestShapes(t *testing.T) {
	a, _ := connected(t)
	for _, s := range []Shape{{}, {64, 0, 64, 0}, {100, 64, 100, 0}, {64, 4096, 100, 0}} {
		if err := a.Stream(s, never); err == nil || errors.Is(err, ErrStopped) {
			t.Errorf("%+v: got %v, want an error about the shape", s, err)
		}
		if err := a.Receive(s, nil, never); err == nil || errors.Is(err, ErrStopped) {
			t.Errorf("%+v: got %v, want an error about the shape", s, err)
		}
	}
	if err := a.Connect(netip.MustParseAddrPort("[::1]:1")); err == nil {
		t.Error("an IPv6 peer: got no error, want one")
	}
	if _, err := Open(netip.MustParseAddr("192.0.2.1")); err == nil {
		t.Error("an address of no interface: got no error, want one")
	}
}
