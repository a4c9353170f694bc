package linktest

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// OwnNetwork puts the test into a network namespace of its own, in which the loopback interface is
// down. It skips the test where that needs privileges.
func OwnNetwork(t *testing.T) {
	t.Helper()
	if !unshare(t) {
		t.Skip("a network namespace needs privileges")
	}
}

// OwnLoopback puts the test into a network namespace of its own, in which the loopback interface is up. A namespace
// has but one IPv6 loopback address, and a test that has its port alone is in the way of all others that listen
// there. Where the namespace needs privileges, the test stays where it is.
func OwnLoopback(t testing.TB) {
	t.Helper()
	if !unshare(t) {
		return
	}
	if err := LoopbackUp(); err != nil {
		t.Fatal(err)
	}
}

// unshare reports whether the test is in a network namespace of its own now.
func unshare(t testing.TB) bool {
	t.Helper()
	runtime.LockOSThread() // for good: the thread cannot return to the other namespace, and ends with the test
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) {
		runtime.UnlockOSThread()
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// SetAddress gives a network interface an address, with flags such as IFA_F_NODAD, or takes it away. Without
// IFA_F_NODAD an address of IPv6 is tentative until the kernel has looked for other hosts with the same address, even
// where there can be none.
func SetAddress(ifname string, p netip.Prefix, flags uint8, on bool) error {
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return err
	}
	b := []byte{unix.AF_INET, uint8(p.Bits()), flags, unix.RT_SCOPE_UNIVERSE}
	if p.Addr().Is6() {
		b[0] = unix.AF_INET6
	}
	b = binary.NativeEndian.AppendUint32(b, uint32(ifi.Index))
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice())
	ae.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())
	if on {
		err := Configure(unix.RTM_NEWADDR, netlink.Create, b, ae)
		if err == nil && p.Addr().Is6() && flags&unix.IFA_F_NODAD != 0 {
			err = awaitLocal(p.Addr().WithZone(ifname))
		}
		return err
	}
	return Configure(unix.RTM_DELADDR, 0, b, ae)
}

// awaitLocal waits until the kernel answers at an address of its own. For IPv6 the kernel does so a moment after it
// has the address.
func awaitLocal(addr netip.Addr) error {
	to := netip.AddrPortFrom(addr, 9).String()
	for limit := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		c, err := net.Dial("tcp6", to)
		switch {
		case err == nil:
			return c.Close()
		case errors.Is(err, unix.ECONNREFUSED):
			return nil
		case time.Now().After(limit):
			return err
		}
	}
}

// Configure sends a message to the kernel that changes its network.
func Configure(typ netlink.HeaderType, flags netlink.HeaderFlags, data []byte, ae *netlink.AttributeEncoder) error {
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | netlink.Acknowledge | flags}, Data: append(data, attrs...),
	})
	return err
}

// LoopbackUp brings the loopback interface up.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, ifr); err != nil {
		return err
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
