//go:build !adverb_portable

package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// handOver sends a message with files as a process does that looks for an heir.
func handOver(t *testing.T, c *net.UnixConn, b []byte, fds ...int) {
	t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.WriteMsgUnix(b, oob, nil); err != nil {
		t.Fatal(err)
	}
}

// A malformed will is refused, and none of its files stays open.
func TestHostileWill(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.1")
	right := appendAddr([]byte{messageVersion}, addr)
	sealed := handovertest.Memory(t, willSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	plain, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Truncate(willSize); err != nil {
		t.Fatal(err)
	}
	pipe, pipeEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer pipeEnd.Close()
	for _, tt := range []struct {
		name string
		b    []byte
		fds  []int
		ok   bool
	}{
		{"a will", right, []int{sealed}, true},
		{"a memfd that may shrink", right, []int{handovertest.Memory(t, willSize, unix.F_SEAL_GROW)}, false},
		{"a memfd without seals", right, []int{handovertest.Memory(t, willSize, 0)}, false},
		{"a memfd that is too short", right, []int{handovertest.Memory(t, willSize-1, unix.F_SEAL_SHRINK)}, false},
		{"an empty memfd", right, []int{handovertest.Memory(t, 0, unix.F_SEAL_SHRINK)}, false},
		{"a memfd that is too long", right, []int{handovertest.Memory(t, willSize+1, unix.F_SEAL_SHRINK)}, false},
		{"a file on a disk", right, []int{int(plain.Fd())}, false},
		{"a pipe", right, []int{int(pipe.Fd())}, false},
		{"no file", right, nil, false},
		{"two files", right, []int{sealed, sealed}, false},
		{"many files", right, []int{sealed, sealed, sealed, sealed, sealed}, false},
		{"another version", append([]byte{messageVersion + 1}, right[1:]...), []int{sealed}, false},
		{"a message that is cut short", right[:len(right)-1], []int{sealed}, false},
		{"a message that is too long", append(right[:len(right):len(right)], 0), []int{sealed}, false},
		{"one byte", right[:1], []int{sealed}, false},
	} {
		a, b := handovertest.Pair(t)
		before := handovertest.OpenFiles(t)
		handOver(t, a, tt.b, tt.fds...)
		got, mem, err := receiveWill(b)
		switch {
		case tt.ok && (err != nil || got != addr || len(mem) != willSize):
			t.Errorf("%s: got address %v, %d bytes, error %v, want %v, %d, none", tt.name, got, len(mem), err, addr, willSize)
		case !tt.ok && (err == nil || mem != nil):
			t.Errorf("%s: got %d bytes, error %v, want an error and no memory", tt.name, len(mem), err)
		}
		if mem != nil {
			unix.Munmap(mem)
		}
		if after := handovertest.OpenFiles(t); after != before {
			t.Errorf("%s: %d files open, want %d as before", tt.name, after, before)
		}
	}
}

// testWill is a will in this process, with the rows that a test writes.
func testWill(t *testing.T) (fd int, rows func(i int) words) {
	t.Helper()
	fd = handovertest.Memory(t, willSize, unix.F_SEAL_SHRINK)
	mem, err := unix.Mmap(fd, 0, willSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return fd, func(i int) words { return mem[i*wordsSize:][:wordsSize] }
}

// TestAwaitDeath: of a will that is whole, the last words come from the link's address alone, and only
// at the death of its owner.
func TestAwaitDeath(t *testing.T) {
	addr, elsewhere, peer := testAddr(60), testAddr(61), testAddr(62)
	m := join(t, addr)
	defer m.leave()
	fd, row := testWill(t)
	row(0).set(addr, peer, 7, []byte("first"))
	row(1).set(addr, peer, 0, []byte("revoked"))
	row(1).valid().Store(0)
	row(2).set(elsewhere, peer, 0, []byte("not of this link"))
	row(3).set(addr, peer, 0, []byte("half written"))
	row(3).valid().Store(2)
	row(wordsChunk-1).set(addr, peer, 0, []byte("last of a chunk"))
	row(3*wordsChunk).set(addr, peer, 0, []byte("behind rows that were never used")) // no process writes so
	a, b := handovertest.Pair(t)
	handOver(t, a, appendAddr([]byte{messageVersion}, addr), fd)
	row(5).set(addr, peer, 0, []byte("later")) // once the will is on its way
	a.Close()
	l, all := m.netdev.awaitDeath(b, patience)
	if l != m.link {
		t.Errorf("got link %v, want that of %v", l, addr)
	}
	var got []string
	for _, d := range all {
		var p wire.Packet
		if err := p.Decode(d.Payload); err != nil {
			t.Fatal(err)
		}
		if d.Src.Addr() != addr || d.Dst.Addr() != peer || p.DestQP != wire.GSIQPN || len(p.Payload) != wire.MADSize {
			t.Errorf("got %v->%v, QP %v, %d bytes, want %v->%v, QP 1, a MAD", d.Src, d.Dst, p.DestQP, len(p.Payload), addr, peer)
		}
		got = append(got, fmt.Sprintf("%d %s", d.TrafficClass, p.Payload[:5]))
	}
	if want := "[7 first 0 later 0 last ]"; fmt.Sprint(got) != want {
		t.Errorf("last words: got %v, want %s", got, want)
	}
}

// TestAwaitDeathInVain: a process that does not hand over a will, or one for another address, leaves
// nothing to say, and holds nobody up.
func TestAwaitDeathInVain(t *testing.T) {
	addr, elsewhere := testAddr(63), testAddr(64)
	m := join(t, addr)
	defer m.leave()
	fd, row := testWill(t)
	row(0).set(addr, elsewhere, 0, []byte("something"))
	will := appendAddr([]byte{messageVersion}, addr)
	for _, tt := range []struct {
		name string
		do   func(a, b *net.UnixConn)
	}{
		{"dies before the will", func(a, b *net.UnixConn) { a.Close() }},
		{"says nothing", func(a, b *net.UnixConn) {}},
		{"sends no will", func(a, b *net.UnixConn) { handOver(t, a, will) }},
		{"is at another address", func(a, b *net.UnixConn) { handOver(t, a, appendAddr([]byte{messageVersion}, elsewhere), fd) }},
		{"goes on talking", func(a, b *net.UnixConn) { handOver(t, a, will, fd); handOver(t, a, []byte("hello")); a.Close() }},
		{"is alive when the device closes", func(a, b *net.UnixConn) { handOver(t, a, will, fd); go b.Close() }},
	} {
		a, b := handovertest.Pair(t)
		tt.do(a, b)
		if l, all := m.netdev.awaitDeath(b, 20*time.Millisecond); l != nil || all != nil {
			t.Errorf("a process that %s: got %d last words, want none", tt.name, len(all))
		}
	}
}

// TestWillOfOthers: nobody takes the will of another user, nor gives it to one.
func TestWillOfOthers(t *testing.T) {
	m := join(t, testAddr(65))
	defer m.leave()
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
		if err != nil {
			t.Error(err)
			return nil
		}
		return l
	}

	// From another user.
	name := fmt.Sprintf("@adverb/test/%d", os.Getpid())
	mine := listen(name)
	defer mine.Close()
	var theirEnd *net.UnixConn
	asNobody(t, func() {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
		if err != nil {
			t.Error(err)
		}
		theirEnd = c
	})
	defer theirEnd.Close()
	got, err := mine.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	raw, _ := got.SyscallConn()
	raw.Control(func(fd uintptr) { err = checkPeer(int(fd)) })
	if !errors.Is(err, user.ErrOther) {
		t.Errorf("a will of another user: got error %v, want %v", err, user.ErrOther)
	}

	// The heir itself hangs up, on another user and on this very process.
	for _, as := range []func(*testing.T, func()){asNobody, func(t *testing.T, f func()) { f() }} {
		as(t, func() {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: heirName(m.block), Net: "unixpacket"})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetReadDeadline(time.Now().Add(patience))
			if n, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("an heir that does not trust: got %d bytes, error %v, want that it hangs up", n, err)
			}
		})
	}

	// To another user, who has got hold of the name of an heir.
	block := uint32(controlBlock - 1)
	var theirs *net.UnixListener
	asNobody(t, func() { theirs = listen(heirName(block)) })
	if theirs == nil {
		t.Fatal("the name of an heir is taken")
	}
	defer theirs.Close()
	w := &will{}
	if !w.open(newWill) {
		t.Skip("no memfd")
	}
	defer w.close()
	if fd, err := w.handOver(block, testAddr(65)); !errors.Is(err, user.ErrOther) {
		unix.Close(fd)
		t.Errorf("handing a will to another user: got error %v, want %v", err, user.ErrOther)
	}
	theirs.SetDeadline(time.Now().Add(patience))
	c, err := theirs.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(patience))
	if n, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other user: got %d bytes of a will, error %v, want nothing", n, err)
	}
}

// TestWillOpensAgain: a process that was short of descriptors makes its will later. It asks the system for memory
// once in a while only.
func TestWillOpensAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &will{}
		defer w.close()
		tries, fault := 0, error(unix.EMFILE)
		open := func() bool {
			return w.open(func() (int, []byte, error) {
				if tries++; fault != nil {
					return -1, nil, fault
				}
				return newWill()
			})
		}
		for range 2 { // failures
			tries = 0
			for begin := time.Now(); time.Since(begin) < willAgain; time.Sleep(willAgain / 4) {
				if open() {
					t.Fatal("a will without memory is open")
				}
			}
			if tries != 1 {
				t.Errorf("the system was asked for memory %d times in %v, want once", tries, willAgain)
			}
		}
		if fault = nil; !open() || len(w.mem) != willSize {
			t.Errorf("the will has %d bytes %v after the failure, want %d", len(w.mem), willAgain, willSize)
		}
		if tries = 0; !open() || tries != 0 {
			t.Errorf("memory was made %d times for a will that is open, want never", tries)
		}
	})
}

// TestLastWordsRevoked: revoked last words make room for others. The will of a process that makes one
// connection after another would be full.
func TestLastWordsRevoked(t *testing.T) {
	addr, peer := testAddr(75), testAddr(76)
	m := join(t, addr)
	defer m.leave()
	for range 3 {
		m.netdev.LastWords(addr, peer, 0, []byte("bye"))()
	}
	if w := &m.netdev.will; w.mem == nil {
		t.Skip("no memfd")
	} else if w.used != 1 {
		t.Errorf("3 messages, each revoked before the next: got %d rows used, want 1", w.used)
	}
}

// TestMaxWards: a process takes on so many wills, and no more.
func TestMaxWards(t *testing.T) {
	s := &wards{conns: map[*net.UnixConn]struct{}{}}
	first := &net.UnixConn{}
	for i := range maxWards {
		c := &net.UnixConn{}
		if i == 0 {
			c = first
		}
		if !s.add(c) {
			t.Fatalf("will %d is refused, want %d taken", i+1, maxWards)
		}
	}
	if s.add(&net.UnixConn{}) {
		t.Errorf("will %d is taken, want it refused", maxWards+1)
	}
	s.remove(first)
	if !s.add(&net.UnixConn{}) {
		t.Error("a will is refused though one has gone")
	}
	s.close()
	s.remove(first)
	if s.add(&net.UnixConn{}) {
		t.Error("a will is taken after the end")
	}
}
