package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/verbs"
)

// kept has the tables of this package for all devices.
type kept struct {
	agents map[*verbs.Device]*agent
	opened map[string]openedDevice
	ends   []*EventChannel // of the test
}

func (k *kept) wantEmpty(t *testing.T) {
	t.Helper()
	agents.mu.Lock()
	defer agents.mu.Unlock()
	opened.mu.Lock()
	defer opened.mu.Unlock()
	k.agents, k.opened = agents.of, opened.byName
	held := tables.Held(k, nil, []string{"ends[].devices"}) // the channels were made for that
	delete(held, "ends")
	if len(held) > 0 {
		t.Errorf("held at rest: %s, want nothing", tables.String(held))
	}
}

// Whatever has become of connections, listeners and devices, nothing is kept of them once they are closed.
// Memory that a program has left in the PD of a device that ended under it, keeps nothing either.
func TestNothingAtRest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := sim.New(sim.Config{})
	a, b := simDevice(t, n, 1), simDevice(t, n, 2)
	var k kept
	k.wantEmpty(t)

	gid, err := b.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.AddrPortFrom(gid.GID.Addr(), 0))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(do func(*Request)) <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			do(r)
		}()
		return done
	}
	dial := func() (*Conn, error) { return (&Dialer{Devices: []*verbs.Device{a}}).Dial(ctx, l.Addr(), nil) }

	rejected := answer(func(r *Request) { r.Reject(nil) })
	if _, err := dial(); err == nil {
		t.Error("Dial of who rejects: got no error")
	}
	<-rejected
	var y *Conn
	accepted := answer(func(r *Request) {
		var err error
		if y, err = r.Accept(ctx, nil); err != nil {
			t.Error(err)
		}
	})
	x, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	<-accepted
	mr, err := x.PD().AllocMR(64, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(y.Close(), x.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	k.ends = []*EventChannel{x.ch, y.ch, l.ch}
	k.wantEmpty(t)
	if err := a.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close of a device with memory: got error %v, want %v", err, verbs.ErrBusy)
	}
	if err := errors.Join(mr.Close(), a.Close()); err != nil { // no connection is needed for that
		t.Errorf("Close of a device without: got error %v, want none", err)
	}

	// b ends under a listener and with memory in its PD.
	if l, err = (&ListenConfig{Devices: []*verbs.Device{b}}).Listen(l.Addr()); err != nil {
		t.Fatal(err)
	}
	pd, err := b.SharedPD()
	if err != nil {
		t.Fatal(err)
	}
	if mr, err = pd.AllocMR(64, 0); err != nil {
		t.Fatal(err)
	}
	b.Provider().(*hca.Device).Close()
	if _, err := l.Accept(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("Accept on a device that has ended: got error %v, want that it has", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	k.ends = append(k.ends, l.ch)
	k.wantEmpty(t)
	mr.Close()
}

// A listener on all addresses that is closed leaves nothing at a device that others use on.
func TestClosedListenerForgotten(t *testing.T) {
	dev := simDevice(t, sim.New(sim.Config{}), 1)
	listen := func(at string) *Listener {
		t.Helper()
		l, err := (&ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.MustParseAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	stays := listen("0.0.0.0:0")
	defer stays.Close()
	a := stays.id.binding.claims[0].agent
	before := len(a.ids)
	if err := listen("0.0.0.0:0").Close(); err != nil {
		t.Fatal(err)
	}
	if after := len(a.ids); after != before {
		t.Errorf("after another listener was closed: got %d IDs at the device, want %d", after, before)
	}
}
