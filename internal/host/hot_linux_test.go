//go:build !adverb_portable

package host

import (
	"math"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// fill makes a batch of datagrams to a block of the link's own, and sends it.
func fill(l link.Link, batch []link.Datagram, block uint32) {
	payload := packet(block, 1)
	for i := range batch {
		batch[i] = link.Datagram{Src: l.Source(1), Dst: l.Addr(), Payload: payload}
	}
	l.Send(batch)
}

// Receiving datagrams that have not strayed allocates nothing.
func TestRecvAllocs(t *testing.T) {
	m := open(t, testAddr(30))
	defer m.leave()
	out, in := make([]link.Datagram, 32), make([]link.Datagram, 64)
	fill(m.link, out, m.block)
	receive := func() {
		m.link.Send(out)
		deadline := time.Now().Add(patience)
		for n := 0; n < len(out); {
			if time.Now().After(deadline) {
				t.Fatalf("%d datagrams arrived within %v, want %d", n, patience, len(out))
			}
			got, err := m.link.Recv(in)
			if err != nil {
				t.Fatal(err)
			}
			n += got
		}
	}
	// AllocsPerRun counts the allocations of all goroutines, such as the goroutine that renews the steering now and
	// then. Allocations of receiving are in every run.
	least := math.Inf(1)
	for range 10 {
		if least = min(least, testing.AllocsPerRun(10, receive)); least == 0 {
			return
		}
	}
	t.Errorf("%v allocations for 32 datagrams, want none", least)
}

// BenchmarkSort shows the cost of sharing for each batch of 64 datagrams.
func BenchmarkSort(b *testing.B) {
	m := open(b, testAddr(31))
	defer m.leave()
	batch := make([]link.Datagram, 64)
	fill(m.link, batch, m.block)
	for i := range batch {
		batch[i].Dst = m.link.Addr()
	}
	l := m.link.(*Link)
	for b.Loop() {
		if l.sort(batch) != len(batch) {
			b.Fatal("strayed")
		}
	}
}

// BenchmarkRecvEmpty shows the cost of a poll that finds nothing, on a shared link and on a link of
// udp.
func BenchmarkRecvEmpty(b *testing.B) {
	m := open(b, testAddr(32))
	defer m.leave()
	in := make([]link.Datagram, 64)
	for name, l := range map[string]link.Link{"shared": m.link, "alone": m.link.(*Link).Link} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				l.Recv(in)
			}
		})
	}
}
