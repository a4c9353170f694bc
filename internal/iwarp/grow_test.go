package iwarp

import (
	"bytes"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestSendQueueGrows: the ring has memory for the work requests under way, up to the room that was granted. When the
// ring grows, work requests keep their fields, wherever in the ring they begin.
func TestSendQueueGrows(t *testing.T) {
	const most = 128
	first := queue.FirstPlaces(most)
	for done := range uint64(first) {
		sq := newSendQueue(verbs.QPCap{MaxSendWR: most, MaxSendSGE: 2, MaxInlineData: 8})
		post := func(id uint64) error {
			if err := sq.full(); err != nil {
				return err
			}
			wr := verbs.SendWR{ID: id, Op: verbs.OpRDMAWrite}
			if id%2 == 0 {
				wr.SGList = []verbs.SGE{{Addr: id, Length: 1}, {Addr: id + 1, Length: 2}}
			} else {
				wr.InlineData = bytes.Repeat([]byte{byte(id)}, 8)
			}
			sq.push(&wr)
			return nil
		}
		for id := range done {
			if err := post(id); err != nil {
				t.Fatal(err)
			}
		}
		sq.freed.Store(done)
		sq.head, sq.cur = done, done
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
			if w.id != id || id%2 == 0 && !slices.Equal(w.sg, sg) || id%2 == 1 && !bytes.Equal(w.inline, bytes.Repeat([]byte{byte(id)}, 8)) {
				t.Fatalf("with %d done before: work request %d is %+v", done, id, w)
			}
		}
	}
}
