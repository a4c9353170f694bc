package mem

import "github.com/adverb-rdma/adverb/verbs"

// Keeper opens memory for packets that follow one another, as those of a train do. From Keep to Release it keeps the
// region that was opened last in place. So the next packet for the same region costs no atomic operations, which
// would wait for all that the copy before has stored. A Close of the region takes its keys away at once, as ever, and
// waits for Release. Those who keep memory call nothing that waits for such a Close. The zero Keeper keeps nothing.
type Keeper struct {
	region *Region // that is kept, or nothing; nil if nothing is to be kept
}

var nothing = new(Region)

// Keep has the keeper keep a region from now on.
func (k *Keeper) Keep() {
	if k.region == nil {
		k.region = nothing
	}
}

// Release ends the keeping.
func (k *Keeper) Release() {
	if k.region != nil {
		k.letGo()
		k.region = nil
	}
}

func (k *Keeper) letGo() {
	if k.region != nothing {
		k.region.release()
	}
}

func (k *Keeper) keeps(r *Region) bool { return k.region == r }

// take keeps r, which the caller holds, in place of what was kept. It returns false if nothing is to be kept.
func (k *Keeper) take(r *Region) bool {
	if k.region == nil {
		return false
	}
	k.letGo()
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
