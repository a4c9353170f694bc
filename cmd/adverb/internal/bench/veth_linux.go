package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// vethName is the interface's name, in either namespace.
const vethName = "bench0"

// The addresses are of TEST-NET-1, and in namespaces of their own.
var vethAddrs = [2]string{"192.0.2.1", "192.0.2.2"}

const vethPrefix = 24 // bits

// vethInfoPeer is VETH_INFO_PEER of linux/veth.h.
const vethInfoPeer = 1

// openVeth makes two network namespaces with a veth pair between them. Nobody but the threads of the two places, and
// the processes that they start, is in the namespaces. So the kernel removes all when they end.
func openVeth(n *network, cpus []int) (*site, error) {
	s := &site{network: n, netdev: vethName, mtu: n.mtu}
	if err := s.separate(vethAddrs, cpus); err != nil {
		return nil, err
	}
	if err := s.connect(); err != nil {
		s.close()
		return nil, fmt.Errorf("connect two network namespaces by a veth pair: %w", err)
	}
	return s, nil
}

// separate gives both ends a network namespace of their own. If it fails, the site is closed.
func (s *site) separate(addrs [2]string, cpus []int) error {
	for end, addr := range addrs {
		if err := s.at(end, addr, cpus, enterNamespace); err != nil {
			s.close()
			if errors.Is(err, unix.EPERM) {
				err = fmt.Errorf("making network namespaces needs root: %w", err)
			}
			return err
		}
	}
	return nil
}

// enterNamespace takes the thread to a network namespace of its own. /sys shows the interfaces of the
// namespace in which it was mounted, and programs look there, so a mount namespace goes with it.
func enterNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	_ = unix.Mount("sysfs", "/sys", "sysfs", 0, "") // some containers may not; UCX then finds no device, and says so
	return nil
}

// connect makes the veth pair, and brings both ends up.
func (s *site) connect() error {
	var other *os.File
	err := s.ends[atClient].do(func() (err error) {
		other, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return err
	}
	defer other.Close()
	if err := s.ends[atServer].do(func() error { return makeVeth(s.mtu, other) }); err != nil {
		return err
	}
	for _, e := range s.ends {
		if err := e.do(func() error { return bringUp(vethName, e.addr) }); err != nil {
			return err
		}
	}
	for _, e := range s.ends {
		if err := e.do(awaitCarrier); err != nil {
			return err
		}
	}
	return nil
}

// carrierPatience is the time between two looks for a carrier. The kernel takes up to a second.
const carrierPatience = 10 * time.Millisecond

// awaitCarrier waits until the thread's end of the veth pair has a carrier. Some programs, such as
// UCX's, do not take an interface without one.
func awaitCarrier() error {
	for begin := time.Now(); time.Since(begin) < settle; time.Sleep(carrierPatience) {
		dev, err := net.InterfaceByName(vethName)
		if err != nil {
			return err
		}
		if dev.Flags&net.FlagRunning != 0 {
			return nil
		}
	}
	return fmt.Errorf("%s has no carrier after %v", vethName, settle)
}

// request makes a request of the kernel's routing tables, in the thread's namespace.
func request(typ uint16, flags netlink.HeaderFlags, data []byte) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.Request | netlink.Acknowledge | flags}, Data: data})
	return err
}

// ifinfomsg is struct ifinfomsg.
func ifinfomsg(index int, flags, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], flags)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// makeVeth makes a veth pair, one end here and the other in another namespace.
func makeVeth(mtu int, other *os.File) error {
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, vethName)
	ae.Uint32(unix.IFLA_MTU, uint32(mtu))
	ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
		info.String(unix.IFLA_INFO_KIND, "veth")
		info.Nested(unix.IFLA_INFO_DATA, func(data *netlink.AttributeEncoder) error {
			data.Do(vethInfoPeer, func() ([]byte, error) {
				peer := netlink.NewAttributeEncoder()
				peer.String(unix.IFLA_IFNAME, vethName)
				peer.Uint32(unix.IFLA_MTU, uint32(mtu))
				peer.Uint32(unix.IFLA_NET_NS_FD, uint32(other.Fd()))
				attrs, err := peer.Encode()
				return append(ifinfomsg(0, 0, 0), attrs...), err
			})
			return nil
		})
		return nil
	})
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	err = request(unix.RTM_NEWLINK, netlink.Create|netlink.Excl, append(ifinfomsg(0, 0, 0), attrs...))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the kernel has no veth interfaces (modprobe veth): %w", err)
	}
	return err
}

// bringUp gives an interface in the thread's namespace its address, and brings it and the loopback interface up.
func bringUp(name, address string) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return err
	}
	msg := make([]byte, unix.SizeofIfAddrmsg)
	msg[0], msg[1] = unix.AF_INET, vethPrefix
	binary.NativeEndian.PutUint32(msg[4:], uint32(dev.Index))
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.IFA_LOCAL, addr.AsSlice())
	ae.Bytes(unix.IFA_ADDRESS, addr.AsSlice())
	attrs, err := ae.Encode()
	if err != nil {
		return err
	}
	if err := request(unix.RTM_NEWADDR, netlink.Create|netlink.Excl, append(msg, attrs...)); err != nil {
		return fmt.Errorf("add address %v: %w", addr, err)
	}
	const loopbackIndex = 1 // in every namespace
	for _, index := range []int{loopbackIndex, dev.Index} {
		if err := request(unix.RTM_NEWLINK, 0, ifinfomsg(index, unix.IFF_UP, unix.IFF_UP)); err != nil {
			return fmt.Errorf("bring interface %d up: %w", index, err)
		}
	}
	return nil
}
