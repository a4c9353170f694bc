package fault_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
)

// classes sends n datagrams of 1000 bytes at once, all with one traffic class. It returns with
// which classes they arrive, and after which times.
func classes(t *testing.T, from, to link.Link, class uint8, n int) (got []uint8, after []time.Duration) {
	t.Helper()
	start := time.Now()
	for range n {
		d := link.Datagram{Src: from.Source(0), Dst: to.Addr(), Payload: make([]byte, 1000), TrafficClass: class}
		if err := from.Send([]link.Datagram{d}); err != nil {
			t.Fatal(err)
		}
	}
	batch := make([]link.Datagram, 64)
	for len(got) < n {
		k, err := to.Recv(batch)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range batch[:k] {
			got, after = append(got, d.TrafficClass), append(after, time.Since(start))
		}
		if k > 0 {
			continue
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("%d of %d datagrams arrived", len(got), n)
		}
		if err := to.Wait(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	return got, after
}

// disturbedPairs calls f for a link that disturbs the datagrams that it sends, and for one that disturbs those that
// it receives.
func disturbedPairs(t *testing.T, c fault.Config, f func(t *testing.T, from, to link.Link, counts func() fault.Counts)) {
	for _, direction := range []fault.Directions{fault.Outgoing, fault.Incoming} {
		t.Run(fmt.Sprintf("direction %d", direction), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.Directions = direction
				a, b := openPair(t, c)
				defer a.Close()
				defer b.Close()
				if direction == fault.Outgoing {
					f(t, a, b, func() fault.Counts { out, _ := a.(fault.Counter).Counts(); return out })
				} else {
					f(t, b, a, func() fault.Counts { _, in := a.(fault.Counter).Counts(); return in })
				}
			})
		})
	}
}

// Datagrams that allow marks are marked by chance. Nothing else of their class changes.
func TestMarkCE(t *testing.T) {
	const dscp = 26 << 2
	const seed, n = 7, 1000
	disturbedPairs(t, fault.Config{Seed: seed, MarkCE: 0.2}, func(t *testing.T, from, to link.Link, counts func() fault.Counts) {
		for _, tt := range []struct {
			class    uint8
			markable bool
		}{{dscp | link.ECT0, true}, {dscp | link.ECT1, true}, {dscp | link.NotECT, false}, {0, false}} {
			before := counts().Marked
			got, _ := classes(t, from, to, tt.class, n)
			marked := 0
			for i, class := range got {
				switch {
				case class == tt.class:
				case tt.markable && class == tt.class|link.CE:
					marked++
				default:
					t.Fatalf("seed %d: datagram %d arrives with class %#02x, want %#02x, or marked if it allows that", seed, i, class, tt.class)
				}
			}
			if want := n / 5; tt.markable && (marked < want*3/4 || marked > want*5/4) {
				t.Errorf("seed %d: %d of %d datagrams of class %#02x are marked, want about %d", seed, marked, n, tt.class, want)
			}
			if c := counts().Marked - before; c != uint64(marked) {
				t.Errorf("seed %d: %d marks are counted of class %#02x, want %d", seed, c, tt.class, marked)
			}
		}
	})
}

// Marks do not change the other decisions, and are the same at each run.
func TestMarkCEFates(t *testing.T) {
	const seed = 3
	f := fault.Faults{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1, Jitter: time.Second}
	withMarks := f
	withMarks.MarkCE = 0.5
	d := fault.NewDice(seed, addrA, addrB)
	marked := 0
	for n := range uint64(500) {
		want, got := d.Fate(&f, n), d.Fate(&withMarks, n)
		if got != d.Fate(&withMarks, n) {
			t.Fatalf("seed %d: two fates of datagram %d", seed, n)
		}
		if got.Marked {
			marked++
			got.Marked = false
		}
		if got != want {
			t.Fatalf("seed %d: datagram %d has the fate %+v with marks, want %+v", seed, n, got, want)
		}
	}
	if marked < 150 || marked > 300 { // those that are lost are not marked
		t.Errorf("seed %d: %d of 500 are marked, want about 225", seed, marked)
	}
}

// Datagrams that are sent faster than Rate arrive at Rate. A datagram is marked if too many bytes wait before it.
func TestRate(t *testing.T) {
	const (
		n     = 20
		each  = time.Millisecond // for 1000 bytes
		delay = 30 * time.Millisecond
	)
	c := fault.Config{Rate: 1_000_000, MarkCEAbove: 4500, Delay: delay}
	disturbedPairs(t, c, func(t *testing.T, from, to link.Link, counts func() fault.Counts) {
		for round := range 2 { // the queue becomes empty between the rounds
			if round > 0 {
				if err := from.Wait(time.Second); err != nil {
					t.Fatal(err)
				}
			}
			got, after := classes(t, from, to, link.ECT0, n)
			for i := range got {
				want := uint8(link.ECT0)
				if i > 4 { // behind five, of 5000 bytes
					want = link.CE
				}
				if got[i] != want {
					t.Errorf("round %d: datagram %d has class %#02x, want %#02x", round, i, got[i], want)
				}
				if want := delay + time.Duration(i+1)*each; after[i] != want {
					t.Errorf("round %d: datagram %d arrives after %v, want %v", round, i, after[i], want)
				}
			}
		}
		if got := counts().Marked; got != 2*(n-5) {
			t.Errorf("%d marks are counted, want %d", got, 2*(n-5))
		}
	})
}
