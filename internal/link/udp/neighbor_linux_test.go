//go:build !adverb_portable

package udp_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/udp"
)

// Fields of an Ethernet frame that holds an ARP message over IPv4: RFC 826.
const (
	ethTypeARP     = 0x0806
	arpFrameLen    = 42
	arpRequest     = 1
	arpReply       = 2
	offEthSrc      = 6
	offEthType     = 12
	offARPOp       = 20
	offARPSender   = 22 // a MAC address and an IPv4 address
	offARPTarget   = 32
	arpMACAndIPLen = 10
)

// The host at the other end of a wire answers ARP when the test lets it.
func TestResolveNeighbor(t *testing.T) {
	run := inNamespace(t, "link set lo up")
	var wire *os.File
	var err error
	run(func() { // an open device belongs to the namespace
		var fd int
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		wire = os.NewFile(uintptr(fd), "tap0")
		ifr, _ := unix.NewIfreq("tap0")
		ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	})
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		t.Skipf("a wire of the test's own: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	await(t, run, "addr add 10.78.0.1/24 dev tap0")
	await(t, run, "link set tap0 up")
	src, dst := netip.MustParseAddr("10.78.0.1"), netip.MustParseAddr("10.78.0.2")

	resolved := make(chan struct{})
	go run(func() {
		defer close(resolved)
		d, err := udp.OpenNetdev("tap0")
		if err != nil {
			t.Error(err)
			return
		}
		defer d.Close()
		d.ResolveNeighbor(src, dst)
	})
	request := readARP(t, wire)
	if op := binary.BigEndian.Uint16(request[offARPOp:]); op != arpRequest {
		t.Fatalf("ARP operation %d, want a request (%d)", op, arpRequest)
	}
	if got := netip.AddrFrom4([4]byte(request[offARPTarget+6:])); got != dst {
		t.Fatalf("the request asks for %v, want %v", got, dst)
	}
	select {
	case <-resolved:
		t.Error("ResolveNeighbor returned before the neighbor had answered")
	default:
	}
	reply := append([]byte(nil), request...)
	copy(reply, request[offEthSrc:][:6])
	mac := []byte{2, 0, 0, 0, 0, 2}
	copy(reply[offEthSrc:], mac)
	binary.BigEndian.PutUint16(reply[offARPOp:], arpReply)
	copy(reply[offARPTarget:][:arpMACAndIPLen], request[offARPSender:])
	copy(reply[offARPSender:], mac)
	a := dst.As4()
	copy(reply[offARPSender+6:], a[:])
	if _, err := wire.Write(reply); err != nil {
		t.Fatal(err)
	}
	<-resolved
	await(t, run, "neigh show dev tap0", "10.78.0.2 lladdr 02:00:00:00:00:02")
}

// readARP returns the next ARP message from a wire.
func readARP(t *testing.T, wire *os.File) []byte {
	frame := make([]byte, 2048)
	for {
		n, err := wire.Read(frame)
		if err != nil {
			t.Fatal(err)
		}
		if n >= arpFrameLen && binary.BigEndian.Uint16(frame[offEthType:]) == ethTypeARP {
			return frame[:arpFrameLen]
		}
	}
}
