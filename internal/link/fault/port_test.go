package fault

import (
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// TestPort: datagrams that pass ports one after the other leave at the rate of the slowest, in order, wait up to
// the buffer, and are marked by how much waits.
func TestPort(t *testing.T) {
	const size = 1000 - frameHeaders
	fast := NewPort(1, PortConfig{Rate: 100e6, Delay: time.Millisecond})
	slow := NewPort(1, PortConfig{Rate: 10e6, Delay: time.Millisecond, Buffer: 20_000, MarkFrom: 4000, MarkTo: 12_000, MarkMost: .5})
	q := NewQueue(0)
	p := NewPath(1, netip.Addr{}, netip.Addr{})
	for i := range 40 {
		d := link.Datagram{Payload: make([]byte, size), TrafficClass: link.ECT0}
		d.Payload[0] = byte(i)
		p.Route(q, []*Port{fast, slow}, 0, &d)
	}
	var got []link.Datagram
	var batch [1]link.Datagram
	last := -1
	for {
		at, ok := q.Next()
		if !ok {
			break
		}
		q.Arrive(at)
		for q.Pop(batch[:]) > 0 {
			if n := int(batch[0].Payload[0]); n <= last {
				t.Errorf("datagram %d after %d, want them in order", n, last)
			} else {
				last = n
			}
			// The first takes 10 µs and 100 µs, and two cables.
			if want := 2*time.Millisecond + 10*time.Microsecond + time.Duration(len(got)+1)*100*time.Microsecond; at != want {
				t.Errorf("datagram %d is there at %v, want %v", last, at, want)
			}
			got = append(got, batch[0])
		}
	}
	s := slow.Stats(false)
	if s.Lost == 0 || s.Passed+s.Lost != 40 || int(s.Passed) != len(got) || s.Longest > 20_000 || s.Longest < 19_000 {
		t.Errorf("%d came, %+v; want what the buffer has no room for lost", len(got), s)
	}
	marked := 0
	for i, d := range got {
		if d.TrafficClass == link.CE {
			marked++
			if i < 4 {
				t.Errorf("datagram %d is marked, want none with a short queue", i)
			}
		} else if i > 16 {
			t.Errorf("datagram %d is not marked, want all with a long queue", i)
		}
	}
	if uint64(marked) != s.Marked {
		t.Errorf("%d are marked, and the port has counted %d", marked, s.Marked)
	}
	if s := fast.Stats(true); s.Passed != 40 || s.Bytes != 40_000 || fast.Stats(false) != (PortStats{}) {
		t.Errorf("the fast port: %+v, want 40 datagrams, and zeros after a reset", s)
	}
}
