package rsocket

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A connection begins at the address and the port that the Dialer names, and at no other. What is no address of a port is
// refused.
func TestLocalAddr(t *testing.T) {
	n := rdmatest.New(t)
	a, b := n.Device(), n.Device()
	l := listen(t, b)
	defer l.Close()
	d := Dialer{Device: a, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}}
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
		d := Dialer{Device: a, Config: Config{Security: key}, Timeout: limit}
		_, err = d.Dial("rsocket", l.Addr().String())
		var ne net.Error
		if took := time.Since(start); !errors.As(err, &ne) || !ne.Timeout() || took != limit {
			t.Errorf("got error %v after %v, want a timeout after %v", err, took, limit)
		}
	})
}
