package mem

import (
	"errors"

	"github.com/adverb-rdma/adverb/internal/idtable"
	"github.com/adverb-rdma/adverb/verbs"
)

// The low keyBits bits of a key are not part of the index of its table entry. Those of a region's two
// keys are random, and differ. Those of a window change with each binding.
const keyBits = 8

// The indexes are spread over keySpread blocks of 4096.
const keySpread = 8

// Keys is the table of a device's memory keys. The upper 24 bits of a key are the index of its
// entry, which is a region or a window.
type Keys struct {
	table  idtable.Table[entry]
	random func() uint32
}

// entry is the region or the window of a key's index: exactly one of the two.
type entry struct {
	region *Region
	window *Window
}

// NewKeys makes a table for so many regions and windows. random gives the unpredictable numbers that
// keys are made of; nil stands for the system's, and simulations hand in a source with a seed.
func NewKeys(limit int, random func() uint32) *Keys {
	k := &Keys{random: random}
	k.table.Limit, k.table.Spread, k.table.Random = limit, keySpread, random
	if random == nil {
		k.random = idtable.Random32
	}
	return k
}

// add gives an entry an index, of which set makes keys before anybody can look them up.
func (k *Keys) add(e *entry, set func(index, random uint32)) error {
	err := k.table.Add(e, func(n uint32) { set(n, k.random()) })
	if errors.Is(err, idtable.ErrFull) {
		return verbs.Errorf(verbs.ErrLimit, "the device has its %d MRs and MWs (max_mr)", k.table.Limit)
	}
	return err
}

func (k *Keys) remove(key uint32) { k.table.Remove(key >> keyBits) }

// Len returns how many regions and windows there are.
func (k *Keys) Len() int { return k.table.Len() }

// Unpin ends the pinning of all regions whose memory the program gave. A device calls it at its end
// for the regions that the program has forgotten: the runtime panics at pinned memory that nobody
// refers to.
func (k *Keys) Unpin() {
	k.table.All(func(e *entry) {
		if e.region != nil {
			e.region.unpin()
		}
	})
}
