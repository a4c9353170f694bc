//go:build !adverb_portable

package host

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/lanes"
	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// TestLanesOfStrangers: strangers who connect to a process, and say nothing, get no place among those of its user, for lanes
// and for wills.
func TestLanesOfStrangers(t *testing.T) {
	a, b := testAddr(82), testAddr(83)
	x, y := shareMemory(t, a), shareMemory(t, b)
	var theirs []*net.UnixConn
	asNobody(t, func() {
		for range 4*lanes.Max + maxWards {
			for _, name := range []string{laneName(y.block), heirName(y.block)} {
				c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
				if err != nil {
					t.Error(err)
					return
				}
				theirs = append(theirs, c)
			}
		}
	})
	defer func() {
		for _, c := range theirs {
			c.Close()
		}
	}()
	if x.netdev.Lane(a, b, y.qpn()) == nil {
		t.Error("no lane to a process at which strangers wait")
	}
	for _, c := range theirs {
		c.SetReadDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
			t.Fatalf("a stranger read %d bytes, %v; want that the process hangs up", n, err)
		}
	}
	y.netdev.wards.mu.Lock()
	defer y.netdev.wards.mu.Unlock()
	if n := len(y.netdev.wards.conns); n != 0 {
		t.Errorf("%d strangers have a place for their wills, want none", n)
	}
}

// TestStrangersMessages: of the messages to a mailbox only those of this user count.
func TestStrangersMessages(t *testing.T) {
	name := serviceName(testAddr(92), 7)
	box, err := bindMailbox(name, name.String())
	if err != nil {
		t.Fatal(err)
	}
	defer box.close()
	say := func(text string) {
		out, err := connect(name.String())
		if err != nil {
			t.Error(err)
			return
		}
		defer out.close()
		if sent, _ := out.send([]byte(text)); !sent {
			t.Errorf("%q was not sent", text)
		}
	}
	asNobody(t, func() { say("theirs") })
	say("mine")
	got := make(chan string, 2)
	go box.serve(func(b []byte) { got <- string(b) })
	select {
	case text := <-got:
		if text != "mine" {
			t.Errorf("the first message that counts is %q, want mine", text)
		}
	case <-time.After(patience):
		t.Error("no message counts, want mine to")
	}
}

// unixNames returns the names of this process's unix sockets. Other processes may have sockets of the same names.
func unixNames(t *testing.T) (names []string) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		at, err := unix.Getsockname(fd)
		if u, ok := at.(*unix.SockaddrUnix); ok && err == nil && u.Name != "" {
			names = append(names, u.Name)
		}
	}
	return names
}

// TestAlone: a process that cannot know others of its user shares neither an address nor memory with anybody, and says why.
func TestAlone(t *testing.T) {
	if !usertest.In(t, usertest.Namespace()) {
		return
	}
	if err := Alone(); !errors.Is(err, user.ErrUnmapped) {
		t.Fatalf("the process is alone: %v, want %v", err, user.ErrUnmapped)
	}
	addr := netip.AddrFrom4([4]byte{127, 94, byte(os.Getpid() >> 8), byte(os.Getpid()) | 1})
	n, other := shareLoopback(t, addr), shareLoopback(t, addr)
	defer n.Close()
	defer other.Close()
	n.ShareMemory()
	if n.Shard() != nil {
		t.Error("the device has shards, which share an address, want none")
	}
	l, err := n.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, block := range []uint32{5, controlBlock, specialBlock} {
		if ok, err := n.Claim(block); ok != (block == 5) || err != nil {
			t.Errorf("claim of block %d: %v, %v; want %v", block, ok, err, block == 5)
		}
	}
	if _, ok, err := n.ClaimService(addr, 7); !ok || err != nil {
		t.Errorf("claim of a service: %v, %v; want it to succeed", ok, err)
	}
	n.ServeGSI(true)
	n.LastWords(addr, addr, 0, nil)()
	if names := unixNames(t); len(names) > 0 {
		t.Errorf("the process has unix sockets of the names %q, want none", names)
	}
	if n.Inbox(addr) != nil || n.Lane(addr, addr, 5<<blockBits) != nil {
		t.Error("the process has an inbox or a lane, want neither")
	}
	if late, err := other.Open(addr); !errors.Is(err, unix.EADDRINUSE) || !errors.Is(err, user.ErrUnmapped) {
		if late != nil {
			late.Close()
		}
		t.Errorf("a second device at the address: %v, want %v, and why", err, unix.EADDRINUSE)
	}
}

// TestRootOfNamespace: the processes of one user share as ever in a namespace that maps that user and no other.
func TestRootOfNamespace(t *testing.T) {
	if !usertest.In(t, usertest.Namespace([2]int{0, 1})) {
		return
	}
	if err := Alone(); err != nil {
		t.Fatalf("root of a namespace is alone: %v, want it to share", err)
	}
	a, b := testAddr(84), testAddr(85)
	x, y := shareMemory(t, a), shareMemory(t, b)
	if x.netdev.Lane(a, b, y.qpn()) == nil {
		t.Error("no lane between devices of one user")
	}
}
