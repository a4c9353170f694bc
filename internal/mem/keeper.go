package mem

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Keeper opens memory for operations that follow one another, and most often use the same region. It keeps one region
// in place between them. So the next operation on it costs no atomic operations, which would wait for all that the
// copy before has stored. A nil Keeper keeps nothing.
//
// A zero Keeper is for the packets of a train. It keeps the region that was opened last, until Release. A Close of the
// region takes its keys away at once, as ever, and waits for Release.
//
// One that NewKeeper has made keeps by a lock, and for long. A Close of the region takes the lock once: whoever
// held the lock before is done by then, and whoever takes the lock later sees that the region has closed.
//
// Those who keep memory call nothing that waits for such a Close.
type Keeper struct {
	// Fold, if it is not nil, takes the part of the ICRC of the bytes that Gather or Fetch has copied last, if they
	// are one piece of the right length: see [wire.Fold]. The caller resets it.
	Fold *wire.Fold

	region *Region // that is kept, or nil

	lock   sync.Locker // or nil
	latest verbs.LKey  // of the region that was opened last and is not kept
	row    uint32      // how often in a row it was
}

// keepFrom is how often in a row a region is opened before it is kept by a lock. Its Close has to find the Keeper, which
// both pay for.
const keepFrom = 16

// NewKeeper makes a Keeper whose methods are called, and whose spans are used, with the lock held. Release does nothing,
// and Forget ends the keeping.
func NewKeeper(lock sync.Locker) *Keeper { return &Keeper{lock: lock} }

// Release ends the keeping of a Keeper without a lock.
func (k *Keeper) Release() {
	if k.lock == nil && k.region != nil {
		k.region.release()
		k.region = nil
	}
}

// Forget ends the keeping of a Keeper with a lock.
func (k *Keeper) Forget() {
	if k.region != nil {
		k.region.keepers.remove(k)
		k.region = nil
	}
	k.row = 0
}

// keeps reports whether r stays in place without being held.
func (k *Keeper) keeps(r *Region) bool {
	return k != nil && k.region == r && (k.lock == nil || r.gate.isOpen())
}

// piece opens n bytes of an SGE, from byte off of it on, if they are in the region that k keeps. Most are. ok is false
// for others, and where there is an error to be told.
func (k *Keeper) piece(p *PD, e *verbs.SGE, off uint32, n int, need verbs.Access) (s Span, ok bool) {
	if k == nil || k.region == nil {
		return Span{}, false
	}
	r := k.region
	if r.lkey != e.LKey || !r.gate.isOpen() || uint64(off)+uint64(n) > uint64(e.Length) {
		return Span{}, false
	}
	b, ok := r.lets(p, e.Addr+uint64(off), uint64(n), need)
	return spanOf(nil, b, r.guard), ok
}

// take keeps r, which the caller holds, in place of the region that was kept. It returns false if r is not to be kept.
func (k *Keeper) take(r *Region) bool {
	switch {
	case k == nil:
		return false
	case k.lock != nil:
		return k.takeByLock(r)
	}
	k.Release()
	k.region = r
	return true
}

// takeByLock is take of a Keeper with a lock.
func (k *Keeper) takeByLock(r *Region) bool {
	if k.latest != r.lkey {
		k.latest, k.row = r.lkey, 0
	}
	if k.row++; k.row < keepFrom {
		return false
	}
	k.Forget()
	k.region = r
	r.keepers.add(k)
	r.release() // not before: its Close, which waits for this, looks for its Keepers then
	return true
}

// keepers are those that keep a region by their locks.
type keepers struct {
	mu  sync.Mutex // taken with such a lock held
	all map[*Keeper]struct{}
}

func (s *keepers) add(k *Keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Keeper]struct{}{}
	}
	s.all[k] = struct{}{}
}

func (s *keepers) remove(k *Keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, k)
}

// end waits until nobody uses the region by a lock any more. It is closed, and nobody holds it.
func (s *keepers) end(r *Region) {
	s.mu.Lock()
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for k := range all {
		k.letGo(r)
	}
}

// letGo ends the keeping of a region by a lock.
func (k *Keeper) letGo(r *Region) {
	k.lock.Lock()
	defer k.lock.Unlock()
	if k.region == r {
		k.region = nil
	}
}

// Open is p.Open.
func (k *Keeper) Open(p *PD, key verbs.RKey, qpn verbs.QPN, va, n uint64, need verbs.Access) (Span, error) {
	return p.open(k, key, qpn, va, n, need)
}

// OpenSGE is p.OpenSGE.
func (k *Keeper) OpenSGE(p *PD, e *verbs.SGE, need verbs.Access) (Span, error) {
	if s, ok := k.piece(p, e, 0, int(e.Length), need); ok {
		tellUse(s.Bytes(), need)
		return s, nil
	}
	return p.openOne(k, e, need)
}

// Gather is p.Gather.
func (k *Keeper) Gather(p *PD, dst []byte, sg []verbs.SGE, off uint32) error {
	if len(sg) > 0 {
		if s, ok := k.piece(p, &sg[0], off, len(dst), 0); ok {
			tellRead(s.Bytes())
			return k.Fetch(s, dst)
		}
	}
	return p.gather(k, dst, sg, off)
}

// Scatter is p.Scatter.
func (k *Keeper) Scatter(p *PD, sg []verbs.SGE, off uint32, src []byte) error {
	if len(sg) > 0 {
		if s, ok := k.piece(p, &sg[0], off, len(src), verbs.AccessLocalWrite); ok {
			tellWrite(s.Bytes())
			return s.Place(src)
		}
	}
	return p.scatter(k, sg, off, src, false)
}

// Fetch is s.Fetch.
func (k *Keeper) Fetch(s Span, dst []byte) error {
	if k == nil || k.Fold == nil || addrOf(s.Bytes())%lineSize != 0 {
		return s.Fetch(dst)
	}
	src := s.Bytes()[:len(dst)]
	if s.guard {
		return guarded(copyFolded, dst, src, k.Fold)
	}
	fetchFolded(k.Fold, dst, src)
	return nil
}

// fetchFolded is copyFrom by f, where it can be.
func fetchFolded(f *wire.Fold, dst, src []byte) {
	if !f.Copy(dst, src) {
		copyFrom(dst, src)
	}
}
