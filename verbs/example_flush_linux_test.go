//go:build !adverb_portable

package verbs_test

import (
	"encoding/binary"
	"fmt"
	"os"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/verbs"
)

// A log in a file of the peer's: WRITE appends a record, FLUSH stores it, and then ATOMIC WRITE says in the first word where
// the log ends, and a second FLUSH stores that. So the word never tells of a record that is not in the file.
func Example_flush() {
	x, y := connectEnds()
	const size, access = 4096, verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessFlushPersistent

	// At the peer: the region is a file, and region and QP allow the FLUSH.
	f := orDie(os.CreateTemp("", "log-"))
	defer os.Remove(f.Name())
	dieIf(f.Truncate(size))
	log := orDie(y.pd.RegFileMR(int(f.Fd()), 0, size, 0, access))
	dieIf(y.qp.Modify(&verbs.QPAttr{Access: verbs.AccessRemoteWrite | verbs.AccessFlushPersistent}, verbs.MaskAccessFlags))

	// Here: four work requests, of which the last completes.
	record := orDie(x.pd.AllocMR(64, verbs.AccessLocalWrite))
	n := copy(record.Bytes(), "a record")
	store := func(at, length int) verbs.SendWR {
		return verbs.SendWR{Op: verbs.OpFlush, Remote: log.Remote(at), Flush: verbs.Flush{Length: uint32(length), Placement: verbs.FlushPersistent}}
	}
	end := binary.NativeEndian.AppendUint64(nil, uint64(8+n))
	committed := store(0, 8)
	committed.Flags = verbs.SendSignaled
	orDie(x.qp.PostSend([]verbs.SendWR{
		{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{record.SGE(0, n)}, Remote: log.Remote(8)},
		store(8, n),
		{Op: verbs.OpAtomicWrite, Flags: verbs.SendInline, InlineData: end, Remote: log.Remote(0)},
		committed,
	}))
	x.next()

	file := orDie(os.ReadFile(f.Name()))
	fmt.Printf("%q\n", file[8:binary.NativeEndian.Uint64(file)])
	// Output: "a record"
}
