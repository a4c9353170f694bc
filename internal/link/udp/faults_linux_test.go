//go:build !adverb_portable

package udp

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

// sendFaults are the errors that a host answers a send with although the link is in order: a queue
// is full, a firewall forbids it, an earlier datagram was refused, the interface's MTU has shrunk, there
// is no route, the address or the interface has gone, memory is short.
var sendFaults = []syscall.Errno{
	unix.ENOBUFS, unix.EPERM, unix.EACCES, unix.ECONNREFUSED, unix.EMSGSIZE, unix.ENETUNREACH, unix.EHOSTUNREACH,
	unix.ENETDOWN, unix.ENODEV, unix.EADDRNOTAVAIL, unix.ENOMEM, unix.EINVAL, unix.EIO, unix.EAGAIN,
}

// While the host refuses to send, each datagram is lost and counted by itself, with the error. Afterwards
// the link sends as before, trains included.
func TestSendFaults(t *testing.T) {
	a, b := openTrains(t, "127.0.93.11", "127.0.93.12")
	const size = 100
	train := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: bytes.Repeat([]byte{7}, 4*size), SegmentSize: size}
	single := link.Datagram{Src: a.Source(1), Dst: b.Addr(), Payload: []byte("single")}
	for _, fault := range sendFaults {
		t.Run(unix.ErrnoName(fault), func(t *testing.T) {
			before := a.Stats()
			var err error
			if none := linktest.SendFails(fault, func() {
				err = errors.Join(a.Send([]link.Datagram{single}), a.Send([]link.Datagram{train, single, single}))
			}); none != nil {
				t.Skipf("no seccomp: %v", none)
			}
			if err != nil {
				t.Fatalf("Send: %v, want no error: the datagrams are lost", err)
			}
			s := a.Stats()
			if lost := s.SendErrors - before.SendErrors; lost != 7 || s.Sent != before.Sent || !errors.Is(s.LastSendError, fault) {
				t.Errorf("%d lost, %d sent, the latest for %v; want 7 lost for %v", lost, s.Sent-before.Sent, s.LastSendError, fault)
			}
			if n := a.MaxTrain(); n != maxTrain {
				t.Errorf("MaxTrain = %d, want %d: not the train was at fault", n, maxTrain)
			}
			if err := a.Send([]link.Datagram{train, single}); err != nil {
				t.Fatal(err)
			}
			for got := 0; got < 5; {
				for _, d := range receiveSome(t, b) {
					got += d.Segments()
				}
			}
			if after := a.Stats(); after.SendErrors != s.SendErrors || after.Sent-s.Sent != 5 {
				t.Errorf("afterwards %d lost, %d sent, want 0 and 5", after.SendErrors-s.SendErrors, after.Sent-s.Sent)
			}
		})
	}
}

// Wherever descriptors run out while a link is opened, or while it joins a group, the error says so and no descriptor
// stays open.
func TestNoDescriptors(t *testing.T) {
	d, err := NetdevForAddr("lo", netip.MustParseAddr("127.0.93.13"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var l *Link
	open := func() (err error) {
		l, err = d.OpenShared(netip.MustParseAddr("127.0.93.13"))
		return err
	}
	join := func(group string) func() error {
		return func() error { return l.Join(netip.MustParseAddr(group)) }
	}
	if err := open(); err != nil { // so that the runtime has opened its descriptors once
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	untilDescriptorsSuffice(t, "open", open)
	untilDescriptorsSuffice(t, "join a first group", join("239.64.93.1"))
	untilDescriptorsSuffice(t, "join a second group", join("239.64.93.2"))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if after := descriptors(t); !maps.Equal(after, before) {
		t.Errorf("open after Close: %v; want as before: %v", after, before)
	}
}

// No socket of a group stays open, neither when it is left nor when the link is closed. Each would take a descriptor for good.
func TestMulticastFiles(t *testing.T) {
	d, err := NetdevForAddr("lo", netip.MustParseAddr("127.0.93.18"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	group := func(i byte) netip.Addr { return netip.AddrFrom4([4]byte{239, 64, 93, 10 + i}) }
	open := func() {
		t.Helper()
		l, err := d.Open(netip.MustParseAddr("127.0.93.18"))
		if err != nil {
			t.Fatal(err)
		}
		for i := range byte(3) {
			if err := link.Join(l, group(i+1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := link.Leave(l, group(2)); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open() // so that the runtime has opened its descriptors once
	before := descriptors(t)
	open()
	if after := descriptors(t); !maps.Equal(after, before) {
		t.Errorf("open after a link with three groups: %v; want as before: %v", after, before)
	}
}

// A link or a membership that is refused, because a program holds the port and does not share it, leaves nothing open.
func TestRefusedLeavesNothing(t *testing.T) {
	l, _ := openTrains(t, "127.0.93.14", "127.0.93.15")
	group := netip.MustParseAddr("239.64.93.3")
	holder, err := openSocket(group)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(holder)
	if err := bind(holder, netip.AddrPortFrom(group, link.Port), 0); err != nil {
		t.Fatal(err)
	}
	d, err := NetdevForAddr("lo", l.Addr().Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	open := func() error {
		_, err := d.Open(l.Addr().Addr())
		return err
	}
	_ = open() // so that the runtime has opened its descriptors once
	before := descriptors(t)
	for name, call := range map[string]func() error{"Open": open, "Join": func() error { return l.Join(group) }} {
		if err := call(); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s where the port is held: %v, want %v", name, err, unix.EADDRINUSE)
		}
		if after := descriptors(t); !maps.Equal(after, before) {
			t.Errorf("open after %s: %v; want as before: %v", name, after, before)
		}
	}
}

// Programs that the process starts do not inherit the sockets, which would hold the address for as long as they live.
func TestNotInherited(t *testing.T) {
	before := descriptors(t)
	l, _ := openTrains(t, "127.0.93.16", "127.0.93.17")
	if err := l.Join(netip.MustParseAddr("239.64.93.4")); err != nil {
		t.Fatal(err)
	}
	opened := 0
	for fd, to := range descriptors(t) {
		if before[fd] == to {
			continue
		}
		opened++
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d, which is %s, has flags %#x, %v, and is inherited; want it to be closed on exec", fd, to, flags, err)
		}
	}
	if least := 2 * (1 + sendSockets); opened < least {
		t.Errorf("%d descriptors were opened, want %d at least", opened, least)
	}
}

// untilDescriptorsSuffice makes calls with one more descriptor each time, until one succeeds. Those that fail must leave
// nothing open.
func untilDescriptorsSuffice(t *testing.T, name string, call func() error) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	for n := uint64(3); n < 1000; n++ {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		err := call()
		if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); back != nil {
			t.Fatal(back)
		}
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Fatalf("%s with %d descriptors: %v, want %v", name, n, err, unix.EMFILE)
		}
		if after := descriptors(t); !maps.Equal(after, before) {
			t.Fatalf("%s with %d descriptors: open afterwards: %v; want as before: %v", name, n, after, before)
		}
	}
	t.Fatalf("%s fails with a thousand descriptors", name)
}

// descriptors returns the targets of the open descriptors.
func descriptors(t *testing.T) map[int]string {
	t.Helper()
	open := map[int]string{}
	for fd := range 1000 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
			open[fd] = to
		}
	}
	return open
}
