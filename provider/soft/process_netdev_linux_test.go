//go:build !adverb_portable

package soft_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// envVanishing makes TestInterfaceVanishesInside run. It needs a network namespace of its own.
const envVanishing = "ADVERB_TEST_VANISHING"

// When the network interface of a device vanishes, the device says so once. From then on it has no
// GIDs and no active port. It can be closed.
func TestInterfaceVanishes(t *testing.T) {
	runInOwnNetwork(t, "TestInterfaceVanishesInside", envVanishing)
}

func TestInterfaceVanishesInside(t *testing.T) {
	if os.Getenv(envVanishing) == "" {
		t.Skip("TestInterfaceVanishes runs this one")
	}
	const name = "vanishing"
	tun := makeNetdev(t, name, unix.IFF_TUN)
	d, err := verbs.Open("soft_" + name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if gids, err := d.GIDs(1); err != nil || len(gids) == 0 {
		t.Fatalf("GIDs %v, %v; want the interface's", gids, err)
	}
	if err := unix.Close(tun); err != nil {
		t.Fatal(err)
	}
	seen := make(map[verbs.EventType]int)
	for seen[verbs.EventDeviceFatal] == 0 || seen[verbs.EventPortErr] == 0 || seen[verbs.EventGIDChange] == 0 {
		e, err := d.NextEvent(ctx)
		if err != nil {
			t.Fatalf("after the events %v: %v", seen, err)
		}
		seen[e.Type]++
	}
	if seen[verbs.EventDeviceFatal] != 1 {
		t.Errorf("events %v, want one DEVICE_FATAL", seen)
	}
	if gids, err := d.GIDs(1); err != nil || len(gids) != 0 {
		t.Errorf("GIDs %v, %v; want none", gids, err)
	}
	if p, err := d.QueryPort(1); err != nil || p.State == verbs.PortActive {
		t.Errorf("port %+v, %v; want one that is down", p, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	// An interface of that name that comes back is another one, with a device that works.
	tun = makeNetdev(t, name, unix.IFF_TUN)
	defer unix.Close(tun)
	talk("soft_" + name)
}

// makeNetdev makes a network interface with an address: IFF_TUN, or IFF_TAP, which is one of Ethernet
// without a carrier. It vanishes when the descriptor is closed.
func makeNetdev(t *testing.T, name string, kind uint16) int {
	t.Helper()
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("%s: %v", notPermitted, err)
	}
	ctl, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ctl)
	ifr := func(set func(*unix.Ifreq) error) *unix.Ifreq {
		r, err := unix.NewIfreq(name)
		if err == nil {
			err = set(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	flags := func(v uint16) func(*unix.Ifreq) error {
		return func(r *unix.Ifreq) error { r.SetUint16(v); return nil }
	}
	err = unix.IoctlIfreq(tun, unix.TUNSETIFF, ifr(flags(kind|unix.IFF_NO_PI)))
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("%s: %v", notPermitted, err)
	}
	if err == nil && kind == unix.IFF_TAP {
		err = unix.IoctlSetPointerInt(tun, unix.TUNSETCARRIER, 0)
	}
	if err == nil {
		err = unix.IoctlIfreq(ctl, unix.SIOCSIFADDR, ifr(func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{10, 47, 9, 1}) }))
	}
	if err == nil {
		err = unix.IoctlIfreq(ctl, unix.SIOCSIFFLAGS, ifr(flags(unix.IFF_UP)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return tun
}
