package hca

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// trainLengths notes how many packets each datagram of more than a few bytes has.
type trainLengths struct {
	link.Link
	of *[]int
}

func (l trainLengths) Send(batch []link.Datagram) error {
	for i := range batch {
		if len(batch[i].Payload) > 1000 {
			*l.of = append(*l.of, batch[i].Segments())
		}
	}
	return l.Link.Send(batch)
}

// TestWholeTrains: a long message goes in trains that are as long as one datagram to the kernel can be. No packet is left
// over between two of them.
func TestWholeTrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		var lengths []int
		a := simDevice(t, net, 1, func(l link.Link) link.Link { return trainLengths{l, &lengths} })
		b := simDevice(t, net, 2)
		x, y := connect(t, a, b, options{mtu: verbs.MTU4096})
		const packets = 1 + 1 + 3*15 + 7 // FIRST is longer than the others, so the second ends its train
		src, dst := x.mr(packets*4096), y.mr(packets*4096)
		x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, packets*4096)}, Remote: dst.Remote(0)})
		synctest.Wait()
		if want := []int{2, 14, 15, 15, 8}; !slices.Equal(lengths, want) {
			t.Errorf("trains of %v packets, want %v", lengths, want)
		}
	})
}
