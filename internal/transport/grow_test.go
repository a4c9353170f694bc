package transport

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestSendQueueGrows: the ring has memory for the work requests under way, up to the granted room. When the ring
// grows, work requests keep their content, wherever in the ring they begin.
func TestSendQueueGrows(t *testing.T) {
	const most = 128
	first := queue.FirstPlaces(most)
	for done := range uint64(first) {
		sq := newSendQueue(verbs.QPTypeRC, verbs.QPCap{MaxSendWR: most, MaxSendSGE: 2, MaxInlineData: 8}, seqBase)
		post := func(id uint64) error {
			if err := sq.full(); err != nil {
				return err
			}
			wr := verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite}
			switch id % 3 {
			case 0:
				wr.SGList = []verbs.SGE{{Addr: id, Length: 1}, {Addr: id + 1, Length: 2}}
			case 1:
				wr.InlineData = bytes.Repeat([]byte{byte(id)}, 8)
			case 2:
				wr.Op, wr.CompareAdd = verbs.OpAtomicFetchAdd, id
				wr.SGList = []verbs.SGE{{Addr: id, Length: 8}}
			}
			sq.push(&wr, 1024)
			return nil
		}
		for id := range done {
			if err := post(id); err != nil {
				t.Fatal(err)
			}
		}
		sq.freed.Store(done)
		sq.head = done
		for id := done; id < done+most; id++ {
			if under := int(id - done); under < first && len(sq.wqes) != first {
				t.Fatalf("%d work requests are under way, and the ring has %d places", under, len(sq.wqes))
			}
			if err := post(id); err != nil {
				t.Fatalf("work request %d of %d: %v", id-done, most, err)
			}
		}
		if err := sq.full(); err == nil {
			t.Errorf("%d work requests are under way, and there is room for more", most)
		}
		for id := done; id < done+most; id++ {
			w := sq.at(id)
			sg := []verbs.SGE{{Addr: id, Length: 1}, {Addr: id + 1, Length: 2}}
			ok := w.id == id && w.seq == seqBase+id
			switch id % 3 {
			case 0:
				ok = ok && slices.Equal(w.sg, sg)
			case 1:
				ok = ok && bytes.Equal(w.inline, bytes.Repeat([]byte{byte(id)}, 8))
			case 2:
				ok = ok && w.cold != nil && w.cold.compareAdd == id && w.sg[0].Addr == id
			}
			if !ok {
				t.Fatalf("with %d done before: work request %d is %+v", done, id, w)
			}
		}
	}
}
