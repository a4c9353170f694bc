//go:build !adverb_portable

package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

var home = netip.MustParseAddr("127.0.0.1")

const patience = 30 * time.Second // until a test that waits in real time gives up

// lane makes a lane of two mappings, as two processes have them.
func lane(t testing.TB) (*Out, *In, *Inbox) {
	o, in, b, _ := laneBack(t)
	return o, in, b
}

// laneBack is lane, and returns the inbox too whose bell is the sender's.
func laneBack(t testing.TB) (o *Out, in *In, b, back *Inbox) {
	t.Helper()
	o, fd, err := NewOut()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	b = new(Inbox)
	o.Connect(bellOf(t, b), func() {}, nil, nil)
	back = new(Inbox)
	in, err = b.Add(fd, bellOf(t, back), home, 1, func() {}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close(); b.Close(); back.Close() })
	return o, in, b, back
}

// bellOf returns an inbox's bell as another process gets it.
func bellOf(t testing.TB, b *Inbox) Bell {
	t.Helper()
	fd, err := b.ShareBell()
	if err != nil {
		t.Fatal(err)
	}
	bell, err := NewBell(fd)
	if err != nil {
		t.Fatal(err)
	}
	return bell
}

// rings returns how often an inbox's bell has rung.
func rings(b *Inbox) uint64 {
	var n [8]byte
	if _, err := unix.Read(b.bell.fd-1, n[:]); err != nil {
		return 0
	}
	return binary.NativeEndian.Uint64(n[:])
}

// send sends a record, or reports that there is no room.
func send(o *Out, b []byte) bool {
	o.Lock()
	defer o.Unlock()
	buf := o.Reserve(len(b))
	if buf == nil {
		return false
	}
	copy(buf, b)
	o.Commit(len(b), 1)
	o.Publish()
	return true
}

// fill fills b with bytes that depend on the record's number only.
func fill(b []byte, number uint64) []byte {
	for i := range b {
		b[i] = byte(number*31 + uint64(i))
	}
	return b
}

// TestRecords sends records of random sizes through a lane many times around, while another goroutine
// takes them.
func TestRecords(t *testing.T) {
	o, in, _ := lane(t)
	seed := linktest.Seed(t)
	const count = 5000
	deadline := time.Now().Add(patience)
	go func() {
		sizes := rand.New(rand.NewPCG(seed, 0))
		buf := make([]byte, 8192)
		for n := uint64(0); n < count; {
			b := fill(buf[:sizes.IntN(len(buf))], n)
			for !send(o, b) {
				if time.Now().After(deadline) {
					return
				}
				runtime.Gosched()
			}
			n++
		}
	}()
	sizes := rand.New(rand.NewPCG(seed, 0))
	want := make([]byte, 8192)
	for n := uint64(0); n < count; {
		b := in.Next()
		if b == nil {
			if time.Now().After(deadline) {
				t.Fatalf("%d records after %v, want %d", n, patience, count)
			}
			in.Release()
			runtime.Gosched()
			continue
		}
		if w := fill(want[:sizes.IntN(len(want))], n); !bytes.Equal(b, w) {
			t.Fatalf("seed %d: record %d has %d bytes, and %d other ones were sent, want those", seed, n, len(b), len(w))
		}
		n++
	}
}

// TestTurn: while its receiver keeps up, a sender uses only the beginning of the ring. When the receiver is behind,
// the sender uses all the ring.
func TestTurn(t *testing.T) {
	o, in, _ := lane(t)
	const size = 1000
	number := uint64(0)
	// pass sends n records, with so many on their way, and returns how far into the ring they went.
	pass := func(n, behind int) (most uint64) {
		want, sent := make([]byte, size), number
		take := func() {
			if b := in.Next(); !bytes.Equal(b, fill(want, number)) {
				t.Fatalf("record %d has %d bytes, want %d of its own", number, len(b), size)
			}
			in.Release()
			number++
		}
		for range n {
			if sent-number == uint64(behind) {
				take()
			}
			if !send(o, fill(make([]byte, size), sent)) {
				t.Fatalf("record %d, with %d on their way, found no room, want room", sent, sent-number)
			}
			sent++
			most = max(most, (o.sent-1)%ringBytes+1)
		}
		for number < sent {
			take()
		}
		if in.Next() != nil {
			t.Fatal("there is a record more than were sent")
		}
		in.Release()
		return most
	}
	const rounds = 5 * ringBytes / size
	if most := pass(rounds, 1); most > hotBytes+size+recordAlign {
		t.Errorf("the ring was used up to byte %d, want %d or little more", most, hotBytes)
	}
	if most := pass(rounds, 3*hotBytes/4/size); most <= ringBytes-hotBytes {
		t.Errorf("with the receiver behind, the ring was used up to byte %d, want all %d", most, ringBytes)
	}
	pass(rounds/2+17, 3*hotBytes/4/size) // to any place
	if pass(ringBytes/size, 1); o.pos%ringBytes > hotBytes+size+recordAlign {
		t.Errorf("with a receiver that keeps up again, the sender is at byte %d of the ring, want it back at its beginning", o.pos%ringBytes)
	}

	// A sender may find nothing to send after it has turned.
	for o.pos < o.look {
		if !send(o, make([]byte, size)) {
			t.Fatal("no room in a lane that is empty, want some")
		}
		in.Next()
		in.Release()
	}
	o.Lock()
	o.Reserve(size)
	o.Publish()
	o.Unlock()
	if o.pos%ringBytes != 0 {
		t.Fatalf("the sender is at byte %d of the ring, want it to have turned", o.pos%ringBytes)
	}
	if in.Next() != nil {
		t.Error("there is a record that nobody has sent")
	}
	if in.Release(); o.head.Load() != o.pos {
		t.Errorf("the receiver has given back the ring up to %d, want %d", o.head.Load(), o.pos)
	}
}

// TestPackets: a record has a number of packets. The receiver takes no number above the possible ones.
func TestPackets(t *testing.T) {
	o, in, _ := lane(t)
	for _, tt := range []struct{ say, want int }{{1, 1}, {4, 4}, {0, 0}, {maxPackets, maxPackets}, {1<<24 - 1, maxPackets}} {
		o.Lock()
		o.Reserve(5)
		o.Commit(5, tt.say)
		o.Publish()
		o.Unlock()
		if b := in.Next(); len(b) != 5 || in.Packets() != tt.want || in.Lent() != nil {
			t.Errorf("a record of 5 bytes for %d packets: got %d bytes for %d, lent %v; want 5 for %d, not lent", tt.say, len(b), in.Packets(), in.Lent(), tt.want)
		}
	}
}

// TestFull: a lane takes no more than its space, and again as much once the receiver has read. A receiver that reads
// nothing is stuck after a while, and not before.
func TestFull(t *testing.T) {
	o, in, _ := lane(t)
	record := make([]byte, 1000)
	fits := ringBytes / 1024
	for round := range 3 {
		n := 0
		for n <= fits && send(o, record) {
			n++
		}
		if n != fits {
			t.Fatalf("round %d: %d records of 1024 bytes fit into %d, want %d", round, n, ringBytes, fits)
		}
		now := time.Duration(round) * time.Hour
		if o.Stuck(now, time.Second) || o.Stuck(now+time.Second-1, time.Second) {
			t.Fatal("the receiver is stuck before its time")
		}
		if !o.Stuck(now+time.Second, time.Second) {
			t.Fatal("the receiver is not stuck after its time")
		}
		for range fits {
			if in.Next() == nil {
				t.Fatal("a record is missing")
			}
		}
		if in.Next() != nil {
			t.Fatal("a record too many")
		}
		if send(o, record) {
			t.Fatal("there is room before the receiver has given records back")
		}
		in.Release()
	}
	// A receiver that has read something since is slow, and not stopped, though a long record still finds no room.
	for send(o, record) {
	}
	o.Stuck(0, time.Second)
	in.Next()
	in.Release()
	if o.Reserve(2*len(record)) != nil || o.Stuck(time.Second, time.Second) {
		t.Error("a receiver that has read one record in a second is stuck, or has made room for two; want neither")
	}
}

// TestBell: a sender rings for a sleeping receiver, once, and for no other. A record from before the sleep ends the
// sleep.
func TestBell(t *testing.T) {
	o, in, box := lane(t)
	one := []byte("one")
	send(o, one)
	if n := rings(box); n != 0 {
		t.Fatalf("%d rings for a receiver that is awake, want none", n)
	}
	if box.Sleep() {
		t.Fatal("a receiver may sleep though a record has come")
	}
	box.Awake()
	in.Next()
	in.Release()
	if !box.Sleep() {
		t.Fatal("a receiver may not sleep though it has read all")
	}
	send(o, one)
	send(o, one)
	if n := rings(box); n != 1 {
		t.Fatalf("%d rings for a receiver that sleeps, and two records, want one", n)
	}
	box.Awake()
	send(o, one)
	if n := rings(box); n != 0 {
		t.Fatalf("%d rings for a receiver that has woken, want none", n)
	}
	for in.Next() != nil {
	}
	in.Release()
	if !box.Sleep() {
		t.Fatal("a receiver may not sleep a second time")
	}
	o.bell.Ring() // late: the sender has seen an earlier sleep
	box.Awake()
	if n := rings(box); n != 0 {
		t.Fatal("the bell rings on after the receiver has woken")
	}
	in.Leave()
	if box.Sleep() {
		t.Fatal("a receiver may sleep though a sender's end is to be dealt with")
	}
}

// TestRoomBell: a sender that waits for room gets the bell once half of the lane is free, once, and not before. A
// sender that does not wait gets no bell.
func TestRoomBell(t *testing.T) {
	o, in, _, back := laneBack(t)
	record := make([]byte, 1000)
	fits := ringBytes / 1024
	fill := func() {
		for range fits {
			send(o, record)
		}
		if send(o, record) {
			t.Fatalf("there is room for more than %d records of 1024 bytes in %d, want none", fits, ringBytes)
		}
	}
	take := func(n int) {
		for range n {
			in.Next()
		}
		in.Release()
	}
	fill()
	take(fits)
	if n := rings(back); n != 0 {
		t.Fatalf("%d rings for a sender that does not wait, want none", n)
	}
	if !o.AwaitRoom() {
		t.Fatal("a sender is to wait though the lane is empty")
	}
	fill()
	if o.Roomy() || o.AwaitRoom() {
		t.Fatal("a sender need not wait though the lane is full")
	}
	take(fits/2 - 1)
	if n := rings(back); n != 0 || o.Roomy() {
		t.Fatalf("%d rings before half of the lane is free, want none, and no room", n)
	}
	take(1)
	if n := rings(back); n != 1 || !o.Roomy() {
		t.Fatalf("%d rings when half of the lane is free, want 1", n)
	}
	take(fits / 2)
	if n := rings(back); n != 0 {
		t.Fatalf("%d rings more, want none", n)
	}
	fill()
	o.Hangup()
	if !o.AwaitRoom() {
		t.Fatal("a sender waits for room in a broken lane")
	}
	o.Close()
	if !o.AwaitRoom() || !o.Roomy() {
		t.Fatal("a sender waits for room in a closed lane")
	}
}

// TestSenderEnds: the records that a sender has published before its end are received. Then the lane is finished, and
// Drop gives its memory back.
func TestSenderEnds(t *testing.T) {
	o, fd, err := NewOut()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	dropped := 0
	b := new(Inbox)
	defer b.Close()
	in, err := b.Add(fd, Bell{}, home, 1, func() { dropped++ }, nil)
	if err != nil {
		t.Fatal(err)
	}
	mapped := countMapped(t)
	if _, err := b.Add(fd, Bell{}, home, 1, func() {}, nil); err == nil {
		t.Fatal("the inbox takes more lanes than its limit")
	}
	if n := countMapped(t); n != mapped {
		t.Errorf("%d mappings after a lane was refused, want %d as before", n, mapped)
	}
	send(o, []byte("last"))
	o.Lock()
	copy(o.Reserve(5), "never") // the sender is killed before Publish
	o.Commit(5, 1)
	o.Unlock()
	o.Close()
	in.Leave()
	if in.Finished() {
		t.Fatal("the lane is finished before its last record was read")
	}
	if got := in.Next(); string(got) != "last" {
		t.Fatalf("%q, and not the last record, want \"last\"", got)
	}
	if in.Next() != nil || !in.Finished() {
		t.Fatal("the lane is not finished")
	}
	b.Drop(in)
	if len(b.Lanes()) != 0 || dropped != 1 {
		t.Fatalf("%d lanes after Drop, and %d calls of dropped, want none and one", len(b.Lanes()), dropped)
	}
	if send(o, []byte("late")) {
		t.Fatal("a closed lane takes a record")
	}
	b.Close()
	if _, err := b.Add(fd, Bell{}, home, 1, func() {}, nil); err == nil { // a lane without hangup would never be unmapped
		t.Fatal("an inbox that was closed takes a lane, want an error")
	}
}

// TestScribble has either end scribble over all shared memory, while the other goes on. The other meets only records
// within the ring, or a broken lane.
func TestScribble(t *testing.T) {
	seed := linktest.Seed(t)
	for round := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, round))
		o, in, b := lane(t)
		scribble := func() {
			switch v := rnd.Uint64() >> rnd.IntN(64); rnd.IntN(5) {
			case 0:
				in.tail.Store(v)
			case 1:
				in.head.Store(v)
			case 2:
				in.tail.Store(in.pos + v%(2*ringBytes))
			case 3:
				binary.NativeEndian.PutUint32(in.data[in.pos&(in.size-1):], uint32(v))
			case 4:
				in.wants.Store(uint32(v))
				in.asleep.Store(uint32(v))
			}
		}
		record := make([]byte, 3000)
		sum := 0
		for range 100 {
			send(o, record[:rnd.IntN(len(record))])
			if rnd.IntN(8) == 0 {
				scribble()
			}
			for range rnd.IntN(4) {
				if r := in.Next(); r != nil {
					if len(r) > ringBytes {
						t.Fatalf("seed %d, round %d: a record of %d bytes, want %d at most", seed, round, len(r), ringBytes)
					}
					sum += touch(r)
				}
			}
			in.Release()
		}
		_ = b.Sleep()
		b.Awake()
		_, _ = o.AwaitRoom(), o.Roomy()
		_ = sum
		o.Close()
		b.Close()
	}
}

// TestNonsense: an impossible value ends the lane at once, in both directions, and nothing of the record is used.
func TestNonsense(t *testing.T) {
	record := make([]byte, 1000)
	for name, scribble := range map[string]func(*In){
		"a tail beyond the ring":                 func(in *In) { in.tail.Store(in.pos + ringBytes + recordAlign) },
		"a tail behind the read records":         func(in *In) { in.tail.Store(in.pos - recordAlign) },
		"a record longer than the written bytes": func(in *In) { binary.NativeEndian.PutUint32(in.data[in.pos&(in.size-1):], 2000) },
		"a record that is longer than the ring":  func(in *In) { binary.NativeEndian.PutUint32(in.data[in.pos&(in.size-1):], 2*ringBytes) },
		"a record that ends with the whole ring": func(in *In) { binary.NativeEndian.PutUint32(in.data[in.pos&(in.size-1):], ringBytes) },
	} {
		o, in, _ := lane(t)
		send(o, record)
		if in.Next() == nil {
			t.Fatal("the first record does not come")
		}
		in.Release()
		send(o, record)
		scribble(in)
		if r := in.Next(); r != nil || !in.Finished() {
			t.Errorf("%s: got a record of %d bytes, lane broken: %v, want no record and a broken lane", name, len(r), in.Finished())
		}
		if send(o, record); in.Next() != nil {
			t.Errorf("%s: got a record by a broken lane, want none", name)
		}
	}
	for name, head := range map[string]func(*Out) uint64{
		"a head beyond the written records": func(o *Out) uint64 { return o.pos + recordAlign },
		"a head far beyond":                 func(o *Out) uint64 { return o.pos + 1<<40 },
		"a head that goes back":             func(o *Out) uint64 { return o.seen - recordAlign },
	} {
		o, in, _ := lane(t)
		for range 2 { // the second time the sender has seen a head
			for range ringBytes / len(record) {
				send(o, record)
			}
			if o.Broken() {
				t.Fatal("a full lane is broken")
			}
			for range 100 {
				in.Next()
			}
			in.Release()
		}
		for range ringBytes / len(record) {
			send(o, record)
		}
		in.head.Store(head(o))
		if send(o, record) || !o.Broken() {
			t.Errorf("%s: the lane is broken: %v, want it broken, and no record sent", name, o.Broken())
		}
	}
}

// touch reads both ends of b: outside the mapping it would fault.
func touch(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	return int(b[0]) + int(b[len(b)-1])
}

// TestForeignMemory: memory that its maker could shrink, or of another size, makes no lane.
func TestForeignMemory(t *testing.T) {
	for name, make := range map[string]func(fd int) error{
		"no seals": func(fd int) error { return unix.Ftruncate(fd, FileSize) },
		"too short": func(fd int) error {
			if err := unix.Ftruncate(fd, FileSize-1); err != nil {
				return err
			}
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, laneSeals)
			return err
		},
	} {
		fd, err := unix.MemfdCreate("foreign", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if err := make(fd); err != nil {
			t.Fatal(err)
		}
		if _, err := new(Inbox).Add(fd, Bell{}, home, 1, func() {}, nil); err == nil {
			t.Errorf("%s: taken for a lane's, want an error", name)
		}
		unix.Close(fd)
	}
}

// TestAllocs: a record costs no memory.
func TestAllocs(t *testing.T) {
	o, in, b := lane(t)
	record := make([]byte, 64)
	if n := testing.AllocsPerRun(1000, func() {
		send(o, record)
		for _, in := range b.Lanes() {
			in.Next()
			in.Release()
		}
	}); n != 0 {
		t.Fatalf("%v allocations for a record, want none", n)
	}
	_ = in
}

func BenchmarkRecord64(b *testing.B) {
	o, in, _ := lane(b)
	record := make([]byte, 64)
	for b.Loop() {
		send(o, record)
		in.Next()
		in.Release()
	}
}

// countMapped returns how often shared memory is mapped.
func countMapped(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("/memfd:"))
}

// countBells returns how many eventfds are open.
func countBells(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, _ := os.Readlink(f); to == "anon_inode:[eventfd]" {
			n++
		}
	}
	return n
}

// TestNothingStaysMapped: the mapping of the receiver's memory ends with its last use, and the mapping of a lane with
// the lane's ends. So do the descriptors of bells.
func TestNothingStaysMapped(t *testing.T) {
	before, bells := countMapped(t), countBells(t)
	t.Run("lane", func(t *testing.T) {
		g := newGranting(t)
		idle := countMapped(t)
		a, b := g.ask(2), g.ask(3)
		used := countMapped(t)
		g.o.Return(a)
		if n := countMapped(t); used <= idle || n != used {
			t.Errorf("%d mappings, %d with two accesses, and %d with one; want more with any", idle, used, n)
		}
		if g.o.Return(b); countMapped(t) != idle {
			t.Errorf("%d mappings after the last access was returned, want %d as before", countMapped(t), idle)
		}
		g.o.Close()
		if n := countMapped(t); n >= idle {
			t.Errorf("%d mappings after the sender has closed its end, want fewer than %d", n, idle)
		}
	})
	if n := countMapped(t); n != before {
		t.Errorf("%d mappings are left, want %d as before", n, before)
	}
	if n := countBells(t); n != bells {
		t.Errorf("%d bells are left, want %d as before", n, bells)
	}
}

// TestBellClosesOnce: a bell that is closed again does not close a new file with the same descriptor.
func TestBellClosesOnce(t *testing.T) {
	b := new(Inbox)
	defer b.Close()
	bell := bellOf(t, b)
	was := bell.fd - 1
	bell.Close()
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if fd != was {
		t.Fatalf("the next descriptor is %d, want %d, which the bell had", fd, was)
	}
	bell.Close()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		t.Errorf("the descriptor was closed with the bell: %v", err)
	}
}
