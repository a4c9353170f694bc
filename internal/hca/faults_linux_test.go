//go:build !adverb_portable

package hca

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/verbs"
)

// Packets that a host refuses to send are repeated: the work request succeeds.
func TestSendFaults(t *testing.T) {
	x, y := connect(t, udpDevice(t, loopAddr(11)), udpDevice(t, loopAddr(12)), options{timeout: 10})
	src, dst := x.mr(100_000), y.mr(100_000)
	var lost uint64
	for i, fault := range []syscall.Errno{unix.ENOBUFS, unix.EPERM, unix.ECONNREFUSED, unix.EMSGSIZE, unix.ENETUNREACH, unix.ENETDOWN, unix.EINVAL} {
		fill(src.Bytes(), uint64(i))
		if none := linktest.SendFails(fault, func() {
			x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote(0)})
		}); none != nil {
			t.Skipf("no seccomp: %v", none)
		}
		x.done()
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Errorf("%v: other bytes arrived than were sent, want the same", fault)
		}
		s := stats(t, x.dev).Link
		if s.SendErrors <= lost || !errors.Is(s.LastSendError, fault) {
			t.Errorf("%d datagrams lost, the latest for %v; want more than %d and %v", s.SendErrors, s.LastSendError, lost, fault)
		}
		lost = s.SendErrors
	}
}

// With the smallest receive buffers that a host can give, which hold a datagram or two, transfers end
// none the less, and what overflows is counted.
func TestSmallestReceiveBuffer(t *testing.T) {
	x, y := connect(t, udpDevice(t, loopAddr(13)), udpDevice(t, loopAddr(14)), options{timeout: 13})
	for _, e := range []*end{x, y} {
		if n := shrinkReceiveBuffer(t, netip.AddrPortFrom(e.addr(), link.Port)); n > 8<<10 {
			t.Fatalf("the receive buffer has %d bytes, want the least that there is", n)
		}
	}
	src, dst := x.mr(300_000), y.mr(300_000)
	for i := range 3 {
		fill(src.Bytes(), uint64(i))
		x.transfer(src, dst)
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Fatal("other bytes arrived than were sent")
		}
		fill(dst.Bytes(), uint64(100+i))
		x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote(0)})
		x.done()
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Fatal("other bytes were read than there are")
		}
	}
}

// shrinkReceiveBuffer gives this process's socket at an address the least receive buffer, and returns
// its size in bytes.
func shrinkReceiveBuffer(t *testing.T, at netip.AddrPort) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, f := range fds {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		sa, err := unix.Getsockname(fd)
		in, ok := sa.(*unix.SockaddrInet4)
		if err != nil || !ok || netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)) != at {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0); err != nil {
			t.Fatal(err)
		}
		n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("no socket of this process is bound to %v", at)
	return 0
}

// A host that refuses to send for good ends the connection, and the error has the host's cause.
func TestSendFaultForGood(t *testing.T) {
	const inside = "ADVERB_TEST_SEND_REFUSED"
	if os.Getenv(inside) == "" {
		runAlone(t, inside+"=1")
		return
	}
	x, y := connect(t, udpDevice(t, loopAddr(15)), udpDevice(t, loopAddr(16)), options{timeout: 8})
	src, dst := x.mr(64), y.mr(64)
	x.transfer(src, dst)
	if err := linktest.Refuse(unix.EPERM, unix.SECCOMP_FILTER_FLAG_TSYNC, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG); err != nil {
		t.Skipf("no seccomp: %v", err)
	}
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, 64)}, Remote: dst.Remote(0)})
	wc := x.next()
	if err := wc.Err(); wc.Status != verbs.WCRetryExceeded || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "datagrams could not be sent") {
		t.Errorf("got %v, want %v that says that sending is not permitted", err, verbs.WCRetryExceeded)
	}
}

// runAlone runs the test that calls it in a process of its own, with one more environment variable.
func runAlone(t *testing.T, env string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil && bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	case err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())):
		t.Errorf("%v\n%s\nwant the test passed", err, out)
	}
}
