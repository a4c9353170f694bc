//go:build !adverb_portable

package soft_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Addresses that no connection can lead to are refused at once. The context of this test has no end, so
// a Dial that waits for an answer fails by the test's timeout.
func TestDialNowhere(t *testing.T) {
	loopback(t)
	lo := open(t, loopback(t)).Device()
	for _, tt := range []struct {
		name   string
		dialer rdmacm.Dialer
		to     string
		is     error
		text   string
	}{
		{"multicast", rdmacm.Dialer{}, "224.0.0.1:7471", verbs.ErrInvalid, "224.0.0.1 is a multicast address"},
		{"multicast, mapped", rdmacm.Dialer{}, "[::ffff:224.0.0.1]:7471", verbs.ErrInvalid, "224.0.0.1 is a multicast address"},
		{"multicast, IPv6", rdmacm.Dialer{}, "[ff02::1]:7471", verbs.ErrInvalid, "ff02::1 is a multicast address"},
		{"broadcast", rdmacm.Dialer{}, "255.255.255.255:7471", verbs.ErrInvalid, "255.255.255.255 is a broadcast address"},
		{"a network's broadcast", rdmacm.Dialer{}, "127.255.255.255:7471", verbs.ErrInvalid, "127.255.255.255 is a broadcast address"},
		{"from an address", rdmacm.Dialer{LocalAddr: netip.MustParseAddrPort("127.0.0.1:0")}, "127.255.255.255:7471", verbs.ErrInvalid, "is a broadcast address"},
		{"from a device", rdmacm.Dialer{Devices: []*verbs.Device{lo}}, "127.255.255.255:7471", verbs.ErrInvalid, "is a broadcast address"},
		{"the loopback device to another host", rdmacm.Dialer{Devices: []*verbs.Device{lo}}, "203.0.113.7:7471", rdmacm.ErrNoRoute, "from the loopback address 127.0.0.1 no other host is reached"},
		{"a link-local address of no network", rdmacm.Dialer{}, "[fe80::1]:7471", rdmacm.ErrNoRoute, "name the interface, as in fe80::1%eth0"},
	} {
		_, err := tt.dialer.Dial(t.Context(), netip.MustParseAddrPort(tt.to), nil)
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: got error %v, want %v with %q in it", tt.name, err, tt.is, tt.text)
		}
	}
}

// The program gets the system's error for a peer that TCP cannot reach. Package rdmacm refuses such addresses by the
// host's routes, unless it takes the device for one of another network, as it does without its provider's name.
func TestDialUnreachableIWARP(t *testing.T) {
	name, _ := rnics(t, 5, 6)
	d, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = (&rdmacm.Dialer{Devices: []*verbs.Device{verbs.NewDevice(d.Provider())}}).Dial(t.Context(), netip.MustParseAddrPort("127.255.255.255:7471"), nil)
	if !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("dialing a broadcast address over TCP: got error %v, want %v", err, syscall.ENETUNREACH)
	}
}

// An unspecified address stands for this host: for the address of the device that the program chooses.
func TestDialThisHost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	at := netip.MustParseAddr(loopAddr(4))
	dev := open(t, loopback(t)+"@"+at.String()).Device()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(at, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if r, err := l.Accept(ctx); err == nil {
			r.Reject([]byte("here"))
		}
	}()
	_, err = (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(ctx, netip.AddrPortFrom(netip.IPv4Unspecified(), l.Addr().Port()), nil)
	var rej *rdmacm.RejectError
	if !errors.As(err, &rej) || !strings.HasPrefix(string(rej.PrivateData), "here") {
		t.Errorf("dialing 0.0.0.0: got error %v, want the rejection of the listener at %v", err, at)
	}
}

// envDown makes TestNothingUpInside run. It needs a network namespace in which no interface is up.
const envDown = "ADVERB_TEST_DOWN"

// Where no network interface is up, errors say so and name the remedy. They do not blame the import.
func TestNothingUp(t *testing.T) {
	runTestInside(t, "TestNothingUpInside", func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, envDown+"=1")
		ownNetwork(cmd)
	})
}

func TestNothingUpInside(t *testing.T) {
	if os.Getenv(envDown) == "" {
		t.Skip("TestNothingUp runs this one")
	}
	const remedy = `"ip link set lo up"`
	addr := netip.MustParseAddrPort("127.0.0.1:7471")
	_, err := verbs.Open("soft_lo")
	if !errors.Is(err, syscall.ENETDOWN) || !strings.Contains(err.Error(), "network interface lo is down") || !strings.Contains(err.Error(), remedy) {
		t.Errorf("open: got error %v, want ENETDOWN, the interface and %s", err, remedy)
	}
	_, err = verbs.Open("soft_nosuch0")
	if !errors.Is(err, verbs.ErrNotFound) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("open of no interface: got error %v, want %v and %s", err, verbs.ErrNotFound, remedy)
	}
	_, err = rdmacm.Listen(addr)
	if !errors.Is(err, rdmacm.ErrNoDevice) || !strings.Contains(err.Error(), "provider soft has found none") || !strings.Contains(err.Error(), remedy) {
		t.Errorf("listen: got error %v, want %v, the provider and %s", err, rdmacm.ErrNoDevice, remedy)
	}
	_, err = rdmacm.Dial(t.Context(), addr, nil)
	if !errors.Is(err, rdmacm.ErrNoRoute) || !errors.Is(err, syscall.ENETUNREACH) || !strings.Contains(err.Error(), "connect") || !strings.Contains(err.Error(), remedy) {
		t.Errorf("dial: got error %v, want %v, the system call and %s", err, rdmacm.ErrNoRoute, remedy)
	}

	// A listener on all addresses waits for some, as one of TCP does: a service may start before the network.
	f := newFollowing(t, "soft_")
	setUp(t, true)
	f.served("127.0.0.1", true)
	f.connect("127.0.0.1", "lo")
}
