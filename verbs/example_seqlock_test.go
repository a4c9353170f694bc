package verbs_test

import (
	"fmt"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/verbs"
)

// seqlock is a record that its owner changes while peers READ it: a version, data, and the version again.
// A READ goes upward, so the owner goes downward: the last word first. The record fits one packet, as the path
// MTU is 1024 at least on any Ethernet: of several packets one may be lost, and be read later than those behind it.
type seqlock struct{ mr *verbs.MR }

const (
	seqlockWords = 126
	seqlockTail  = 8 + 8*seqlockWords
	seqlockSize  = seqlockTail + 8
)

func (s seqlock) update(version, value uint64) {
	s.mr.Store64(seqlockTail, version)
	for off := seqlockTail - 8; off > 0; off -= 8 {
		s.mr.Store64(off, value)
	}
	s.mr.Store64(0, version)
}

// whole reports whether a READ of the record met no update. Otherwise the reader reads again.
func whole(record []uint64) bool { return record[0] == record[len(record)-1] }

// A record with a version at both ends is read by READ while its owner changes it. A copy with the
// same version at both ends is whole.
func Example_seqlock() {
	x, y := connectEnds()
	shared := seqlock{orDie(y.pd.AllocMR(seqlockSize, verbs.AccessLocalWrite|verbs.AccessRemoteRead))}
	const last = 5000
	go func() {
		for version := uint64(1); version <= last; version++ {
			shared.update(version, version*version)
		}
	}()

	local := orDie(x.pd.AllocMR(seqlockSize, verbs.AccessLocalWrite))
	record := verbs.View[uint64](local.Bytes())
	mixtures := 0
	for record[0] < last {
		dieIf(x.qp.PostOneSend(verbs.SendWR{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: shared.mr.Remote(0)}, local.SGE(0, seqlockSize)))
		x.next()
		if !whole(record) {
			continue
		}
		for _, value := range record[1 : len(record)-1] {
			if value != record[0]*record[0] {
				mixtures++
			}
		}
	}
	fmt.Println("accepted mixtures:", mixtures)
	// Output: accepted mixtures: 0
}
