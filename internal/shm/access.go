package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/adverb-rdma/adverb/internal/release"
)

// A short operation on the receiver's memory needs no record, if the receiver has granted access to that memory. The
// sender has the memory mapped, and does the operation itself. It asks for each region by the socket that the lane
// was made by. A grant has a slot in the lane's header:
//
//	sender                       slot                  receiver
//	Access.Begin: busy = odd --> busy
//	              state? <------ state <-------------- Grant.Revoke: state = 0
//	works on the memory
//	Access.End: busy = even ---> busy ---------------> Grant.Revoke: waits while busy is odd
//
// Each end writes its word and then looks at the other's. So either the sender sees that the grant has ended, or the
// receiver sees that the sender is at work, and waits. The receiver waits revokeTime at most: then the sender was
// stopped in the middle, and the receiver takes its memory away from under the sender: see mem.File.Detach.

const (
	slotsAt  = 4096 // in the header
	slotSize = 128  // a line for each word
	stateAt  = 0    // in a slot
	busyAt   = 64
	maxSlots = 256

	// AccessMost is the largest operation, in bytes. The goroutine that posts one waits for the copy. Both ends
	// together copy longer payloads faster, each a part: see Loan.
	AccessMost = 64 << 10

	// The receiver waits for a sender that is at work, up to revokeTime. An operation takes microseconds, unless the
	// sender waits for a processor. Memory that cannot be taken away from the sender is worth a longer wait.
	revokeTime = 20 * time.Millisecond
	revokeLong = 2 * time.Second

	// The word busy is odd while the sender is at work. Its upper bits say where, in units of 1<<placeUnit bytes, and
	// those between them change with each operation.
	placeUnit  = 12
	placeShift = 16
)

func (r *ring) slotWord(slot uint32, at int) *atomic.Uint64 {
	return r.word(slotsAt + int(slot)*slotSize + at)
}

// Ask asks for access to a region of the receiver's process.
type Ask struct {
	Slot     uint32
	From, To uint32 // QPNs of the sender and the receiver
	Key      uint32
}

// Granted is the answer to an Ask: the region's place and the rights to it. Without rights it is a refusal.
type Granted struct {
	Slot   uint32
	Write  bool // the rights allow to change the region
	Rights uint32
	Gen    uint64 // no other grant of the lane has this number
	Base   uint64 // virtual address of the first byte
	Len    uint64 // of the region, which begins where the file does
	File   File
	Stays  bool // the memory cannot be taken away from a sender that is stuck; the sender is not told of that
}

// Access is a grant, at the sender. It is used by one goroutine at a time.
type Access struct {
	Rights uint32
	Write  bool   // the memory can be written to, as some of the rights demand
	Base   uint64 // virtual address of the first byte
	Bytes  []byte

	gen, n      uint64
	state, busy *atomic.Uint64
	slot        uint32
	file        uint64
}

// Expect has the line at an offset come, to be written soon.
func (a *Access) Expect(off uint64) { prefetchStoreLine(unsafe.Pointer(&a.Bytes[off])) }

// Begin reports whether an operation at an offset of the region may be carried out. End follows if so.
func (a *Access) Begin(off uint64) bool {
	a.n++
	a.busy.Store(off>>placeUnit<<placeShift | a.n<<1&(1<<placeShift-1) | 1)
	if a.state.Load() == a.gen {
		return true
	}
	a.End()
	return false
}

// End ends an operation.
func (a *Access) End() { release.Store(a.busy, a.n<<1&(1<<placeShift-1)) }

// accesses are the regions that a sender has asked for by a lane, by slot, and the files that it has mapped for them.
type accesses struct {
	slots [maxSlots]*asked
	files map[uint64]*opened
}

type asked struct {
	got    func(*Access) bool
	lost   func()
	access *Access // or nil, before the answer
}

type opened struct {
	bytes []byte
	write bool
	unmap func()
	users int
}

// Ask asks for access to a region. If access is granted, another goroutine calls got, unless lost was called before.
// got reports whether the access is used. Its user calls Return, at the latest when lost is called. If access is not
// granted, lost alone is called. Ask reports whether one of them will be called.
func (o *Out) Ask(a Ask, got func(*Access) bool, lost func()) bool {
	o.Lock()
	defer o.Unlock()
	if o.closed || o.broken.Load() || o.ask == nil {
		return false
	}
	if o.accesses == nil {
		o.accesses = &accesses{files: map[uint64]*opened{}}
	}
	for i := range o.accesses.slots {
		if o.accesses.slots[i] != nil {
			continue
		}
		if a.Slot = uint32(i); o.ask(a) != nil {
			return false
		}
		o.accesses.slots[i] = &asked{got: got, lost: lost}
		return true
	}
	return false
}

// Answered takes the answer to an Ask. The caller closes the file's descriptor.
func (o *Out) Answered(g Granted) {
	o.Lock()
	s := o.slot(g.Slot)
	if s == nil || s.access != nil {
		o.Unlock()
		return
	}
	a := o.open(g)
	if a == nil {
		o.accesses.slots[g.Slot] = nil
	}
	s.access = a
	o.Unlock()
	if a == nil {
		s.lost()
	} else if !s.got(a) {
		o.Return(a)
	}
}

// slot returns the access with a number that was asked for, or nil. The caller holds the lock.
func (o *Out) slot(slot uint32) *asked {
	if o.closed || o.accesses == nil || slot >= maxSlots {
		return nil
	}
	return o.accesses.slots[slot]
}

// open makes an access of an answer, or returns nil. The caller holds the lock.
func (o *Out) open(g Granted) *Access {
	if g.Rights == 0 || g.Len == 0 || g.Len > uint64(max(0, g.File.Size)) {
		return nil
	}
	f := o.accesses.files[g.File.ID]
	switch {
	case f == nil:
		b, unmap, err := mapFile(g.File, g.Write)
		if err != nil {
			return nil
		}
		f = &opened{bytes: b, unmap: unmap, write: g.Write}
		o.accesses.files[g.File.ID] = f
	case g.Len > uint64(len(f.bytes)) || g.Write && !f.write:
		return nil
	}
	f.users++
	return &Access{
		Rights: g.Rights, Write: g.Write, Base: g.Base, Bytes: f.bytes[:g.Len:g.Len], gen: g.Gen, slot: g.Slot, file: g.File.ID,
		state: o.slotWord(g.Slot, stateAt), busy: o.slotWord(g.Slot, busyAt),
	}
}

// Return ends the use of an access.
func (o *Out) Return(a *Access) {
	o.Lock()
	defer o.Unlock()
	s := o.accesses.slots[a.slot]
	if s == nil || s.access != a {
		return
	}
	o.accesses.slots[a.slot] = nil
	f := o.accesses.files[a.file]
	if f.users--; f.users == 0 {
		delete(o.accesses.files, a.file)
		f.unmap()
	}
}

// AccessFiles returns how many files of the receiver's are mapped.
func (o *Out) AccessFiles() int {
	o.Lock()
	defer o.Unlock()
	if o.accesses == nil {
		return 0
	}
	return len(o.accesses.files)
}

// Revoked takes note that the receiver has ended a grant.
func (o *Out) Revoked(slot uint32, gen uint64) {
	o.Lock()
	s := o.slot(slot)
	over := s != nil && s.access != nil && s.access.gen == gen
	o.Unlock()
	if over {
		s.lost()
	}
}

// losers returns the functions to call, without the lock, when all access ends. The caller of losers holds the lock.
func (o *Out) losers() (lost []func()) {
	if o.accesses == nil {
		return nil
	}
	for _, s := range o.accesses.slots {
		if s != nil {
			lost = append(lost, s.lost)
		}
	}
	return lost
}

// grants are the grants that a receiver has made by a lane, by slot.
type grants struct {
	say func(g Granted, revoked bool) error

	mu    sync.Mutex
	slots map[uint32]*Grant
	gen   uint64
	ended bool
}

// Grant is one at the receiver.
type Grant struct {
	in   *In
	slot uint32
	gen  uint64
	wait time.Duration // of Revoke

	stuckAt, stuck uint64 // the results of Revoke
}

// Asked passes a sender's request to the function that OnAsk has set.
func (i *In) Asked(a Ask) {
	if f := i.box.asked.Load(); f != nil {
		(*f)(i, a)
	} else {
		i.Grant(Granted{Slot: a.Slot})
	}
}

// OnAsk has f answer, by In.Grant, the senders' requests. Other goroutines call f.
func (b *Inbox) OnAsk(f func(*In, Ask)) { b.asked.Store(&f) }

// Grant answers an Ask. The grant holds until Revoke, or the lane's end. Without rights the answer is a refusal, and
// Grant returns nil.
func (i *In) Grant(g Granted) *Grant {
	s := &i.grants
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.say == nil || g.Slot >= maxSlots {
		return nil
	}
	if old := s.slots[g.Slot]; old != nil { // the sender has returned it
		i.slotWord(old.slot, stateAt).Store(0)
		delete(s.slots, g.Slot)
	}
	if g.Rights == 0 {
		i.refuse(g.Slot)
		return nil
	}
	if s.slots == nil {
		s.slots = map[uint32]*Grant{}
	}
	s.gen++
	g.Gen = s.gen
	i.slotWord(g.Slot, stateAt).Store(g.Gen)
	if s.say(g, false) != nil {
		i.slotWord(g.Slot, stateAt).Store(0)
		i.refuse(g.Slot) // a refusal hands over no descriptor: too many of these may be in flight
		return nil
	}
	grant := &Grant{in: i, slot: g.Slot, gen: g.Gen, wait: revokeTime}
	if g.Stays {
		grant.wait = revokeLong
	}
	s.slots[g.Slot] = grant
	return grant
}

// refuse sends a refusal. The caller holds the lock of the grants.
func (i *In) refuse(slot uint32) {
	if i.grants.say(Granted{Slot: slot}, false) != nil {
		i.hangup() // a sender without an answer would wait for ever, and never ask for the key again
	}
}

// Revoke ends the grant. When it returns, the sender no longer touches the memory, unless n is not 0: then the sender
// is stuck in the middle of an operation, which is within n bytes from an offset on. All callers, for the QP and for
// the region, wait and get the same result.
func (g *Grant) Revoke() (off, n uint64) {
	i := g.in
	s := &i.grants
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.slots[g.slot] != g {
		return g.stuckAt, g.stuck
	}
	delete(s.slots, g.slot)
	i.slotWord(g.slot, stateAt).Store(0)
	word := i.slotWord(g.slot, busyAt)
	busy := word.Load()
	for start := time.Now(); busy&1 != 0 && word.Load() == busy && !i.gone.Load(); runtime.Gosched() {
		if time.Since(start) >= g.wait {
			off, n = busy>>placeShift<<placeUnit, AccessMost+1<<placeUnit
			g.stuckAt, g.stuck = off, n
			break
		}
	}
	if s.say(Granted{Slot: g.slot, Gen: g.gen}, true) != nil {
		i.hangup() // the sender does not learn of the end, and would keep the memory
	}
	return off, n
}

// endGrants ends all grants, and takes note that the slots are going to be unmapped. If this end has hung up, the
// sender may live: it has the slots mapped, and looks at them until it learns of the end.
func (i *In) endGrants() {
	s := &i.grants
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.slots {
		i.slotWord(slot, stateAt).Store(0)
	}
	s.ended, s.slots = true, nil
}
