package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A connection begins at the address and the port that the Dialer names, and at no other. A text that is no address of a
// port is refused.
func TestLocalAddr(t *testing.T) {
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	l := listen(t, b)
	defer l.Close()
	d := Dialer{Devices: []*verbs.Device{a}, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}}
	c, other := join(t, &d, l)
	defer c.Close()
	defer other.Close()
	for _, got := range []net.Addr{c.LocalAddr(), other.RemoteAddr()} {
		if got.String() != "10.0.0.1:4711" {
			t.Errorf("the connection is from %v, want 10.0.0.1:4711", got)
		}
	}
	if _, err := d.Dial("rsocket", l.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second connection from the same port: error %v, want %v", err, syscall.EADDRINUSE)
	}
	// The port alone is of any address.
	for i, ip := range []net.IP{nil, net.IPv4zero, net.IPv6unspecified} {
		d.LocalAddr = &net.TCPAddr{IP: ip, Port: 4712 + i}
		c, other := join(t, &d, l)
		defer c.Close()
		defer other.Close()
		if got, want := other.RemoteAddr().String(), fmt.Sprint("10.0.0.1:", 4712+i); got != want {
			t.Errorf("with LocalAddr %v: the connection is from %v, want %v", d.LocalAddr, got, want)
		}
	}
	d.LocalAddr = &net.UnixAddr{Name: "x", Net: "unix"}
	var ae *net.AddrError
	if _, err := d.Dial("rsocket", l.Addr().String()); !errors.As(err, &ae) {
		t.Errorf("from a Unix address: error %v, want a *net.AddrError", err)
	}
}

// A secured end says who it is by the stream. Where the peer gives no room for that, Dial ends with its context.
func TestSecurityWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := rdmatest.New(t)
		a, b := n.Device(), n.Device()
		key := &rdmacm.Security{PSK: make([]byte, 32)}
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{b}, Security: key}).Listen(netip.MustParseAddrPort("10.0.0.2:0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			r, err := l.Accept(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			hello := make([]byte, helloSize)
			appendHello(hello[:0], &parameters{sgl: extent{length: sglSize}})
			c, err := r.Accept(t.Context(), &rdmacm.Config{PrivateData: hello})
			if err != nil {
				t.Error(err)
				return
			}
			<-c.Disconnected()
			c.Close()
		}()
		const limit = time.Second
		start := time.Now()
		d := Dialer{Devices: []*verbs.Device{a}, Config: Config{Security: key}, Timeout: limit}
		_, err = d.Dial("rsocket", l.Addr().String())
		var ne net.Error
		if took := time.Since(start); !errors.As(err, &ne) || !ne.Timeout() || took != limit {
			t.Errorf("got error %v after %v, want a timeout after %v", err, took, limit)
		}
	})
}

// An address of a host that does not answer leaves the others their share of the time. If none answers the limit holds.
func TestDialShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := rdmatest.New(t)
		a, b := n.Device(), n.Device()
		l := listen(t, b)
		defer l.Close()
		const limit = 12 * time.Second
		peer := l.Addr().(*net.TCPAddr).AddrPort()
		nobody := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.99"), peer.Port())
		for _, c := range []struct {
			addrs []netip.AddrPort
			takes time.Duration
			err   error
		}{
			{[]netip.AddrPort{nobody, nobody, peer}, limit * 2 / 3, nil},
			{[]netip.AddrPort{nobody, nobody}, limit, context.DeadlineExceeded},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			cfg, err := Config{}.orDefault()
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			conn, _, err := dialAny(ctx, &rdmacm.Dialer{Devices: []*verbs.Device{a}}, c.addrs, cfg)
			if took := time.Since(start).Round(time.Second); !errors.Is(err, c.err) || took != c.takes {
				t.Errorf("%v: error %v after %v, want %v after %v", c.addrs, err, took, c.err, c.takes)
			}
			if conn != nil {
				conn.Close()
			}
		}
	})
}

// Listeners of both IP versions may have one port, as those of package net may, and each takes its own connections.
func TestListenBothVersions(t *testing.T) {
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	lc := ListenConfig{Devices: []*verbs.Device{b}}
	four, err := lc.Listen(t.Context(), "rsocket4", "0.0.0.0:7471")
	if err != nil {
		t.Fatal(err)
	}
	defer four.Close()
	six, err := lc.Listen(t.Context(), "rsocket6", "[::]:7471")
	if err != nil {
		t.Fatal(err)
	}
	defer six.Close()
	d := Dialer{Devices: []*verbs.Device{a}}
	gids, err := b.GIDs(1)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(addr netip.Addr) error {
		c, err := d.Dial("rsocket", netip.AddrPortFrom(addr, 7471).String())
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, g := range gids {
		if err := dial(g.GID.Addr()); err != nil {
			t.Error(err)
		}
	}
	four.Close()
	for _, g := range gids {
		if err := dial(g.GID.Addr()); g.GID.Addr().Is4() != errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("to %v, with the listener of IPv6: error %v", g.GID.Addr(), err)
		}
	}
}

// After Close all calls say net.ErrClosed, also those that are for the QP or its memory.
func TestErrClosed(t *testing.T) {
	x, _ := joinWith(t, Config{})
	x.Close()
	_, mapErr := x.Map(8, 0)
	l, err := (&ListenConfig{Devices: []*verbs.Device{rdmatest.New(t).Device()}}).Listen(t.Context(), "rsocket", ":0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for what, err := range map[string]error{
		"SetKeepAlive": x.SetKeepAlive(true), "SetKeepAlivePeriod": x.SetKeepAlivePeriod(time.Second), "Map": mapErr,
		"SetNoDelay": x.SetNoDelay(true), "SetLinger": x.SetLinger(1), "a listener's SetDeadline": l.(*Listener).SetDeadline(time.Now()),
	} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: error %v, want %v", what, err, net.ErrClosed)
		}
	}
}

// A listener takes the IPv4 address of a name that has both, as package net's do, and [::] of an empty host.
func TestListenPrefersIPv4(t *testing.T) {
	addrs := func(ss ...string) (a []netip.AddrPort) {
		for _, s := range ss {
			a = append(a, netip.MustParseAddrPort(s))
		}
		return a
	}
	for want, of := range map[string][]netip.AddrPort{
		"127.0.0.1:1": addrs("[::1]:1", "127.0.0.1:1", "127.0.0.2:1"), "[::1]:1": addrs("[::1]:1", "[fe80::1]:1"), "[::]:1": addrs("[::]:1", "0.0.0.0:1"),
	} {
		if got := preferred(of); got.String() != want {
			t.Errorf("of %v: got %v, want %v", of, got, want)
		}
	}
}

// The protocol has 32 bits for the length of a mapping. The peer would not write to a longer mapping, or to a part.
func TestMapTooLong(t *testing.T) {
	if strconv.IntSize < 64 {
		t.Skip("no such length here")
	}
	_, x := joinWith(t, Config{Maps: 1}) // whose peer takes one
	for _, n := range []int64{1 << 32, 1<<32 + 100} {
		if m, err := x.Map(int(n), 0); !errors.Is(err, verbs.ErrLimit) {
			t.Errorf("%d bytes: got %v, error %v; want %v", n, m != nil, err, verbs.ErrLimit)
		}
	}
}

// WriteBuffers takes empty slices away, so that a loop until none is left ends.
func TestWriteBuffersEmpty(t *testing.T) {
	x, _ := joinWith(t, Config{})
	v := net.Buffers{nil, {}}
	if n, err := x.WriteBuffers(&v); n != 0 || err != nil || len(v) != 0 {
		t.Errorf("got %d, %v, and %d slices left; want none", n, err, len(v))
	}
}

// A deadline is a timeout also if its context has a cause of its own.
func TestDialTimeoutCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the cause")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
		defer cancel()
		d := Dialer{Devices: []*verbs.Device{rdmatest.New(t).Device()}}
		_, err := d.DialContext(ctx, "rsocket", "10.0.0.99:7471")
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() || !errors.Is(err, cause) {
			t.Errorf("got error %v, want a timeout that is %v", err, cause)
		}
	})
}

// An empty host is this one, with either IP version.
func TestDialEmptyHost(t *testing.T) {
	n := rdmatest.New(t)
	n.Device()
	d := n.Device()
	l := listen(t, d) // on IPv4 alone
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := (&Dialer{Devices: []*verbs.Device{d}}).Dial("rsocket", ":"+port)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
