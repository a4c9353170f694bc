// Package idtable gives objects numbers of 24 bits, such as QPNs and the indexes of memory keys,
// and finds them by number without a lock.
package idtable

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Table maps 24-bit numbers to objects. A lookup takes two loads and no lock. Numbers are drawn at
// random, so that packets of an old connection, or a mistake, seldom hit an object.
//
// Numbers come from blocks of 4096. The blocks are chosen at random as well. A further block is
// opened when the blocks in use are three quarters full, so a draw seldom meets a number in use and
// few blocks take memory. But somebody who knows a number need only try those of its block for the others.
// So Spread opens more blocks than that.
//
// The exported fields are set before the first use.
type Table[T any] struct {
	// Limit bounds the objects of the table.
	Limit int
	// Claim asks for a block, given by the upper 12 bits of its numbers. It returns false where
	// somebody else has the block. Where Claim is nil every block is free.
	Claim func(block uint32) (bool, error)
	// Spread is the number of blocks over which numbers are spread from the first one on. Where somebody has
	// the block that was drawn, it is fewer: the fewer blocks are free, the fewer this table takes.
	Spread int
	// Rest is the time for which a number stays unused after its object was removed. Peers may believe
	// for a while in the object that had the number, and packets to it may be under way. At most
	// MaxResting numbers rest; beyond that the oldest are used again early.
	Rest time.Duration
	// Random replaces the system's random numbers, for simulations that replay from a seed.
	Random func() uint32

	blocks [tableBlocks]atomic.Pointer[block[T]]

	mu      sync.Mutex
	opened  []uint32 // numbers of the blocks in use
	spread  bool     // over as many as there will be
	used    int
	resting map[uint32]struct{}
	rested  []restingNumber // the same as resting, the oldest first
}

type restingNumber struct {
	n     uint32
	until time.Time
}

// Sizes of the table. The number of a block is the upper 12 bits of its numbers.
const (
	BlockBits   = 12
	BlockSize   = 1 << BlockBits
	tableBlocks = 1 << (24 - BlockBits)
	blockFill   = BlockSize * 3 / 4

	// MaxResting bounds how many numbers rest.
	MaxResting = 4 * BlockSize
)

type block[T any] [BlockSize]atomic.Pointer[T]

// Get returns the object of a number, or nil. Any number may be asked for.
func (t *Table[T]) Get(n uint32) *T {
	if n >= 1<<24 {
		return nil
	}
	b := t.blocks[n>>BlockBits].Load()
	if b == nil {
		return nil
	}
	return b[n&(BlockSize-1)].Load()
}

// The errors of Add. Those of Claim come as they are.
var (
	ErrFull    = errors.New("the table has reached its limit")
	ErrNoBlock = errors.New("no block of numbers is free")
)

// Add gives v a number. It tells v the number by set, before a lookup can find v.
func (t *Table[T]) Add(v *T, set func(n uint32)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.Limit {
		return ErrFull
	}
	t.endRest()
	if t.used+len(t.resting) >= len(t.opened)*blockFill {
		if err := t.open(); err != nil {
			return err
		}
	}
	t.spreadOut()
	for {
		r := t.random()
		n := t.opened[int(r>>BlockBits)%len(t.opened)]<<BlockBits | r&(BlockSize-1)
		slot := &t.blocks[n>>BlockBits].Load()[n&(BlockSize-1)]
		if _, resting := t.resting[n]; slot.Load() == nil && !resting {
			set(n)
			slot.Store(v)
			t.used++
			return nil
		}
	}
}

// First returns the number of the block that was opened first. It opens a block if there is none.
func (t *Table[T]) First() (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.opened) == 0 {
		if err := t.open(); err != nil {
			return 0, err
		}
	}
	return t.opened[0], nil
}

// open takes a further block into use.
func (t *Table[T]) open() error {
	const draws = 64 // that many meet a free one where one in ten is
	for range draws {
		if ok, err := t.tryOpen(t.random() % tableBlocks); ok || err != nil {
			return err
		}
	}
	start := t.random()
	for i := range uint32(tableBlocks) {
		if ok, err := t.tryOpen((start + i) % tableBlocks); ok || err != nil {
			return err
		}
	}
	return ErrNoBlock
}

// spreadOut opens the blocks that Spread asks for, until somebody else has one. The table can do without
// them.
func (t *Table[T]) spreadOut() {
	for !t.spread {
		if len(t.opened) >= t.Spread {
			t.spread = true
			return
		}
		n := t.random() % tableBlocks
		if usable(n) && t.blocks[n].Load() == nil {
			ok, _ := t.tryOpen(n)
			t.spread = !ok
		}
	}
}

// usable reports whether numbers may come from a block. The first and the last one are left out: they hold
// the QPNs of special QPs and the multicast QPN.
func usable(block uint32) bool { return block != 0 && block != tableBlocks-1 }

// tryOpen takes a block into use, if it is free.
func (t *Table[T]) tryOpen(n uint32) (ok bool, err error) {
	if !usable(n) || t.blocks[n].Load() != nil {
		return false, nil
	}
	if t.Claim != nil {
		if ok, err := t.Claim(n); !ok {
			return false, err
		}
	}
	t.blocks[n].Store(new(block[T]))
	t.opened = append(t.opened, n)
	return true, nil
}

// Len returns how many objects the table holds.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// Remove takes the object of a number out of the table.
func (t *Table[T]) Remove(n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocks[n>>BlockBits].Load()[n&(BlockSize-1)].Store(nil)
	t.used--
	if t.Rest == 0 {
		return
	}
	if t.resting == nil {
		t.resting = map[uint32]struct{}{}
	}
	t.resting[n] = struct{}{}
	t.rested = append(t.rested, restingNumber{n, time.Now().Add(t.Rest)})
	t.endRest()
}

// endRest frees the numbers whose rest is over.
func (t *Table[T]) endRest() {
	over := max(0, len(t.rested)-MaxResting)
	for now := time.Now(); over < len(t.rested) && !now.Before(t.rested[over].until); {
		over++
	}
	for _, r := range t.rested[:over] {
		delete(t.resting, r.n)
	}
	if t.rested = t.rested[over:]; len(t.rested) == 0 {
		t.rested = nil
	}
}

// All calls f for each object. f may remove objects.
func (t *Table[T]) All(f func(*T)) {
	t.mu.Lock()
	opened := append([]uint32(nil), t.opened...)
	t.mu.Unlock()
	for _, n := range opened {
		b := t.blocks[n].Load()
		for i := range b {
			if v := b[i].Load(); v != nil {
				f(v)
			}
		}
	}
}

func (t *Table[T]) random() uint32 {
	if t.Random != nil {
		return t.Random()
	}
	return Random32()
}

// Random32 returns a random number that nobody can predict.
func Random32() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
