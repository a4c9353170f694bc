package rsocket_test

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// pair connects two devices. nil stands for the host's own.
func pair(t testing.TB, a, b *verbs.Device, cfg rsocket.Config) (x, y *rsocket.Conn) {
	t.Helper()
	x, y, err := connect(a, b, cfg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}

// connect has a dial b.
func connect(a, b *verbs.Device, dialer, listener rsocket.Config) (x, y *rsocket.Conn, err error) {
	lc := rsocket.ListenConfig{Config: listener}
	address := "127.0.0.1:0"
	if b != nil {
		gid, err := b.GID(1, 0)
		if err != nil {
			return nil, nil, err
		}
		lc.Devices, address = []*verbs.Device{b}, net.JoinHostPort(gid.GID.Addr().String(), "0")
	}
	l, err := lc.Listen(context.Background(), "rsocket", address)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	d := rsocket.Dialer{Config: dialer}
	if a != nil {
		d.Devices = []*verbs.Device{a}
	}
	c, err := d.Dial("rsocket", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	other, err := l.Accept()
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c.(*rsocket.Conn), other.(*rsocket.Conn), nil
}

// testConn runs the suite of golang.org/x/net that every net.Conn is to pass.
func testConn(t *testing.T, a, b *verbs.Device) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		x, y, err := connect(a, b, rsocket.Config{}, rsocket.Config{})
		if err != nil {
			return nil, nil, nil, err
		}
		return x, y, func() { x.Close(); y.Close() }, nil
	})
}

func TestNetConn(t *testing.T) {
	n := rdmatest.New(t)
	testConn(t, n.Device(), n.Device())
}

func TestNetConnWithLoss(t *testing.T) {
	n := rdmatest.New(t, rdmatest.Config{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01})
	testConn(t, n.Device(), n.Device())
}

func TestNetConnOneDevice(t *testing.T) {
	d := rdmatest.New(t).Device()
	testConn(t, d, d)
}

func TestNetConnUDP(t *testing.T) { testConn(t, nil, nil) }
