package fault

import (
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// Late datagrams arrive in the order in which they are due. Those that are due at the same time
// arrive in the order of sending.
func TestLateOrder(t *testing.T) {
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	delays := []time.Duration{5, 3, 9, 3, 1, 7, 3, 5, 2, 8}
	want := []byte{4, 8, 1, 3, 6, 0, 7, 5, 9, 2}
	q := NewQueue(0)
	for i, delay := range delays {
		p := NewPath(1, src, dst) // a path for each, because a path keeps its order
		p.Pass(q, &Faults{Delay: delay}, 0, &link.Datagram{Payload: []byte{byte(i)}}, &Counts{})
	}
	if n := q.Len(); n != len(delays) {
		t.Fatalf("Len = %d, want %d", n, len(delays))
	}
	var got []byte
	batch := make([]link.Datagram, 1)
	for q.Len() > 0 {
		due, ok := q.Next()
		if !ok {
			t.Fatalf("%d datagrams are left, and none is due at any time", q.Len())
		}
		if q.Arrive(due - 1); q.Pop(batch) != 0 {
			t.Fatalf("datagram %d arrives before it is due, at %v", batch[0].Payload[0], due)
		}
		for q.Arrive(due); q.Pop(batch) == 1; {
			if i := batch[0].Payload[0]; delays[i] != due {
				t.Errorf("datagram %d arrives at %v, want %v", i, due, delays[i])
			}
			got = append(got, batch[0].Payload[0])
		}
	}
	if string(got) != string(want) {
		t.Errorf("datagrams arrive in the order %d, want %d", got, want)
	}
}

// BenchmarkLate passes datagrams through a queue in which a thousand others are late.
func BenchmarkLate(b *testing.B) {
	src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	q, p, f := NewQueue(0), NewPath(1, src, dst), &Faults{Delay: 1000, Jitter: 1000, Reorder: 0.1}
	var counts Counts
	d := link.Datagram{Payload: make([]byte, 64)}
	batch := make([]link.Datagram, 64)
	b.ReportAllocs()
	for now := time.Duration(0); b.Loop(); now++ {
		p.Pass(q, f, now, &d, &counts)
		q.Pop(batch)
	}
}
