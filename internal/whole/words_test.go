package whole

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/adverb-rdma/adverb/verbs"
)

// words are counters that all peers of a node share: the first counts by FETCH_ADD of 1, the second by CMP_SWAP from the
// value that was seen last to a value that nobody else stores. So a linear order of all atomics is easily checked.
type words struct {
	n *node
	r *region

	results map[uint64]bool // of FETCH_ADD
	done    uint64          // results known
	unsure  uint64          // may have been executed or not
	highest uint64          // result + 1

	seen  uint64            // the latest known value of the second word
	next  map[uint64]uint64 // known successes of CMP_SWAP
	maybe map[uint64]uint64 // others
	gone  bool
}

const wordsSize = 64

func newWords(n *node) *words {
	x := &words{n: n, results: map[uint64]bool{}, next: map[uint64]uint64{}, maybe: map[uint64]uint64{}}
	x.r = newRegion(n, "words", wordsSize, everything)
	clear(x.r.bytes())
	return x
}

func (x *words) word(i int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.r.bytes()[8*i])))
}

// prepare makes o an atomic on the words.
func (x *words) prepare(o *op) {
	o.words, o.length = x, 8
	o.wr.Remote = x.r.mr.Remote(0)
	if o.wr.Op == verbs.OpAtomicFetchAdd {
		o.wr.CompareAdd, o.least = 1, x.highest
		return
	}
	o.wr.Remote = x.r.mr.Remote(8)
	o.wr.CompareAdd, o.wr.Swap = x.seen, o.id<<8|0x5a
}

// finish checks the result of an atomic.
func (x *words) finish(e *end, o *op, b []byte) {
	if x.gone {
		return
	}
	w, got := x.n.w, binary.NativeEndian.Uint64(b)
	if o.wr.Op == verbs.OpAtomicFetchAdd {
		if x.results[got] || got < o.least || got >= x.word(0) {
			w.failf("%v: FETCH_ADD %d returned %d, which another had, or is out of order: want %d to %d", e, o.wr.ID, got, o.least, x.word(0)-1)
		}
		x.results[got] = true
		x.done++
		x.highest = max(x.highest, got+1)
		return
	}
	x.seen = got
	if got == o.wr.CompareAdd {
		if other, ok := x.next[got]; ok {
			w.failf("%v: CMP_SWAP %d from %#x succeeded, and so did another to %#x", e, o.wr.ID, got, other)
		}
		x.next[got], x.seen = o.wr.Swap, o.wr.Swap
	}
}

// lost takes note of an atomic whose fate is unknown.
func (x *words) lost(o *op) {
	if o.wr.Op == verbs.OpAtomicFetchAdd {
		x.unsure++
	} else {
		x.maybe[o.wr.CompareAdd] = o.wr.Swap // one of perhaps several
	}
}

func (x *words) crashed() { x.gone = true }

// checkWords checks the final values.
func (n *node) checkWords() {
	x := n.words
	if got := x.word(0); got < x.done || got > x.done+x.unsure {
		n.w.failf("%v: %d FETCH_ADDs were executed; want the %d that are complete, and up to %d others", n, got, x.done, x.unsure)
	}
	v, end := uint64(0), x.word(1)
	for range len(x.next) + len(x.maybe) + 1 {
		if v == end {
			break
		}
		to, ok := x.next[v]
		if !ok {
			if len(x.maybe) > 0 {
				return // any of them may have come between
			}
			n.w.failf("%v: the word of CMP_SWAP ends as %#x; the completions end at %#x", n, end, v)
		}
		v = to
	}
	for i := 2; i < wordsSize/8; i++ {
		if x.word(i) != 0 {
			n.w.failf("%v: word %d, which no atomic names, is %#x", n, i, x.word(i))
		}
	}
	x.r.check()
}

func (x *words) close() { x.r.close() }
