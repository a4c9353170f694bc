//go:build !adverb_portable

package shm

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const regionSize = 64 << 10

const shareSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// granting is a lane whose receiver grants all requests. hear delivers the messages between the ends.
type granting struct {
	t      *testing.T
	o      *Out
	in     *In
	box    *Inbox
	region File
	bytes  []byte
	said   []func()
	refuse error // when the receiver answers

	grants []*Grant
	got    []*Access
	lost   int
}

func newGranting(t *testing.T) *granting {
	g := &granting{t: t}
	g.o, g.in, g.box = lane(t)
	g.region, g.bytes = file(t, 7, regionSize, shareSeals)
	g.o.ask = func(a Ask) error { g.said = append(g.said, func() { g.in.Asked(a) }); return nil }
	g.in.grants.say = func(x Granted, revoked bool) error {
		if g.refuse != nil {
			return g.refuse
		}
		g.said = append(g.said, func() {
			if revoked {
				g.o.Revoked(x.Slot, x.Gen)
			} else {
				g.o.Answered(x)
			}
		})
		return nil
	}
	g.box.OnAsk(func(in *In, a Ask) {
		g.grants = append(g.grants, in.Grant(Granted{Slot: a.Slot, Rights: a.Key, Write: a.Key > 1, Base: 1 << 40, Len: regionSize - 100, File: g.region}))
	})
	return g
}

func (g *granting) hear() {
	for len(g.said) > 0 {
		f := g.said[0]
		g.said = g.said[1:]
		f()
	}
}

// ask asks for rights, and returns the access if there is one.
func (g *granting) ask(rights uint32) *Access {
	g.t.Helper()
	before := len(g.got)
	if !g.o.Ask(Ask{From: 3, To: 4, Key: rights}, func(a *Access) bool { g.got = append(g.got, a); return true }, func() { g.lost++ }) {
		g.t.Fatal("the receiver could not be asked")
	}
	g.hear()
	if len(g.got) == before {
		return nil
	}
	return g.got[len(g.got)-1]
}

// TestAccess: the sender works on the very memory of the receiver, until the receiver revokes the grant or the sender
// returns the access. A file is mapped once, and unmapped with the last access.
func TestAccess(t *testing.T) {
	g := newGranting(t)
	a, b := g.ask(2), g.ask(3)
	if a == nil || b == nil || len(a.Bytes) != regionSize-100 || a.Base != 1<<40 || a.Rights != 2 || !a.Write {
		t.Fatalf("got %+v and %+v, want access to %d bytes", a, b, regionSize-100)
	}
	g.o.Answered(Granted{Slot: a.slot, Rights: 2, Len: 10, File: g.region}) // an answer too many, which changes nothing
	if g.o.AccessFiles() != 1 {
		t.Errorf("%d files are mapped, want 1", g.o.AccessFiles())
	}
	if !a.Begin(5000) {
		t.Fatal("no access while the grant holds")
	}
	if a.Bytes[5000] = 99; g.bytes[5000] != 99 {
		t.Error("the sender's write is not in the receiver's memory")
	}
	a.End()
	if off, n := g.grants[0].Revoke(); n != 0 {
		t.Errorf("the sender is said to be at work at %d, and is not, want it at none", off)
	}
	if a.Begin(5000) {
		t.Error("access to a revoked region")
	}
	if busy := a.busy.Load(); busy&1 != 0 { // the end of the slot's next grant would wait for this operation
		t.Errorf("the slot says %#x after a Begin that was refused, want it to say that nobody is at work", busy)
	}
	if !b.Begin(0) {
		t.Error("no access by another grant, which holds")
	}
	b.End()
	if g.hear(); g.lost != 1 {
		t.Errorf("%d were told that their access has ended, want 1", g.lost)
	}
	g.o.Return(a)
	g.o.Return(a) // nothing
	if g.o.AccessFiles() != 1 {
		t.Errorf("%d files are mapped while one is in use, want it", g.o.AccessFiles())
	}
	if g.o.Return(b); g.o.AccessFiles() != 0 {
		t.Errorf("%d files are mapped after the last was returned, want none", g.o.AccessFiles())
	}
	if off, n := g.grants[0].Revoke(); n != 0 { // again
		t.Errorf("a second Revoke finds the sender at work at %d, want it at none", off)
	}
}

// TestRevokeWaits: Revoke returns once the sender has finished the operation that it has begun.
func TestRevokeWaits(t *testing.T) {
	g := newGranting(t)
	a := g.ask(2)
	if !a.Begin(0) {
		t.Fatal("no access")
	}
	type stuck struct{ off, n uint64 }
	revoked := make(chan stuck)
	go func() {
		off, n := g.grants[0].Revoke()
		revoked <- stuck{off, n}
	}()
	state := g.in.slotWord(a.slot, 0)
	for deadline := time.Now().Add(patience); state.Load() != 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("the slot is in state %d after %v, want Revoke to have begun", state.Load(), patience)
		}
	}
	select {
	case <-revoked:
		t.Error("Revoke has returned while the sender was at work")
	default:
		a.End()
		if s := <-revoked; s.n != 0 {
			t.Errorf("the sender is said to be stuck at %+v, want it not stuck", s)
		}
	}
}

// TestRevokeStuck: a sender that was stopped in the middle of an operation delays Revoke no longer than revokeTime.
// Revoke returns the operation's place. A sender that has ended delays nothing.
func TestRevokeStuck(t *testing.T) {
	g := newGranting(t)
	a := g.ask(2)
	const at = 3*4096 + 50
	if !a.Begin(at) {
		t.Fatal("no access")
	}
	start := time.Now()
	off, n := g.grants[0].Revoke()
	if off > at || off+n < at+AccessMost || time.Since(start) < revokeTime {
		t.Errorf("stuck in %d bytes from %d on after %v; want %d bytes from %d on to be among them, after %v", n, off, time.Since(start), AccessMost, at, revokeTime)
	}
	if again, m := g.grants[0].Revoke(); again != off || m != n {
		t.Errorf("another who calls Revoke hears of %d bytes from %d on, want %d from %d on as the first", m, again, n, off)
	}
	b := g.ask(2)
	if !b.Begin(0) {
		t.Fatal("no access")
	}
	g.in.Leave()
	if off, n := g.grants[1].Revoke(); n != 0 {
		t.Errorf("a sender that has ended is said to be stuck at %d, want it at none", off)
	}
}

// TestAccessRefused: a refusal, memory that cannot be mapped, and answers without a request give no access, and are
// harmless.
func TestAccessRefused(t *testing.T) {
	g := newGranting(t)
	if a := g.ask(0); a != nil || g.lost != 1 {
		t.Errorf("got %+v for a refusal, and was told %d times; want nothing, once", a, g.lost)
	}
	// A file stays mapped as it was at first. The sender would die of a write to memory that is mapped for reading.
	r := g.ask(1)
	if r == nil || r.Write {
		t.Fatal("a right to read: got no access, or one that writes; want one that does not")
	}
	if a := g.ask(2); a != nil {
		t.Errorf("a right to write to a file that is mapped for reading: got access from %#x on, want none", a.Base)
	}
	g.o.Return(r)
	canShrink, _ := file(t, 8, regionSize, unix.F_SEAL_GROW)
	readOnly, _ := file(t, 9, regionSize, shareSeals|unix.F_SEAL_FUTURE_WRITE)
	for name, x := range map[string]Granted{
		"a file that can shrink":     {Rights: 2, Len: 10, File: canShrink},
		"a file that is for reading": {Rights: 2, Write: true, Len: 10, File: readOnly},
		"more than the file":         {Rights: 2, Len: regionSize + 1, File: g.region},
		"nothing":                    {Rights: 2, File: g.region},
		"a file that is not as long": {Rights: 2, Len: 10, File: File{ID: 10, FD: g.region.FD, Size: 2 * regionSize}},
		"an offset behind the end":   {Rights: 2, Len: 10, File: File{ID: 10, FD: g.region.FD, Off: regionSize - 9, Size: 10}},
		"a negative offset":          {Rights: 2, Len: 10, File: File{ID: 10, FD: g.region.FD, Off: -4096, Size: 10}},
		"a negative size":            {Rights: 2, Len: 10, File: File{ID: 10, FD: g.region.FD, Size: -1}},
		"no file":                    {Rights: 2, Len: 10, File: File{ID: 10, FD: -1, Size: regionSize}},
	} {
		g.box.OnAsk(func(_ *In, a Ask) { x.Slot = a.Slot; g.o.Answered(x) })
		if a := g.ask(2); a != nil {
			t.Errorf("%s: got %+v, want no access", name, a)
		}
	}
	if g.o.AccessFiles() != 0 {
		t.Errorf("%d files are mapped, want none", g.o.AccessFiles())
	}
	for _, slot := range []uint32{0, maxSlots - 1, maxSlots, 1<<32 - 1} {
		g.o.Answered(Granted{Slot: slot, Rights: 2, Len: 10, File: g.region})
		g.o.Revoked(slot, 1)
		if g.in.Grant(Granted{Slot: slot, Rights: 2, Len: 10, File: g.region}) != nil != (slot < maxSlots) {
			t.Errorf("slot %d: want it to be granted below %d", slot, maxSlots)
		}
	}
}

// TestAccessLimits: a lane has maxSlots grants. A returned one makes room for another.
func TestAccessLimits(t *testing.T) {
	g := newGranting(t)
	for range maxSlots {
		g.ask(2)
	}
	if g.o.Ask(Ask{}, nil, nil) {
		t.Errorf("more than %d were asked for, want that refused", maxSlots)
	}
	last := g.got[len(g.got)-1]
	g.o.Return(last)
	again := g.ask(2)
	if again == nil || again.slot != last.slot || !again.Begin(0) {
		t.Fatalf("got %+v by the slot that was returned, want one that can begin", again)
	}
	again.End()
	g.o.Return(last) // nothing: the slot is another's
	g.o.Revoked(last.slot, last.gen)
	if s := g.o.slot(again.slot); s == nil || s.access != again || g.lost != 0 {
		t.Errorf("a second Return, and a late notice of the end, of a returned access: got %+v, and %d losses; want another's access, and none", s, g.lost)
	}
	if last.state.Load() == last.gen {
		t.Error("a returned access still holds")
	}
	if _, n := g.grants[maxSlots-1].Revoke(); n != 0 || !again.Begin(0) {
		t.Error("the end of a returned access has ended another")
	}
}

// TestAccessLaneEnds: each access is told of the lane's end before the memory goes, and nothing is requested or
// granted after the end.
func TestAccessLaneEnds(t *testing.T) {
	g := newGranting(t)
	a := g.ask(2)
	told := 0
	g.o.accesses.slots[a.slot].lost = func() {
		told++
		if !a.Begin(0) { // the words are still there
			t.Error("the grant has ended with the sender's end of the lane")
		}
		a.End()
		g.o.Return(a)
	}
	g.o.Close()
	g.o.Close()
	if !g.o.Broken() { // QPs would go on to use it
		t.Error("a lane that was closed is not broken, want it to be")
	}
	if told != 1 || g.o.AccessFiles() != 0 {
		t.Errorf("told %d times, and %d files are mapped; want once, and none", told, g.o.AccessFiles())
	}
	if g.o.Ask(Ask{}, nil, nil) {
		t.Error("asked by a closed lane")
	}
	g.o.Answered(Granted{Rights: 2, Len: 10, File: g.region})
	g.box.Drop(g.in)
	if g.in.Grant(Granted{Rights: 2, Len: 10, File: g.region}) != nil {
		t.Error("granted by a lane that was dropped")
	}
	if _, n := g.grants[0].Revoke(); n != 0 {
		t.Error("stuck, by a lane that was dropped")
	}
}

// TestAccessLaneDropped: with the receiver's end of the lane all grants end. The sender may not know yet: Revoke
// hangs up on a sender that does not answer, since it was stopped, and goes on later.
func TestAccessLaneDropped(t *testing.T) {
	g := newGranting(t)
	a, b := g.ask(2), g.ask(2)
	g.box.Drop(g.in)
	for _, grant := range g.grants {
		grant.Revoke()
	}
	if a.Begin(0) || b.Begin(0) {
		t.Error("access by a lane that the receiver has dropped")
	}
}

// TestRevokeUnheard: a sender that cannot be told of the end loses its lane, since it would keep the memory.
func TestRevokeUnheard(t *testing.T) {
	g := newGranting(t)
	g.ask(2)
	hung := 0
	g.in.hangup = func() { hung++ }
	g.refuse = errors.New("no room")
	if g.grants[0].Revoke(); hung != 1 {
		t.Errorf("the receiver has hung up %d times, want once", hung)
	}
	if g.refuse = nil; g.in.Grant(Granted{Slot: 5, Rights: 2, Len: 10, File: g.region}) == nil {
		t.Error("nothing is granted though the sender hears again")
	}
	g.refuse = errors.New("no room")
	if g.in.Grant(Granted{Slot: 6, Rights: 2, Len: 10, File: g.region}) != nil || g.in.slotWord(6, 0).Load() != 0 {
		t.Error("granted, though the sender does not hear of it")
	}
	g.in.hangup = func() {}
}

// TestGrantUnheard: a sender whose answer cannot be sent is refused, so that it can ask again. A sender that cannot
// be refused either loses its lane.
func TestGrantUnheard(t *testing.T) {
	g := newGranting(t)
	hung := 0
	g.in.hangup = func() { hung++ }
	say := g.in.grants.say
	g.in.grants.say = func(x Granted, revoked bool) error {
		if x.Rights != 0 {
			return unix.ETOOMANYREFS
		}
		return say(x, revoked)
	}
	if a := g.ask(2); a != nil || g.lost != 1 || hung != 0 {
		t.Errorf("the grant cannot be sent: got access %v, was told %d times that there is none, and the receiver has hung up %d times; want none, once, never",
			a != nil, g.lost, hung)
	}
	if g.in.grants.say = say; g.ask(2) == nil {
		t.Error("asked again: got no access, want it")
	}
	g.refuse = unix.EAGAIN
	if g.ask(2); hung != 1 {
		t.Errorf("no answer can be sent: the receiver has hung up %d times, want once", hung)
	}
	if g.ask(0); hung != 2 {
		t.Errorf("no refusal can be sent: the receiver has hung up %d times in all, want twice", hung)
	}
	g.in.hangup = func() {}
}

// FuzzAnswered: whatever the receiver answers, access is to bytes that are mapped.
func FuzzAnswered(f *testing.F) {
	o, fd, err := NewOut()
	if err != nil {
		f.Fatal(err)
	}
	unix.Close(fd)
	o.ask = func(Ask) error { return nil }
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 1, 0, 7, 1})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 26 {
			return
		}
		region, _ := file(t, 7, regionSize, shareSeals)
		x := Granted{Gen: binary.BigEndian.Uint64(in), Len: binary.BigEndian.Uint64(in[8:]), Rights: uint32(in[25]), Write: in[25]&1 != 0, File: region}
		x.File.Size = int64(binary.BigEndian.Uint64(in[16:]))
		var got *Access
		if !o.Ask(Ask{}, func(a *Access) bool { got = a; return true }, func() {}) {
			t.Fatal("no slot is free")
		}
		o.Answered(x)
		o.Revoked(0, uint64(in[0]))
		if got != nil {
			sum := byte(0)
			for i := range got.Bytes {
				sum += got.Bytes[i]
			}
			if len(got.Bytes) > regionSize || got.Write != x.Write {
				t.Fatalf("got %d bytes of %d, to be written: %v, want it to be: %v", len(got.Bytes), regionSize, got.Write, x.Write)
			}
			o.Return(got)
		}
		if o.AccessFiles() != 0 {
			t.Fatal("a file stays mapped")
		}
	})
}
