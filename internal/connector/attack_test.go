package connector_test

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// askingNetdev counts the neighbors that it is asked for. Each question takes up to a second where nobody
// has the address.
type askingNetdev struct {
	*sim.Netdev
	asked atomic.Int32
}

func (n *askingNetdev) ResolveNeighbor(_, _ netip.Addr) { n.asked.Add(1) }

// liveHeap returns how many bytes are in use after a collection.
func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Requests under ever new addresses, that nobody has, are answered one by one. The connector waits for no
// neighbor, and its records of the addresses are bounded. Each of them held it up for a second.
func TestRequestsOfManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{})
		at := netip.MustParseAddr("10.0.0.1")
		netdev := &askingNetdev{Netdev: net.Netdev("sim1", at)}
		d, err := hca.Open(netdev, hca.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev := verbs.NewDevice(d)
		e := newEnd(t, dev)
		// flood asks for a service that nobody serves from n addresses, and returns how many answers came.
		flood := func(first, n int) (answers int) {
			for i := range n {
				from := netip.AddrFrom4([4]byte{10, 6, byte((first + i) >> 8), byte(first + i)})
				l, err := net.Netdev("stranger", from).Open(from)
				e.ok(err)
				req := wire.REQ{LocalCommID: uint32(1 + i), LocalQPN: 0x11, ServiceID: 0x1061c06, PKey: wire.DefaultPKey, MTU: 3, Primary: wire.CMPath{RemoteGID: verbs.GIDFromAddr(at)}}
				h := wire.NewCMHeader(wire.CMREQ, uint64(i))
				p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSIQPN}, DETH: wire.DETH{QKey: wire.GSIQKey, SrcQP: wire.GSIQPN},
					Payload: req.AppendTo(h.AppendTo(nil))}
				b := p.AppendTo(nil)
				src, dst := l.Source(1), netip.AddrPortFrom(at, link.Port)
				f := wire.NewFlow(src, dst)
				f.Seal(0, b)
				e.ok(l.Send([]link.Datagram{{Src: src, Dst: dst, Payload: b}}))
				synctest.Wait()
				var batch [8]link.Datagram
				for k, _ := l.Recv(batch[:]); k > 0; k, _ = l.Recv(batch[:]) {
					answers += k
				}
				e.ok(l.Close())
			}
			return answers
		}
		const kept, n = 1024, 4 * 1024 // address handles, and a multiple of them
		flood(0, kept)
		before := liveHeap()
		if got := flood(kept, n); got != n {
			t.Errorf("%d answers to %d requests, want one each", got, n)
		}
		if asked := netdev.asked.Load(); asked != 0 {
			t.Errorf("the connector waited for %d neighbors, want none", asked)
		}
		after := liveHeap()
		if after > before+4<<20 { // of which the network in memory takes nine tenths
			t.Errorf("the heap grew from %d to %d bytes, want no more than 4 MiB", before, after)
		}
		e.c.Close()
		e.ok(dev.Close())
	})
}
