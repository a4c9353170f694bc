//go:build !adverb_portable

package host

import (
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// strangerHas has another user bind names of unix sockets until the test calls release.
func strangerHas(t *testing.T, names ...string) (release func()) {
	t.Helper()
	var fds []int
	asNobody(t, func() {
		for _, name := range names {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err == nil {
				err = unix.Bind(fd, &unix.SockaddrUnix{Name: name})
			}
			if err != nil {
				t.Errorf("bind %s: %v", name, err)
				return
			}
			fds = append(fds, fd)
		}
	})
	release = func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
		fds = nil
	}
	t.Cleanup(release)
	if t.Failed() {
		t.FailNow()
	}
	return release
}

// reaches checks that a message to the mailbox of a name comes to box.
func reaches(t *testing.T, name boxName, box *mailbox) {
	t.Helper()
	a := aliases{list: eachSocket}
	out, err := connect(a.of(name))
	if err != nil {
		t.Fatal(err)
	}
	defer out.close()
	if sent, _ := out.send([]byte("hello")); !sent {
		t.Fatal("the message was not sent")
	}
	var n int
	buf := make([]byte, 16)
	if err := box.conn.Control(func(fd uintptr) { n, _, _ = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT) }); err != nil {
		t.Fatal(err)
	}
	if string(buf[:max(n, 0)]) != "hello" {
		t.Errorf("the mailbox received %q, want the message", buf[:max(n, 0)])
	}
}

// Another user who has bound the name of a service keeps nobody from it. It shut its port for all.
func TestStrangerHasName(t *testing.T) {
	name := serviceName(testAddr(60), uint64(os.Getpid())<<32|1)
	release := strangerHas(t, name.String(), name.alias(), name.alias())
	box, err := openMailbox(name)
	if err != nil {
		t.Fatalf("claim of a name that another user has: %v", err)
	}
	defer box.close()
	reaches(t, name, box)
	if _, err := openMailbox(name); err != errTaken {
		t.Errorf("a second claim: got error %v, want %v", err, errTaken)
	}
	release() // now the name itself is free, but not the service
	if _, err := openMailbox(name); err != errTaken {
		t.Errorf("a claim when the stranger has gone: got error %v, want %v", err, errTaken)
	}
	reaches(t, name, box)
	box.close()
	if box, err = openMailbox(name); err != nil {
		t.Fatalf("a claim when all have gone: %v", err)
	}
	defer box.close()
	reaches(t, name, box)
}

// Aliases that another user binds change nothing.
func TestStrangersAliases(t *testing.T) {
	name := blockName(0xab1)
	var decoys []string
	for range 100 {
		decoys = append(decoys, name.alias())
	}
	strangerHas(t, decoys...)
	box, err := openMailbox(name)
	if err != nil {
		t.Skipf("the block belongs to another program: %v", err)
	}
	defer box.close()
	reaches(t, name, box)
	if _, err := openMailbox(name); err != errTaken {
		t.Errorf("a second claim: got error %v, want %v", err, errTaken)
	}
}

// The kernel tells the owner and the kind of each socket.
func TestEachSocket(t *testing.T) {
	name := blockName(0xfff).String() + "/" + "test"
	strangerHas(t, name)
	stream, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(stream)
	if err := unix.Bind(stream, &unix.SockaddrUnix{Name: name}); err != nil { // names are told apart by kind
		t.Fatal(err)
	}
	var found []user.Socket
	if err := eachSocket(func(s user.Socket) {
		if s.Name == name {
			found = append(found, s)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || !found[0].Owned || found[0].UID != usertest.Nobody || found[0].Inode == 0 {
		t.Errorf("got %+v, want one datagram socket of user %d", found, usertest.Nobody)
	}
	b, err := bearersOf(blockName(0xfff))
	if err != nil || len(b.mine) != 0 || b.plain.Name != "" {
		t.Errorf("of its mailbox: got %+v, %v, want none of this user and none with the name", b, err)
	}
}

func TestPlainName(t *testing.T) {
	for _, name := range []boxName{blockName(0x123), gsiName(testAddr(61)), serviceName(testAddr(61), 7), serviceName(netip.IPv6Loopback(), 7)} {
		if got := plainName(name.String()); got != name.String() {
			t.Errorf("of %v: got %q, want the same", name, got)
		}
		if got := plainName(name.alias()); got != name.String() {
			t.Errorf("of an alias of %v: got %q, want that name", name, got)
		}
		if got := plainName(name.alias() + "/x"); got != "" {
			t.Errorf("of a longer name: got %q, want none", got)
		}
	}
	for _, other := range []string{"@adverb/watch/1/2", "@adverb", "@", "/run/adverb/qpn/123", "@adverb/qpn"} {
		if got := plainName(other); got != "" {
			t.Errorf("of %q: got %q, want none", other, got)
		}
	}
}

// However many names the network makes up, and however many sockets strangers open, the kernel's list is
// read for a share of the time only.
func TestAliasLookupBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 10 * time.Millisecond // longer than it should, because of the strangers
		lists := 0
		name := serviceName(testAddr(62), 1)
		alias := name.alias()
		a := aliases{list: func(f func(user.Socket)) error {
			lists++
			time.Sleep(takes)
			f(user.Socket{Name: alias, Inode: 1000, UID: uint32(os.Geteuid()), Owned: true})
			for i := range 1000 {
				f(user.Socket{Name: name.alias(), Inode: uint64(i), UID: usertest.Nobody, Owned: true})
			}
			return nil
		}}
		begin := time.Now()
		const span = 10 * time.Second
		for i := uint64(2); time.Since(begin) < span; i++ {
			time.Sleep(100 * time.Microsecond)
			if made := serviceName(testAddr(62), i); a.of(made) != made.String() {
				t.Fatalf("got %q for a name that nobody has, want %q", a.of(made), made)
			}
		}
		if most := int(span/(listShare*takes)) + 1; lists > most || lists < most/2 {
			t.Errorf("read the list %d times in %v, want %d at most, and not much less", lists, span, most)
		}
		if got := a.of(name); got != alias {
			t.Errorf("got %q, want the alias of this user, %q", got, alias)
		}
		if len(a.mine) != 1 {
			t.Errorf("%d aliases are remembered, want that of this user", len(a.mine))
		}
	})
}

// Of several claims of one service in a process one succeeds, and the others hear that it has it.
func TestClaimsOfOneProcess(t *testing.T) {
	m := open(t, testAddr(63))
	defer m.leave()
	var wg sync.WaitGroup
	var won, lost atomic.Int32
	for range 8 {
		wg.Go(func() {
			release, ok, err := m.netdev.ClaimService(testAddr(63), 9)
			switch {
			case ok:
				won.Add(1)
				t.Cleanup(release)
			case err == nil:
				lost.Add(1)
			default:
				t.Errorf("claim: %v", err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || lost.Load() != 7 {
		t.Errorf("%d claims succeeded and %d failed, want 1 and 7", won.Load(), lost.Load())
	}
}

// FuzzPlainName: whatever the name of a socket, the mailbox that it belongs to bears no alias's.
func FuzzPlainName(f *testing.F) {
	for _, name := range []string{"@adverb/qpn/1", "@adverb/svc/10.0.0.1/7/0123456789abcdef", "@x", "@adverb/gsi/1/2"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if plain := plainName(name); plain != "" && (!strings.HasPrefix(name, plain) || plainName(plain) != plain) {
			t.Errorf("the plain name of %q is %q, and of that %q, want a beginning of it, and the same again", name, plain, plainName(plain))
		}
	})
}
