package hca

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// A table maps 24-bit numbers, QPNs or the indexes of keys, to objects. Looking up takes two
// loads and no lock. Numbers are drawn at random: who does not know one cannot guess it.
//
// Numbers come from blocks of 4096, chosen at random as well, and a further block is opened
// when those in use are three quarters full, so a draw seldom meets a number in use and few
// blocks take memory.
type table[T any] struct {
	blocks [tableBlocks]atomic.Pointer[block[T]]

	mu     sync.Mutex
	opened []uint32 // numbers of the blocks in use
	used   int
	limit  int
	claim  func(block uint32) (bool, error) // nil: every block is to be had

	// rest is for how long a number is not given again: peers may believe for a while in the QP that had
	// it, and packets to it be under way. The oldest of more than maxResting are given earlier.
	rest    time.Duration
	resting map[uint32]struct{}
	rested  []restingNumber // the same, the oldest first
}

type restingNumber struct {
	n     uint32
	until time.Time
}

const (
	blockBits   = 12
	blockSize   = 1 << blockBits
	tableBlocks = 1 << (24 - blockBits)
	blockFill   = blockSize * 3 / 4
)

type block[T any] [blockSize]atomic.Pointer[T]

// get returns the object of a number, or nil.
func (t *table[T]) get(n uint32) *T {
	if n >= 1<<24 {
		return nil
	}
	b := t.blocks[n>>blockBits].Load()
	if b == nil {
		return nil
	}
	return b[n&(blockSize-1)].Load()
}

// errFull is the error of a table that has reached its limit.
var errFull = errors.New("full")

// add gives v a number, after set has told v which.
func (t *table[T]) add(v *T, set func(n uint32)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.limit {
		return errFull
	}
	t.endRest()
	if t.used+len(t.resting) >= len(t.opened)*blockFill {
		if err := t.open(); err != nil {
			return err
		}
	}
	for {
		r := random32()
		n := t.opened[int(r>>blockBits)%len(t.opened)]<<blockBits | r&(blockSize-1)
		slot := &t.blocks[n>>blockBits].Load()[n&(blockSize-1)]
		if _, resting := t.resting[n]; slot.Load() == nil && !resting {
			set(n)
			slot.Store(v)
			t.used++
			return nil
		}
	}
}

// first returns the block that was opened first, and opens one if there is none.
func (t *table[T]) first() (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.opened) == 0 {
		if err := t.open(); err != nil {
			return 0, err
		}
	}
	return t.opened[0], nil
}

// open takes a further block into use. The first block is left out: it holds the QPNs of
// special QPs, and so is the last, which holds the multicast QPN.
func (t *table[T]) open() error {
	for range 16 * tableBlocks { // enough to meet the last one that is free
		n := random32() % tableBlocks
		if n == 0 || n == tableBlocks-1 || t.blocks[n].Load() != nil {
			continue
		}
		if t.claim != nil {
			if ok, err := t.claim(n); err != nil {
				return err
			} else if !ok {
				continue
			}
		}
		t.blocks[n].Store(new(block[T]))
		t.opened = append(t.opened, n)
		return nil
	}
	return verbs.Errorf(verbs.ErrLimit, "all blocks of 4096 QPNs of this host have owners: end some programs, "+
		"or use a network namespace of your own")
}

func (t *table[T]) remove(n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocks[n>>blockBits].Load()[n&(blockSize-1)].Store(nil)
	t.used--
	if t.rest == 0 {
		return
	}
	if t.resting == nil {
		t.resting = map[uint32]struct{}{}
	}
	t.resting[n] = struct{}{}
	t.rested = append(t.rested, restingNumber{n, time.Now().Add(t.rest)})
	t.endRest()
}

// endRest lets numbers be given again whose rest is over.
func (t *table[T]) endRest() {
	over := max(0, len(t.rested)-maxResting)
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

// all calls f, which may remove, for each object.
func (t *table[T]) all(f func(*T)) {
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

func random32() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
