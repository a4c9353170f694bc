//go:build !adverb_portable

package soft_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// envFollow makes the tests run that change the interfaces of the host: a network namespace of their own. Its value is
// that of ADVERB_IWARP.
const envFollow = "ADVERB_TEST_FOLLOW"

// runFollow runs a test in a network namespace of its own, for RoCE and for iWARP. The test begins with inFollow.
func runFollow(t *testing.T, inside string) {
	for _, iwarp := range []string{"0", "1"} {
		t.Run("iWARP="+iwarp, func(t *testing.T) { runInOwnNetworkWith(t, inside, envFollow+"="+iwarp) })
	}
}

// inFollow skips a test that is not in a namespace of its own. It returns the prefix of the devices' names.
func inFollow(t *testing.T) (kind string) {
	t.Helper()
	iwarp := os.Getenv(envFollow)
	if iwarp == "" {
		t.Skip("the test with a shorter name runs this one")
	}
	t.Setenv("ADVERB_IWARP", iwarp)
	return map[string]string{"0": "soft_", "1": "iw_"}[iwarp]
}

// A listener on all addresses serves those that come after it, over RoCE and over iWARP, and none that has gone. The
// program hears of each change, and adverb res shows it.
func TestListenerFollows(t *testing.T) {
	runFollow(t, "TestListenerFollowsInside")
}

func TestListenerFollowsInside(t *testing.T) {
	kind := inFollow(t)
	f := newFollowing(t, kind)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	f.connect("127.0.0.1", "lo")

	t.Log("an address is added")
	setAddress(t, lo, outageAddrs[0], true)
	f.served("10.47.8.1", true)
	f.connect("10.47.8.1", "lo")
	v6 := netip.MustParseAddr("fd00:47::8")
	setAddress(t, lo, v6, true)
	f.served(v6.String(), true)
	f.connect(v6.String(), "lo")

	t.Log("it is replaced, as DHCP does")
	one := listenOn(t, "10.47.8.1:0")
	setAddress(t, lo, outageAddrs[0], false)
	f.served("10.47.8.1", false)
	setAddress(t, lo, outageAddrs[1], true)
	f.served("10.47.8.2", true)
	f.connect("10.47.8.2", "lo")

	t.Log("it is back, and a listener on it alone with it")
	setAddress(t, lo, outageAddrs[0], true)
	f.served("10.47.8.1", true)
	dialBy(t, one, "10.47.8.1")
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	setAddress(t, lo, outageAddrs[0], false)
	f.served("10.47.8.1", false)

	t.Log("an interface is made")
	const name = "later"
	tun := makeNetdev(t, name, unix.IFF_TUN)
	f.served("10.47.9.1", true)
	f.connect("10.47.9.1", name)

	t.Log("it is deleted, and made again with the same name and address")
	for _, seen := range []bool{true, false, false} { // that it was not there in between
		before := f.connect("10.47.9.1", name)
		if err := unix.Close(tun); err != nil {
			t.Fatal(err)
		}
		if seen {
			f.served("10.47.9.1", false)
		}
		tun = makeNetdev(t, name, unix.IFF_TUN)
		for { // the listener may still be that of the interface which was
			dev, err := f.try("10.47.9.1", attempt)
			if err == nil && dev != before {
				break
			}
			if f.ctx.Err() != nil {
				t.Fatalf("dialing the interface that was made again: device %p, before %p, %v", dev, before, err)
			}
		}
	}

	t.Log("its only address is replaced")
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	setAddress(t, ifi, netip.MustParseAddr("10.47.9.1"), false)
	setAddress(t, ifi, netip.MustParseAddr("10.47.9.2"), true)
	f.served("10.47.9.1", false)
	f.served("10.47.9.2", true)
	f.connect("10.47.9.2", name)

	t.Log("it is deleted for good")
	if err := unix.Close(tun); err != nil {
		t.Fatal(err)
	}
	f.served("10.47.9.2", false)
	f.connect("127.0.0.1", "lo")
	if infos, err := verbs.Devices(); err != nil || slices.ContainsFunc(infos, func(d verbs.DeviceInfo) bool { return d.Netdev == name }) {
		t.Errorf("Devices lists %v, %v, want none of %s", infos, err, name)
	}

	if err := f.id.Close(); err != nil {
		t.Fatal(err)
	}
	if err := rdmacm.CloseDevices(); err != nil {
		t.Errorf("closing the devices: got error %v, want none in use", err)
	}
}

// following is a listener on all addresses.
type following struct {
	t    *testing.T
	ctx  context.Context
	kind string // of the devices that serve
	ch   *rdmacm.EventChannel
	id   *rdmacm.ID
}

func newFollowing(t *testing.T, kind string) *following {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	f := &following{t: t, ctx: ctx, kind: kind, ch: rdmacm.NewEventChannel()}
	var err error
	if f.id, err = rdmacm.NewID(f.ch, rdmacm.PortSpaceTCP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.id.Close() })
	if err := f.id.BindAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)); err != nil {
		t.Fatal(err)
	}
	if err := f.id.Listen(0); err != nil {
		t.Fatal(err)
	}
	return f
}

// listens reports whether the list of adverb res has the listener at an address, and names the devices that have it.
func (f *following) listens(addr string) bool {
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), f.id.LocalAddr().Port()).String()
	return slices.ContainsFunc(watch.Self(watch.WantRes).Devices, func(d watch.Device) bool {
		return strings.HasPrefix(d.Name, f.kind) && slices.ContainsFunc(d.CMID, func(c watch.CMID) bool { return c.State == "LISTEN" && c.Local == at })
	})
}

// served waits, from one event of the ID to the next, until an address is served or is not.
func (f *following) served(addr string, want bool) {
	f.t.Helper()
	for f.listens(addr) != want {
		ev, err := f.ch.Next(f.ctx)
		if err != nil {
			f.t.Fatalf("waiting until %s is served or not (%v): %v", addr, want, err)
		}
		if ev.Type != rdmacm.EventAddrChange || ev.ID != f.id || ev.Status != 0 {
			f.t.Fatalf("event %v of ID %p, status %d; want %v of %p, 0", ev.Type, ev.ID, ev.Status, rdmacm.EventAddrChange, f.id)
		}
	}
}

// attempt is how long one may take where others follow.
const attempt = time.Second

// connect connects to the listener at an address, which the device of a network interface has. It returns the device.
func (f *following) connect(addr, netdev string) *verbs.Device {
	f.t.Helper()
	dev, err := f.try(addr, patience)
	if err != nil {
		f.t.Fatalf("dialing %s: %v", addr, err)
	}
	if dev.Name() != f.kind+netdev {
		f.t.Errorf("dialing %s: a request at %s, want %s", addr, dev.Name(), f.kind+netdev)
	}
	return dev
}

// try connects to the listener at an address. It returns the device at which the request has come.
func (f *following) try(addr string, within time.Duration) (*verbs.Device, error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, within)
	defer cancel()
	dialed := make(chan error, 1)
	go func() {
		defer cancel() // no request will come any more
		_, err := rdmacm.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(addr), f.id.LocalAddr().Port()), nil)
		dialed <- err
	}()
	var dev *verbs.Device
	for {
		ev, err := f.ch.Next(ctx)
		if err != nil {
			return dev, <-dialed
		}
		switch ev.Type {
		case rdmacm.EventConnectRequest:
			dev = ev.ID.Device()
			err := ev.ID.Reject([]byte("here"))
			if err = errors.Join(err, ev.ID.Close()); err != nil {
				f.t.Fatal(err)
			}
			err = <-dialed
			var rej *rdmacm.RejectError
			if errors.As(err, &rej) && strings.HasPrefix(string(rej.PrivateData), "here") {
				err = nil
			}
			return dev, err
		case rdmacm.EventAddrChange:
		default:
			f.t.Fatalf("event %v while dialing %s", ev.Type, addr)
		}
	}
}
