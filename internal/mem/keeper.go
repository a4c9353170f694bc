package mem

import (
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// Keeper opens memory for packets that follow one another, as those of a train do. Until Release it keeps the
// region that was opened last in place. So the next packet for the same region costs no atomic operations, which
// would wait for all that the copy before has stored. A Close of the region takes its keys away at once, as ever, and
// waits for Release. Those who keep memory call nothing that waits for such a Close. A nil Keeper keeps nothing.
type Keeper struct {
	// Fold, if it is not nil, takes the part of the ICRC of what Gather or Fetch has copied last, if that is one piece
	// of the right length: see [wire.Fold]. The caller resets it.
	Fold *wire.Fold

	region *Region // that is kept, or nil
}

// Release ends the keeping.
func (k *Keeper) Release() {
	if k.region != nil {
		k.region.release()
		k.region = nil
	}
}

func (k *Keeper) keeps(r *Region) bool { return k != nil && k.region == r }

// take keeps r, which the caller holds, in place of what was kept. It returns false if nothing is to be kept.
func (k *Keeper) take(r *Region) bool {
	if k == nil {
		return false
	}
	k.Release()
	k.region = r
	return true
}

// Open is p.Open.
func (k *Keeper) Open(p *PD, key verbs.RKey, qpn verbs.QPN, va, n uint64, need verbs.Access) (Span, error) {
	return p.open(k, key, qpn, va, n, need)
}

// Gather is p.Gather.
func (k *Keeper) Gather(p *PD, dst []byte, sg []verbs.SGE, off uint32) error {
	return p.gather(k, dst, sg, off)
}

// Fetch is s.Fetch.
func (k *Keeper) Fetch(s Span, dst []byte) {
	if k == nil || k.Fold == nil || addrOf(s.bytes)%lineSize != 0 || !k.Fold.Copy(dst, s.bytes[:len(dst)]) {
		s.Fetch(dst)
	}
}
