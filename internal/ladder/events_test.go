package ladder

import (
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A page of a file with very many regions, each of which a device has registered, takes no longer than others: if each region
// is compared with each record, it takes half a minute.
func TestManyRegions(t *testing.T) {
	const n = 50_000
	c := NewCollector()
	for i := range n {
		va := uint64(i) << 12
		r := record{src: netip.MustParseAddr("10.0.0.1"), dst: netip.MustParseAddr("10.0.0.2"), frame: 1 + i, key: uint64(i), decoded: true, touches: true, va: va + 8, rkey: uint32(i), message: 1}
		r.Packet = Packet{Frame: r.frame, Took: -1, Opcode: wire.RCRDMAWriteOnly, QPN: 7, PSN: wire.PSN(i)}
		c.records = append(c.records, r)
		c.addEvent(0, journal.Event{Kind: journal.KindRegion, Key: uint32(i), ID: va, Len: 4096})
	}
	start := time.Now()
	cols := newColumns()
	if _, items := c.items(Options{}, cols); len(items) != 2*n {
		t.Errorf("%d packets and records, want %d", len(items), 2*n)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("%d regions took %v", n, took)
	}
	if r := cols.regions[n-1]; r.base != (n-1)<<12 || r.Size != 4096 {
		t.Errorf("the last region: %+v, want 4096 bytes from %#x", r, (n-1)<<12)
	}
	if err := c.HTML(io.Discard, "many", Options{}, Diagnosis{}); err != nil {
		t.Error(err)
	}
}

// The memory of records is bounded by their words too, which may be long. Those that are left out are counted.
func TestLongWords(t *testing.T) {
	c := NewCollector()
	e := journal.Event{Kind: journal.KindState, Words: strings.Repeat("x", 1<<16-1)}
	const n = 10_000
	for range n {
		c.addEvent(0, e)
	}
	bytes := 0
	for _, e := range c.events {
		bytes += len(e.Words)
	}
	if bytes > maxEventWords || len(c.events) == 0 || len(c.events)+c.eventsLeft != n {
		t.Errorf("%d records with %d bytes of words are kept, and %d left out; want at most %d bytes, and the rest", len(c.events), bytes, c.eventsLeft, maxEventWords)
	}
	if notes := c.notes(); !slices.ContainsFunc(notes, func(s string) bool { return strings.Contains(s, "more left out") }) {
		t.Errorf("notes %q, want that records were left out", notes)
	}
}
