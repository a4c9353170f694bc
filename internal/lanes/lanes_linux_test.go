//go:build !adverb_portable

package lanes

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover"
	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// patience is how long a test waits for something that usually takes some hundred milliseconds. The machine may be busy.
const patience = handovertest.Patience

// member is a device that takes lanes, with an address and a block. Several members in one process cannot tell that
// they are not several processes.
type member struct {
	*Lanes
	block uint32
	woken chan netip.Addr // a value for each call of Config.Wake that finds room
}

// testAddr returns an address. No packet goes there.
func testAddr(i byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 128, 0, i}) }

// testName is the name of a socket that no device uses.
func testName(block uint32) string { return fmt.Sprintf("@adverb-test/lane/%03x", block) }

// shareMemory makes a member.
func shareMemory(t *testing.T, addr netip.Addr) *member {
	t.Helper()
	return shareWithin(t, addr, patience)
}

// shareWithin makes a member for which the other end has a time to answer.
func shareWithin(t *testing.T, addr netip.Addr, limit time.Duration) *member {
	t.Helper()
	m := &member{woken: make(chan netip.Addr, 8)}
	m.Lanes = New(Config{Name: testName, HasAddr: func(a netip.Addr) bool { return a == addr }, Wake: func(a netip.Addr) {
		select {
		case m.woken <- a:
		default:
		}
	}})
	m.Patience = limit
	m.block = m.claim(t)
	t.Cleanup(m.end)
	return m
}

// end ends the lanes, as a device does that closes.
func (m *member) end() {
	m.Close()
	m.Wait()
	m.CloseInboxes(func(netip.Addr) bool { return false })
}

// claim takes the lanes to a block that no other member has.
func (m *member) claim(t *testing.T) uint32 {
	t.Helper()
	for b := uint32(1); b < 1<<11; b++ {
		if m.Listen(b) == nil {
			return b
		}
	}
	t.Fatal("no block is free")
	return 0
}

// handOver sends a message with files as a sender does that wants a lane.
func handOver(t *testing.T, c *net.UnixConn, b []byte, fds ...int) {
	t.Helper()
	if err := handover.Send(c, b, fds...); err != nil {
		t.Fatal(err)
	}
}

// awaitLanes waits until so many lanes end at an address.
func awaitLanes(t *testing.T, b *shm.Inbox, n int) {
	t.Helper()
	for limit := time.Now().Add(patience); len(b.Lanes()) != n; runtime.Gosched() {
		for _, in := range b.Lanes() {
			if in.Finished() {
				b.Drop(in)
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("%d lanes after %v, want %d", len(b.Lanes()), patience, n)
		}
	}
}

// TestLane: a lane is made at first use, serves all QPs of the block, carries records, and breaks when
// the receiver ends. Then another is made.
func TestLane(t *testing.T) {
	a, b := testAddr(60), testAddr(61)
	x, y := shareMemory(t, a), shareMemory(t, b)
	box := y.Inbox(b)
	o := x.Lane(a, b, y.block)
	if o == nil {
		t.Fatal("no lane")
	}
	if again := x.Lane(a, b, y.block); again != o || o.Users() != 2 {
		t.Errorf("another QP of the block got lane %p with %d users, want %p with 2", again, o.Users(), o)
	}
	o.Lock()
	o.Commit(copy(o.Reserve(5), "hello"), 1)
	o.Publish()
	o.Unlock()
	if len(box.Lanes()) != 1 {
		t.Fatalf("%d lanes end there, want 1", len(box.Lanes()))
	}
	in := box.Lanes()[0]
	if got := string(in.Next()); got != "hello" || in.From() != a {
		t.Errorf("%q came from %v, want hello from %v", got, in.From(), a)
	}
	in.Release()
	if self := x.Lane(a, a, x.block); self == nil {
		t.Error("no lane to the process itself")
	}
	y.Close()
	for limit := time.Now().Add(patience); !o.Broken(); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatal("the lane does not break when its receiver ends")
		}
	}
	if late := x.Lane(a, b, y.block); late != nil {
		t.Error("a lane to nobody")
	}
}

// TestLaneSenderEnds: the receiver gives the memory of a lane back whose sender has ended.
func TestLaneSenderEnds(t *testing.T) {
	a, b := testAddr(62), testAddr(63)
	x, y := shareMemory(t, a), shareMemory(t, b)
	if x.Lane(a, b, y.block) == nil {
		t.Fatal("no lane")
	}
	box := y.Inbox(b)
	awaitLanes(t, box, 1)
	x.Close()
	awaitLanes(t, box, 0)
}

// TestLaneNotAwaited: a receiver that sleeps gives the memory of a lane back whose sender did not wait for the answer.
func TestLaneNotAwaited(t *testing.T) {
	a, b := testAddr(73), testAddr(74)
	y := shareMemory(t, b)
	box, dropped := y.Inbox(b), make(chan bool)
	go func() {
		for n := 0; n == 0; {
			if _, ok := <-y.woken; !ok {
				break
			}
			for _, in := range box.Lanes() {
				if in.Finished() {
					box.Drop(in)
					n++
				}
			}
		}
		close(dropped)
	}()
	ring, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ring)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: testName(y.block), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.CloseRead() // nobody can answer
	handOver(t, c, route{from: a, to: b}.request(), handovertest.Memory(t, shm.FileSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL), ring)
	select {
	case <-dropped:
	case <-time.After(patience):
		t.Errorf("%d lanes after %v, want it dropped", len(box.Lanes()), patience)
		close(y.woken)
		<-dropped
	}
}

// TestStoppedPeer: a process that does not answer costs answerTime, once in askAgain.
func TestStoppedPeer(t *testing.T) {
	a := testAddr(67)
	x := shareWithin(t, a, answerTime)
	const block = 1<<12 - 3
	silent, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: testName(block), Net: "unixpacket"})
	if err != nil {
		t.Skip(err)
	}
	defer silent.Close()
	if x.Lane(a, a, block) != nil {
		t.Fatal("a lane to a process that has not answered")
	}
	if _, try := x.find(route{a, a, block}); try {
		t.Error("it would be asked again at once")
	}
}

// TestHostileLane: a malformed lane is refused. It costs no file, and hinders no other lane.
func TestHostileLane(t *testing.T) {
	a, b := testAddr(68), testAddr(69)
	x, y := shareMemory(t, a), shareMemory(t, b)
	right := route{from: a, to: b}.request()
	bell := func(flags int) int {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	ring := bell(unix.EFD_NONBLOCK)
	lane := handovertest.Memory(t, shm.FileSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	for name, m := range map[string]struct {
		b   []byte
		fds []int
	}{
		"empty":         {},
		"two questions": {b: right},
		"short":         {right[:len(right)-1], []int{lane, ring}},
		"long":          {append(right[:len(right):len(right)], 0), []int{lane, ring}},
		"version":       {append([]byte{version + 1}, right[1:]...), []int{lane, ring}},
		"no bell":       {right, []int{lane}},
		"three files":   {right, []int{lane, ring, lane}},
		"bell blocks":   {right, []int{lane, bell(0)}},
		"unsealed":      {right, []int{handovertest.Memory(t, shm.FileSize, 0), ring}},
		"small":         {right, []int{handovertest.Memory(t, shm.FileSize/2, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL), ring}},
		"no memory":     {right, []int{int(os.Stderr.Fd()), ring}},
		"other address": {route{from: a, to: testAddr(70)}.request(), []int{lane, ring}},
	} {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: testName(y.block), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if m.b != nil {
			handOver(t, c, m.b, m.fds...)
		} else {
			c.CloseWrite()
		}
		c.SetReadDeadline(time.Now().Add(patience))
		if name == "two questions" { // the first has an answer
			if n, err := c.Read(make([]byte, receiverSize+1)); n != receiverSize {
				t.Errorf("the question for the receiver has an answer of %d bytes, %v; want %d", n, err, receiverSize)
			}
			handOver(t, c, right)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
			t.Errorf("%s: answer of %d bytes, %v; want the end", name, n, err)
		}
		c.Close()
	}
	if n := len(y.Inbox(b).Lanes()); n != 0 {
		t.Errorf("%d lanes were taken, want none", n)
	}
	y.mu.Lock()
	inboxes := len(y.inboxes)
	y.mu.Unlock()
	if inboxes != 1 {
		t.Errorf("%d inboxes, want one: for the process's own address", inboxes)
	}
	if x.Lane(a, b, y.block) == nil {
		t.Error("a right lane is refused after wrong ones")
	}
	taken := 0
	for range Max + 10 { // all right, and too many
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: testName(y.block), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		handOver(t, c, right, lane, ring)
		c.SetReadDeadline(time.Now().Add(patience))
		n, err := c.Read(make([]byte, 1))
		if os.IsTimeout(err) {
			t.Fatal(err)
		}
		taken += n
	}
	if taken != Max-1 {
		t.Errorf("%d lanes were taken of %d beside one, want %d", taken, Max+10, Max-1)
	}
}

// TestLanesMade: a device makes so many lanes, and for one more gives up one that no QP uses.
func TestLanesMade(t *testing.T) {
	s := &Lanes{outs: map[route]*shm.Out{}, made: map[receiver]*shm.Out{}}
	add := func(i uint32) *shm.Out {
		o, fd, err := shm.NewOut()
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		t.Cleanup(o.Close)
		o.Connect(shm.Bell{}, func() {}, nil, nil)
		o.Use(1)
		s.made[receiver{name: uint64(i)}] = o
		for block := range uint32(3) { // each of several blocks
			s.outs[route{block: 3*i + block}] = o
		}
		return o
	}
	var last *shm.Out
	for i := range uint32(Max) {
		if o, make := s.to(receiver{name: uint64(i)}); o != nil || !make {
			t.Fatalf("with %d lanes: found %v, and another may be made: %v; want none, and that it may", i, o != nil, make)
		}
		last = add(i)
	}
	if _, make := s.to(receiver{name: Max}); make {
		t.Errorf("one more than %d lanes may be made, with all in use, want none", Max)
	}
	if o, _ := s.find(route{block: 3*Max - 1}); o != last || o.Users() != 2 {
		t.Errorf("the latest lane is not found, or has not two users")
	}
	if o, make := s.to(receiver{name: Max - 1}); o != last || make {
		t.Errorf("the latest lane is not found by its receiver, or another may be made")
	}
	last.Use(-2)
	if _, make := s.to(receiver{name: Max}); !make || !last.Broken() || len(s.made) != Max-1 || len(s.outs) != 3*(Max-1) {
		t.Errorf("with a lane that is not in use, another may be made: %v, of %d; want so, in its place", make, len(s.made))
	}
	s.made[receiver{name: 0}].Hangup()
	if o, make := s.to(receiver{name: 0}); o != nil || !make {
		t.Errorf("a lane that is broken is found: %v, or no other may be made: %v", o != nil, !make)
	}
}

// TestLaneOfBlocks: one lane leads to all blocks of a receiver.
func TestLaneOfBlocks(t *testing.T) {
	a, b := testAddr(75), testAddr(76)
	x, y := shareMemory(t, a), shareMemory(t, b)
	o := x.Lane(a, b, y.block)
	if o == nil {
		t.Fatal("no lane")
	}
	files := handovertest.OpenFiles(t)
	for i := range int32(5) {
		if more := x.Lane(a, b, y.claim(t)); more != o || o.Users() != i+2 {
			t.Errorf("the lane to another block of the receiver is %p with %d users, want %p with %d", more, o.Users(), o, i+2)
		}
	}
	handovertest.Await(t, "no more files to be open than one for each block, where lanes come", func() bool { return handovertest.OpenFiles(t) <= files+5 })
	if n := len(y.Inbox(b).Lanes()); n != 1 {
		t.Errorf("%d lanes end at the receiver, want 1", n)
	}
	z := shareMemory(t, b) // another receiver at the same address
	if other := x.Lane(a, b, z.block); other == nil || other == o {
		t.Errorf("the lane to another receiver is %p, want one that is not %p", other, o)
	}
	if back := x.Lane(b, b, y.block); back == o {
		t.Error("a lane from another address is the same")
	}
}

// TestLaneLeavesDescriptors: lanes leave the program a quarter of the descriptors that it may have.
func TestLaneLeavesDescriptors(t *testing.T) {
	a, b := testAddr(77), testAddr(78)
	x, y := shareMemory(t, a), shareMemory(t, b)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	next := func() int {
		fd, err := unix.Dup(0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		return fd
	}
	for next() < 120 { // so that a quarter is more than a lane needs for a moment
		fd, err := unix.Dup(0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	// Both ends are here, so the first of them may have its descriptors and not the second.
	for _, tt := range []struct {
		free int
		want bool
	}{{0, false}, {handover.PerConn - 1, false}, {20, true}} {
		most := uint64(next()+tt.free) * handover.SparePart / (handover.SparePart - 1)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		clear(x.refused)
		if got := x.Lane(a, b, y.block) != nil; got != tt.want {
			t.Errorf("with %d descriptors free below three quarters of %d: a lane %v, want %v", tt.free, most, got, tt.want)
		}
	}
}

// dialLanes connects to the socket at which a member takes lanes, so often.
func dialLanes(t *testing.T, m *member, n int) (cs []*net.UnixConn) {
	t.Helper()
	for range n {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: testName(m.block), Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadDeadline(time.Now().Add(patience))
		cs = append(cs, c)
	}
	return cs
}

// TestWaitingLanes: so many connections may wait until their lane is handed over, and more are turned away.
func TestWaitingLanes(t *testing.T) {
	m := shareMemory(t, testAddr(86))
	for _, c := range dialLanes(t, m, maxConns+10)[maxConns:] {
		wantEnd(t, c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.conns); n != maxConns {
		t.Errorf("%d connections wait, want %d", n, maxConns)
	}
}

// TestSilentLane: a connection by which no lane comes ends in time.
func TestSilentLane(t *testing.T) {
	m := shareWithin(t, testAddr(87), answerTime/10)
	wantEnd(t, dialLanes(t, m, 1)[0])
}

// TestLaneAskedAgain: a process that took no lane is asked again after a while.
func TestLaneAskedAgain(t *testing.T) {
	s, key := &Lanes{}, route{block: 1}
	for ago, want := range map[time.Duration]bool{0: false, askAgain + time.Second: true} {
		s.refused = map[route]time.Time{key: time.Now().Add(-ago)}
		if _, try := s.find(key); try != want || (len(s.refused) == 0) != want {
			t.Errorf("%v after it was refused a lane may be tried: %v, and %d refusals are known; want %v", ago, try, len(s.refused), want)
		}
	}
}

// wantEnd checks that the other end hangs up.
func wantEnd(t *testing.T, c *net.UnixConn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		t.Fatalf("read %d bytes, %v; want that the process hangs up", n, err)
	}
}

// TestLaneToStranger: who listens at the name of a block's lanes gets neither memory nor a bell, unless he is of this user.
// Strangers can bind such a name before its owner does.
func TestLaneToStranger(t *testing.T) {
	const block = 1<<12 - 2
	for name, change := range map[string][]func(*testing.T, *exec.Cmd){"root": nil, "user": {usertest.As(usertest.Somebody)}} {
		t.Run(name, func(t *testing.T) {
			if usertest.Inside(t) {
				a := testAddr(81)
				if shareMemory(t, a).Lane(a, a, block) != nil {
					t.Error("a lane to a stranger, want none")
				}
				return
			}
			var theirs *net.UnixListener
			usertest.Thread(t, usertest.Nobody, func() {
				var err error
				if theirs, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: testName(block), Net: "unixpacket"}); err != nil {
					t.Error(err)
				}
			})
			if t.Failed() {
				return
			}
			defer theirs.Close()
			got := make(chan error, 1)
			go func() { // he answers as an owner does
				c, err := theirs.AcceptUnix()
				if err != nil {
					got <- err
					return
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(patience))
				_, fds, err := handover.Receive(c, requestSize)
				defer handover.CloseAll(fds)
				if err == nil && len(fds) == requestFiles {
					c.WriteMsgUnix([]byte{version}, unix.UnixRights(fds[1]), nil)
				}
				got <- err
			}()
			usertest.In(t, change...)
			theirs.SetDeadline(time.Now().Add(patience))
			if err := <-got; !errors.Is(err, io.EOF) {
				t.Errorf("a stranger received a request and descriptors (%v), want the end at once", err)
			}
		})
	}
}
