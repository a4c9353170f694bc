package rsocket_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

func psk(b byte) *rdmacm.Security { return &rdmacm.Security{PSK: bytes.Repeat([]byte{b}, 32)} }

// Two ends with one key connect, on a bad network too, and every packet of the stream is encrypted.
func TestSecurity(t *testing.T) {
	for _, c := range []rsocket.Config{{Security: psk(1)}, {Security: psk(1), SendBuffer: 4096, RecvBuffer: 4096, Depth: 16}} {
		t.Run(fmt.Sprint(c.SendBuffer), func(t *testing.T) {
			x, y := newPair(t, c, rdmatest.Config{Loss: 0.003, Duplicate: 0.1, Reorder: 0.01})
			want := noise(300_000, 1)
			sent := make(chan error, 2)
			for _, from := range []*rsocket.Conn{x, y} {
				go func() {
					_, err := from.Write(want)
					sent <- errors.Join(err, from.CloseWrite())
				}()
			}
			for _, to := range []*rsocket.Conn{y, x} {
				if got, err := io.ReadAll(to); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes of %d, %v, want all, as they were sent", len(got), len(want), err)
				}
				counters, err := to.QP().Counters()
				if n, ok := counters.Get("sec_replayed_pkts"); err != nil || !ok || n == 0 { // those that the network repeats
					t.Errorf("no secured packet has come twice: %d, %v, %v, want some", n, ok, err)
				}
			}
			for range 2 {
				if err := <-sent; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Ends that do not agree do not connect, and the error says so; a listener that may do without does.
func TestSecurityDisagreement(t *testing.T) {
	optional := psk(1)
	optional.Optional = true
	for _, tt := range []struct {
		name             string
		dialer, listener *rdmacm.Security
		fails            error
	}{
		{"another key", psk(2), psk(1), rdmacm.ErrSecurity},
		{"no key", nil, psk(1), rdmacm.ErrSecurity},
		{"a key at the dialer alone", psk(1), nil, syscall.ECONNREFUSED},
		{"a listener that takes both, with", psk(1), optional, nil},
		{"a listener that takes both, without", nil, optional, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := rdmatest.New(t)
			lc := rsocket.Config{Security: tt.listener}
			l, dial := listenOn(t, n, lc, rsocket.Config{Security: tt.dialer})
			c, err := dial()
			if tt.fails != nil {
				if !errors.Is(err, tt.fails) || !strings.Contains(err.Error(), "ecurity") {
					t.Errorf("got %v, want %v", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			y, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer y.Close()
			y.SetDeadline(time.Now().Add(rdmatest.Patience))
			b := make([]byte, 4)
			if _, err := c.Write([]byte("text")); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(y, b); err != nil || string(b) != "text" {
				t.Errorf("%q, %v, want \"text\"", b, err)
			}
		})
	}
}

// A peer that has the key and never says who it is holds up nobody, neither those that connect nor Close, and leaves
// nothing behind.
func TestSecurityWithoutHello(t *testing.T) {
	n := rdmatest.New(t)
	l, dial := listenOn(t, n, rsocket.Config{Security: psk(1)}, rsocket.Config{Security: psk(1)})
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	ctx, cancel := context.WithTimeout(t.Context(), rdmatest.Patience)
	defer cancel()
	mute, err := (&rdmacm.Dialer{Devices: []*verbs.Device{n.Device()}}).Dial(ctx, addr, &rdmacm.Config{PrivateData: []byte("rsec"), Security: psk(1)})
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	y, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	y.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-mute.Disconnected():
	case <-ctx.Done():
		t.Error("the listener is closed, and its end of the silent peer's connection stays; want it to end")
	}
}

// A peer that has the key and never says who it is has its place for the time of a handshake, and no longer.
func TestHandshakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []time.Duration{0, 3 * time.Second} {
			n := rdmatest.New(t)
			lc := rsocket.ListenConfig{Config: rsocket.Config{Security: psk(1)}, Devices: []*verbs.Device{n.Device()}, HandshakeTime: limit}
			l, err := lc.Listen(t.Context(), "rsocket", "10.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			began := time.Now()
			mute, err := (&rdmacm.Dialer{Devices: []*verbs.Device{n.Device()}}).Dial(t.Context(), l.Addr().(*net.TCPAddr).AddrPort(), &rdmacm.Config{PrivateData: []byte("rsec"), Security: psk(1)})
			if err != nil {
				t.Fatal(err)
			}
			defer mute.Close()
			want := cmp.Or(limit, rsocket.DefaultHandshakeTime)
			select {
			case <-mute.Disconnected():
				if took := time.Since(began); took < want || took > want+time.Second {
					t.Errorf("the connection of a silent peer ends after %v, want %v", took, want)
				}
			case <-time.After(2 * want):
				t.Errorf("a silent peer has a connection for %v, want %v", 2*want, want)
			}
		}
		lc := rsocket.ListenConfig{HandshakeTime: -1}
		if _, err := lc.Listen(t.Context(), "rsocket", "10.0.0.1:0"); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("a negative time: got %v, want %v", err, verbs.ErrInvalid)
		}
	})
}

// listenOn listens on a device, and returns how another dials.
func listenOn(t *testing.T, n *rdmatest.Network, listener, dialer rsocket.Config) (net.Listener, func() (net.Conn, error)) {
	t.Helper()
	a, b := n.Device(), n.Device()
	gid, err := b.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	lc := rsocket.ListenConfig{Config: listener, Devices: []*verbs.Device{b}}
	l, err := lc.Listen(t.Context(), "rsocket", net.JoinHostPort(gid.GID.Addr().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	d := rsocket.Dialer{Config: dialer, Devices: []*verbs.Device{a}}
	return l, func() (net.Conn, error) { return d.Dial("rsocket", l.Addr().String()) }
}
