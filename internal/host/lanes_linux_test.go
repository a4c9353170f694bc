//go:build !adverb_portable

package host

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/shm"
)

// shareMemory makes a Netdev that takes lanes, with a block.
func shareMemory(t *testing.T, addr netip.Addr) *member {
	t.Helper()
	m := &member{netdev: shareLoopback(t, addr)}
	m.netdev.ShareMemory()
	m.netdev.lanes.time = patience // the machine may be busy
	m.block = m.claim(t)
	t.Cleanup(func() { m.netdev.Close() })
	return m
}

func (m *member) qpn() uint32 { return m.block<<blockBits | 5 }

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
	box := y.netdev.Inbox(b)
	o := x.netdev.Lane(a, b, y.qpn())
	if o == nil {
		t.Fatal("no lane")
	}
	if again := x.netdev.Lane(a, b, y.qpn()+1); again != o || o.Users() != 2 {
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
	if self := x.netdev.Lane(a, a, x.qpn()); self == nil {
		t.Error("no lane to the process itself")
	}
	y.netdev.Close()
	for limit := time.Now().Add(patience); !o.Broken(); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatal("the lane does not break when its receiver ends")
		}
	}
	if late := x.netdev.Lane(a, b, y.qpn()); late != nil {
		t.Error("a lane to nobody")
	}
}

// TestLaneSenderEnds: the receiver gives the memory of a lane back whose sender has ended.
func TestLaneSenderEnds(t *testing.T) {
	a, b := testAddr(62), testAddr(63)
	x, y := shareMemory(t, a), shareMemory(t, b)
	if x.netdev.Lane(a, b, y.qpn()) == nil {
		t.Fatal("no lane")
	}
	box := y.netdev.Inbox(b)
	awaitLanes(t, box, 1)
	x.netdev.Close()
	awaitLanes(t, box, 0)
}

// TestLaneNotAwaited: a receiver that sleeps gives the memory of a lane back whose sender did not wait for the answer.
func TestLaneNotAwaited(t *testing.T) {
	a, b := testAddr(73), testAddr(74)
	y := shareMemory(t, b)
	l, err := y.netdev.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	box, dropped := y.netdev.Inbox(b), make(chan bool)
	go func() {
		for n := 0; n == 0 && l.Wait(-1) == nil; {
			l.Recv(make([]link.Datagram, 8))
			for _, in := range box.Lanes() {
				if in.Finished() {
					box.Drop(in)
					n++
				}
			}
		}
		close(dropped)
	}()
	l.(link.Settler).Settle()
	ring, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ring)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: laneName(y.block), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.CloseRead() // nobody can answer
	handOver(t, c, appendAddr(appendAddr([]byte{laneVersion}, a), b), memory(t, shm.FileSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL), ring)
	select {
	case <-dropped:
	case <-time.After(patience):
		t.Errorf("%d lanes after %v, want it dropped", len(box.Lanes()), patience)
		l.Close()
		<-dropped
	}
}

// TestNoLane: packets to a process that does not share memory, to nobody, and to an address that the process
// does not have, go by the network.
func TestNoLane(t *testing.T) {
	a, b := testAddr(64), testAddr(65)
	x := shareMemory(t, a)
	y := &member{netdev: shareLoopback(t, b)}
	y.block = y.claim(t)
	defer y.netdev.Close()
	if x.netdev.Lane(a, b, y.qpn()) != nil {
		t.Error("a lane to a process that shares no memory")
	}
	if x.netdev.Lane(a, testAddr(66), x.qpn()) != nil {
		t.Error("a lane to an address that the process does not have")
	}
	if y.netdev.Lane(b, a, x.qpn()) != nil {
		t.Error("a lane from a process that shares no memory")
	}
}

// TestStoppedPeer: a process that does not answer costs laneTime, once in laneAgain.
func TestStoppedPeer(t *testing.T) {
	a := testAddr(67)
	x := shareMemory(t, a)
	x.netdev.lanes.time = laneTime
	const block = controlBlock - 1
	silent, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: laneName(block), Net: "unixpacket"})
	if err != nil {
		t.Skip(err)
	}
	defer silent.Close()
	if x.netdev.Lane(a, a, block<<blockBits) != nil {
		t.Fatal("a lane to a process that has not answered")
	}
	if _, try := x.netdev.lanes.find(laneKey{a, a, block}); try {
		t.Error("it would be asked again at once")
	}
}

// TestHostileLane: what is no lane is refused. It costs no file, and hinders no other lane.
func TestHostileLane(t *testing.T) {
	a, b := testAddr(68), testAddr(69)
	x, y := shareMemory(t, a), shareMemory(t, b)
	right := appendAddr(appendAddr([]byte{laneVersion}, a), b)
	bell := func(flags int) int {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	ring := bell(unix.EFD_NONBLOCK)
	lane := memory(t, shm.FileSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	for name, m := range map[string]struct {
		b   []byte
		fds []int
	}{
		"empty":         {},
		"two questions": {b: right},
		"short":         {right[:len(right)-1], []int{lane, ring}},
		"long":          {append(right[:len(right):len(right)], 0), []int{lane, ring}},
		"version":       {append([]byte{laneVersion + 1}, right[1:]...), []int{lane, ring}},
		"no bell":       {right, []int{lane}},
		"three files":   {right, []int{lane, ring, lane}},
		"bell blocks":   {right, []int{lane, bell(0)}},
		"unsealed":      {right, []int{memory(t, shm.FileSize, 0), ring}},
		"small":         {right, []int{memory(t, shm.FileSize/2, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL), ring}},
		"no memory":     {right, []int{int(os.Stderr.Fd()), ring}},
		"other address": {appendAddr(right[:1+16:1+16], testAddr(70)), []int{lane, ring}},
	} {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: laneName(y.block), Net: "unixpacket"})
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
			if n, err := c.Read(make([]byte, laneReceiver+1)); n != laneReceiver {
				t.Errorf("the question for the receiver has an answer of %d bytes, %v; want %d", n, err, laneReceiver)
			}
			handOver(t, c, right)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
			t.Errorf("%s: answer of %d bytes, %v; want the end", name, n, err)
		}
		c.Close()
	}
	if n := len(y.netdev.Inbox(b).Lanes()); n != 0 {
		t.Errorf("%d lanes were taken, want none", n)
	}
	y.netdev.lanes.mu.Lock()
	inboxes := len(y.netdev.lanes.inboxes)
	y.netdev.lanes.mu.Unlock()
	if inboxes != 1 {
		t.Errorf("%d inboxes, want one: for the process's own address", inboxes)
	}
	if x.netdev.Lane(a, b, y.qpn()) == nil {
		t.Error("a right lane is refused after wrong ones")
	}
	taken := 0
	for range maxLanes + 10 { // all right, and too many
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: laneName(y.block), Net: "unixpacket"})
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
	if taken != maxLanes-1 {
		t.Errorf("%d lanes were taken of %d beside one, want %d", taken, maxLanes+10, maxLanes-1)
	}
}

// TestAcceptGoesOn: for want of descriptors nobody is accepted for a while, and then again.
func TestAcceptGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []error{unix.EMFILE, unix.ENFILE, nil, unix.ECONNABORTED, nil, net.ErrClosed}
		taken, start := 0, time.Now()
		acceptEach(func() (*net.UnixConn, error) {
			err := results[0]
			results = results[1:]
			return nil, err
		}, func(*net.UnixConn) { taken++ })
		if took := time.Since(start); taken != 2 || took != 3*acceptAgain {
			t.Errorf("%d taken in %v, want 2, and %v after each of 3 errors", taken, took, acceptAgain)
		}
	})
}

// TestRoomEndsWait: a sender that sleeps hears that a full lane has room again, and that its receiver ends.
func TestRoomEndsWait(t *testing.T) {
	a, b := testAddr(71), testAddr(72)
	x, y := shareMemory(t, a), shareMemory(t, b)
	l, err := x.netdev.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := x.netdev.Lane(a, b, y.qpn())
	if o == nil {
		t.Fatal("no lane")
	}
	in := y.netdev.Inbox(b).Lanes()[0]
	sleep := func() {
		for !o.AwaitRoom() {
			if err := l.Wait(-1); err != nil {
				t.Error(err)
				return
			}
		}
	}
	fill := func() (n int) {
		o.Lock()
		defer o.Unlock()
		for ; o.Reserve(4096) != nil; n++ {
			o.Commit(4096, 1)
		}
		o.Publish()
		return n
	}
	first := fill()
	filled, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		sleep()
		fill()
		close(filled)
		sleep()
	}()
	taken := 0
	for deadline := time.Now().Add(patience); taken < first; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d records after %v, want %d", taken, patience, first)
		}
		for ; taken < first && in.Next() != nil; taken++ {
		}
		in.Release()
	}
	<-filled
	y.netdev.Close()
	<-done
}

// TestLanesMade: a device makes so many lanes, and for one more gives up one that no QP uses.
func TestLanesMade(t *testing.T) {
	s := &lanes{outs: map[laneKey]*shm.Out{}, made: map[receiver]*shm.Out{}}
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
			s.outs[laneKey{block: 3*i + block}] = o
		}
		return o
	}
	var last *shm.Out
	for i := range uint32(maxLanes) {
		if o, make := s.to(receiver{name: uint64(i)}); o != nil || !make {
			t.Fatalf("with %d lanes: found %v, and another may be made: %v; want none, and that it may", i, o != nil, make)
		}
		last = add(i)
	}
	if _, make := s.to(receiver{name: maxLanes}); make {
		t.Errorf("one more than %d lanes may be made, with all in use, want none", maxLanes)
	}
	if o, _ := s.find(laneKey{block: 3*maxLanes - 1}); o != last || o.Users() != 2 {
		t.Errorf("the latest lane is not found, or has not two users")
	}
	if o, make := s.to(receiver{name: maxLanes - 1}); o != last || make {
		t.Errorf("the latest lane is not found by its receiver, or another may be made")
	}
	last.Use(-2)
	if _, make := s.to(receiver{name: maxLanes}); !make || !last.Broken() || len(s.made) != maxLanes-1 || len(s.outs) != 3*(maxLanes-1) {
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
	o := x.netdev.Lane(a, b, y.qpn())
	if o == nil {
		t.Fatal("no lane")
	}
	files := openFiles(t)
	for i := range int32(5) {
		if more := x.netdev.Lane(a, b, y.claim(t)<<blockBits); more != o || o.Users() != i+2 {
			t.Errorf("the lane to another block of the receiver is %p with %d users, want %p with %d", more, o.Users(), o, i+2)
		}
	}
	const sockets = 3 // of a block: its mailbox, and where lanes and wills come
	if n := openFiles(t) - files; n > 5*sockets {
		t.Errorf("%d files more are open for 5 blocks more, want %d for each", n, sockets)
	}
	if n := len(y.netdev.Inbox(b).Lanes()); n != 1 {
		t.Errorf("%d lanes end at the receiver, want 1", n)
	}
	z := shareMemory(t, b) // another receiver at the same address
	if other := x.netdev.Lane(a, b, z.qpn()); other == nil || other == o {
		t.Errorf("the lane to another receiver is %p, want one that is not %p", other, o)
	}
	if back := x.netdev.Lane(b, b, y.qpn()); back == o {
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
	}{{0, false}, {laneDescriptors - 1, false}, {20, true}} {
		most := uint64(next()+tt.free) * sparePart / (sparePart - 1)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		clear(x.netdev.lanes.refused)
		if got := x.netdev.Lane(a, b, y.qpn()) != nil; got != tt.want {
			t.Errorf("with %d descriptors free below three quarters of %d: a lane %v, want %v", tt.free, most, got, tt.want)
		}
	}
}
