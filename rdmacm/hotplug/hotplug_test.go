// Package hotplug tests package rdmacm with a provider whose devices come and go.
package hotplug

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// netdev is a network interface that can vanish.
type netdev struct {
	*sim.Netdev
	gone atomic.Bool
}

func (n *netdev) State() (link.NetdevState, error) {
	if n.gone.Load() {
		return link.NetdevState{}, link.ErrNoNetdev
	}
	return n.Netdev.State()
}

// host is a provider of devices on a simulated network.
type host struct {
	mu      sync.Mutex
	netdevs map[string]*netdev
	broken  error // what Devices says
	watches map[*func()]bool
}

var theHost = &host{netdevs: map[string]*netdev{}, watches: map[*func()]bool{}}

func init() { verbs.Register("hotplug", theHost) }

func (h *host) Devices() (list []verbs.DeviceInfo, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, n := range h.netdevs {
		info, err := hca.Describe(n, name)
		if err != nil {
			return nil, err
		}
		list = append(list, info)
	}
	return list, h.broken
}

func (h *host) Open(name string) (verbs.ProviderDevice, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.netdevs[name]
	if n == nil {
		return nil, verbs.ErrNotFound
	}
	return hca.Open(n, hca.Config{Name: name})
}

func (h *host) Watch(changed func()) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches[&changed] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watches, &changed)
	}
}

// change changes the host, and tells of it.
func (h *host) change(f func()) {
	h.mu.Lock()
	f()
	watches := h.watches
	h.mu.Unlock()
	for changed := range watches {
		(*changed)()
	}
	synctest.Wait()
}

// served returns the devices and addresses at which there are listeners.
func served() string {
	var list []string
	for _, d := range watch.Self(watch.WantRes).Devices {
		for _, c := range d.CMID {
			if c.State == "LISTEN" {
				list = append(list, d.Name+"@"+netip.MustParseAddrPort(c.Local).Addr().String())
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestDevicesComeAndGo: a listener on all addresses serves the devices of the host that are there, whether some are or
// not when it begins. Accept goes on through it.
func TestDevicesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := sim.New(sim.Config{})
		h := theHost
		plug := func(name, addr string) {
			h.change(func() { h.netdevs[name] = &netdev{Netdev: n.Netdev(name, netip.MustParseAddr(addr))} })
		}
		unplug := func(name string) {
			gone := h.netdevs[name]
			h.change(func() { delete(h.netdevs, name) })
			gone.gone.Store(true)
			gone.SetUp(false) // which has the device look
			synctest.Wait()
		}
		want := func(when, want string) {
			t.Helper()
			if got := served(); got != want {
				t.Errorf("%s: listens at %q, want %q", when, got, want)
			}
		}
		l, err := rdmacm.Listen(netip.MustParseAddrPort("[::]:7000"))
		if err != nil {
			t.Fatalf("listening where there is no device yet: got error %v, want none", err)
		}
		synctest.Wait()
		want("at first", "")
		plug("a", "10.0.0.1")
		want("a is there", "a@10.0.0.1")
		plug("b", "fd00::2")
		want("b is there", "a@10.0.0.1 b@fd00::2")
		h.change(func() { h.broken = errors.New("out of descriptors") })
		want("the devices cannot be listed", "a@10.0.0.1 b@fd00::2")
		h.change(func() { h.broken = nil })
		unplug("a")
		want("a has gone", "b@fd00::2")
		unplug("b")
		want("all have gone", "")
		plug("a", "10.0.0.1")
		want("a is there again", "a@10.0.0.1")

		// A peer on the same network.
		p, err := hca.Open(n.Netdev("peer", netip.MustParseAddr("10.0.0.9")), hca.Config{Name: "peer"})
		if err != nil {
			t.Fatal(err)
		}
		peer := verbs.NewDevice(p)
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			if r, err := l.Accept(t.Context()); err == nil {
				r.Reject([]byte("here"))
			}
		}()
		_, err = (&rdmacm.Dialer{Devices: []*verbs.Device{peer}}).Dial(context.Background(), netip.MustParseAddrPort("10.0.0.1:7000"), nil)
		var rej *rdmacm.RejectError
		if !errors.As(err, &rej) || !strings.HasPrefix(string(rej.PrivateData), "here") {
			t.Errorf("dialing a device that has come again: got error %v, want the listener's no", err)
		}
		<-answered
		if err := errors.Join(l.Close(), rdmacm.CloseDevices(), peer.Close()); err != nil {
			t.Error(err)
		}
		if len(h.watches) > 0 {
			t.Errorf("%d watches are left, want none", len(h.watches))
		}
		delete(h.netdevs, "a")
	})
}
