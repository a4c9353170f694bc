package rdmacm

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// simHost is a device on a simulated network, and its network interface.
type simHost struct {
	*sim.Netdev
	dev *verbs.Device
}

func newSimHost(t *testing.T, n *sim.Network, name string, addrs ...string) simHost {
	t.Helper()
	h := simHost{Netdev: n.Netdev(name, ips(addrs...)...)}
	p, err := hca.Open(h.Netdev, hca.Config{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	h.dev = verbs.NewDevice(p)
	return h
}

func ips(texts ...string) (list []netip.Addr) {
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}

// listenAny listens on all addresses of devices.
func listenAny(t *testing.T, addr string, devs ...*verbs.Device) *ID {
	t.Helper()
	id, err := NewID(NewEventChannel(devs...), PortSpaceTCP)
	if err == nil {
		err = id.BindAddr(netip.MustParseAddrPort(addr))
	}
	if err == nil {
		err = id.Listen(0)
	}
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait() // for the first look
	return id
}

// wantServed waits until all is done that there is to do, and checks at which addresses devices have listeners.
func wantServed(t *testing.T, when string, want string, devs ...*verbs.Device) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, d := range devs {
		r, err := d.Resources()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.CMID {
			if c.State == "LISTEN" {
				got = append(got, c.Local.Addr().String())
			}
		}
	}
	slices.Sort(got)
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s: listens at %q, want %q", when, s, want)
	}
}

// wantEvents takes the events that are there, which must be these.
func wantEvents(t *testing.T, when string, id *ID, want ...EventType) {
	t.Helper()
	synctest.Wait()
	now, cancel := context.WithCancel(t.Context())
	cancel()
	var got []EventType
	for {
		ev, err := id.ch.Next(now)
		if err != nil {
			break
		}
		got = append(got, ev.Type)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: events %v, want %v", when, got, want)
	}
}

// TestFollowAddrs: an ID that listens on all addresses follows those of its devices, and says so. An event that nobody
// has fetched is reported once. An ID on one address stays there.
func TestFollowAddrs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSimHost(t, sim.New(sim.Config{}), "a", "10.0.0.1")
		defer h.dev.Close()
		id, one, only := listenAny(t, "[::]:7000", h.dev), listenAny(t, "10.0.0.1:7001", h.dev), listenAny(t, "0.0.0.0:7002", h.dev)
		wantServed(t, "at first", "10.0.0.1 10.0.0.1 10.0.0.1", h.dev)
		wantEvents(t, "at first", id)

		h.AddAddr(netip.MustParseAddr("fd00::1"))
		wantServed(t, "IPv6 is added", "10.0.0.1 10.0.0.1 10.0.0.1 fd00::1", h.dev)
		h.AddAddr(netip.MustParseAddr("10.0.0.2"))
		wantServed(t, "IPv4 is added", "10.0.0.1 10.0.0.1 10.0.0.1 10.0.0.2 10.0.0.2 fd00::1", h.dev)
		wantEvents(t, "two were added", id, EventAddrChange)
		wantEvents(t, "one of its IP version was added", only, EventAddrChange)
		wantEvents(t, "it is on one address", one)

		h.SetUp(false)
		h.RemoveAddr(netip.MustParseAddr("fd00::1")) // as IPv6 has it with an interface that is down
		wantServed(t, "down", "10.0.0.1 10.0.0.1 10.0.0.1 10.0.0.2 10.0.0.2 fd00::1", h.dev)
		h.SetUp(true)
		wantServed(t, "up without it", "10.0.0.1 10.0.0.1 10.0.0.1 10.0.0.2 10.0.0.2", h.dev)
		wantEvents(t, "one has gone", id, EventAddrChange)
		h.RemoveAddr(netip.MustParseAddr("10.0.0.1"))
		wantServed(t, "one that has an ID of its own has gone", "10.0.0.1 10.0.0.2 10.0.0.2", h.dev)
		for _, id := range []*ID{id, one, only} {
			if err := id.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := len(agents.of); n != 0 {
			t.Errorf("%d agents are left, want none", n)
		}
	})
}

// TestFollowInUse: an address at which another program has the port is left out, which the log says once, and served once
// the port is free.
func TestFollowInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSimHost(t, sim.New(sim.Config{}), "a", "10.0.0.1", "10.0.0.2")
		defer h.dev.Close()
		log := &records{}
		if err := h.dev.SetLogger(slog.New(log)); err != nil {
			t.Fatal(err)
		}
		other := listenAny(t, "10.0.0.2:7000", h.dev)
		h.RemoveAddr(netip.MustParseAddr("10.0.0.2"))
		synctest.Wait()
		id := listenAny(t, "0.0.0.0:7000", h.dev)
		defer id.Close()
		h.AddAddr(netip.MustParseAddr("10.0.0.2"))
		wantServed(t, "another has it", "10.0.0.1 10.0.0.2", h.dev)
		wantEvents(t, "another has it", id)
		time.Sleep(10 * firstRetry)
		synctest.Wait()
		if n := log.count("address not served"); n != 1 {
			t.Errorf("the log says %d times that an address is not served, want once: %v", n, log.list)
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		wantServed(t, "it is free", "10.0.0.1", h.dev)
		time.Sleep(lastRetry)
		wantServed(t, "it was free for a while", "10.0.0.1 10.0.0.2", h.dev)
		wantEvents(t, "it was free for a while", id, EventAddrChange)
	})
}

// TestFollowNamed: the devices that a program names are its own. One that ends is left out, and the last one ends the ID.
func TestFollowNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Config{})
		a, b := newSimHost(t, n, "a", "10.0.0.1"), newSimHost(t, n, "b", "10.0.0.2")
		id := listenAny(t, "0.0.0.0:7000", a.dev, b.dev)
		wantServed(t, "both are there", "10.0.0.1 10.0.0.2", a.dev, b.dev)
		a.dev.Provider().Close()
		wantServed(t, "one has ended", "10.0.0.2", b.dev)
		wantEvents(t, "one has ended", id, EventAddrChange)
		b.AddAddr(netip.MustParseAddr("10.0.0.3"))
		wantServed(t, "the other one has another address", "10.0.0.2 10.0.0.3", b.dev)
		wantEvents(t, "the other one has another address", id, EventAddrChange)
		b.dev.Provider().Close()
		wantEvents(t, "both have ended", id, EventDeviceRemoval)
		if err := id.Close(); err != nil {
			t.Error(err)
		}
		if n := len(agents.of); n != 0 {
			t.Errorf("%d agents are left, want none", n)
		}
		for _, h := range []simHost{a, b} {
			h.dev.Close()
		}
	})
}

// TestFollowEmpty: a device that has no address when an ID is bound to all, or when the ID looks for the first time that one
// can be used, is served once it has one.
func TestFollowEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Config{})
		a, b := newSimHost(t, n, "a", "10.0.0.1"), newSimHost(t, n, "b", "10.0.0.2")
		b.RemoveAddr(netip.MustParseAddr("10.0.0.2"))
		synctest.Wait()
		id := listenAny(t, "0.0.0.0:7000", a.dev, b.dev)
		wantServed(t, "one has no address", "10.0.0.1", a.dev, b.dev)
		b.AddAddr(netip.MustParseAddr("10.0.0.3"))
		time.Sleep(firstRetry)
		wantServed(t, "it has one", "10.0.0.1 10.0.0.3", a.dev, b.dev)
		wantEvents(t, "it has one", id, EventAddrChange)
		if err := errors.Join(id.Close(), a.dev.Close(), b.dev.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestFollowLast: an ID hears of the end of the last device that its program has named, also if it looks at its devices
// between the end and the word of it.
func TestFollowLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSimHost(t, sim.New(sim.Config{}), "a", "10.0.0.1")
		id := listenAny(t, "0.0.0.0:7000", h.dev)
		a := id.binding.agents[0]
		forget(a)
		id.binding.follower.look() // its goroutine sleeps
		a.deviceGone(ErrNoDevice)
		wantEvents(t, "its device has ended", id, EventDeviceRemoval)
		if err := errors.Join(id.Close(), h.dev.Close()); err != nil {
			t.Error(err)
		}
	})
}

// records is a log that a test looks at.
type records struct {
	slog.Handler
	list []string
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }
func (r *records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *records) Handle(_ context.Context, rec slog.Record) error {
	r.list = append(r.list, rec.Message)
	return nil
}

func (r *records) count(message string) (n int) {
	for _, m := range r.list {
		if m == message {
			n++
		}
	}
	return n
}
