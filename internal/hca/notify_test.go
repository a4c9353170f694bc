package hca

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// classes are the traffic classes of the packets that leave a link: of CNPs, and of all others.
type classes struct {
	mu           sync.Mutex
	cnps, others map[uint8]int
}

func newClasses() *classes { return &classes{cnps: map[uint8]int{}, others: map[uint8]int{}} }

type classLink struct {
	link.Link
	*classes
}

func (c *classes) middleware(l link.Link) link.Link { return &classLink{l, c} }

func (l *classLink) Send(batch []link.Datagram) error {
	l.mu.Lock()
	for i := range batch {
		for s := range batch[i].Segments() {
			if wire.Opcode(batch[i].Segment(s)[0]) == wire.CNP {
				l.cnps[batch[i].TrafficClass]++
			} else {
				l.others[batch[i].TrafficClass]++
			}
		}
	}
	l.mu.Unlock()
	return l.Link.Send(batch)
}

// TestCongestionNotified: a network that marks what allows it is answered by CNPs, which have a traffic class of
// their own and do not allow marks. They are counted at both ends. Secured packets are no exception.
func TestCongestionNotified(t *testing.T) {
	const dscp, size = 26 << 2, 256 << 10
	for name, o := range map[string]options{"RC": {}, "UC": {typ: verbs.QPTypeUC}, "secured": {secured: true, mtu: verbs.MTU1024}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := sim.New(sim.Config{MarkCE: 1, Delay: 10 * time.Microsecond})
				seen := newClasses()
				a, b := simDevice(t, net, 1), simDevice(t, net, 2, seen.middleware)
				x, y := newEnd(t, a, o), newEnd(t, b, o)
				if o.secured {
					x.secure(y)
				}
				for _, e := range [2][2]*end{{x, y}, {y, x}} {
					gid, err := e[1].dev.GID(1, 0)
					e[0].must(err)
					e[0].must(e[0].qp.RTR(verbs.Peer{QPN: e[1].qp.QPN(), PSN: firstPSN, GID: gid.GID},
						verbs.Path{MTU: o.mtu, TrafficClass: dscp | link.ECT0}))
					e[0].must(e[0].qp.RTS(firstPSN, defaultRetry))
				}
				x.transfer(x.mr(size), y.mr(size))
				synctest.Wait()
				time.Sleep(time.Millisecond)
				synctest.Wait()
				sent, handled := counterOf(t, y.qp, "np_cnp_sent"), counterOf(t, x.qp, "rp_cnp_handled")
				if marks := counterOf(t, y.qp, "np_ecn_marked_roce_packets"); sent == 0 || sent > marks/4 || handled != sent {
					t.Errorf("%d packets were marked, %d CNPs sent and %d handled; want far fewer CNPs, all handled", marks, sent, handled)
				}
				if o.secured {
					return // nobody else sees which are CNPs
				}
				seen.mu.Lock()
				defer seen.mu.Unlock()
				if n := uint64(seen.cnps[48<<2]); n != sent || len(seen.cnps) != 1 {
					t.Errorf("CNPs have left with traffic classes %v, want all %d with %#x", seen.cnps, sent, 48<<2)
				}
				if n := seen.others[dscp|link.ECT0]; len(seen.others) != min(n, 1) {
					t.Errorf("other packets have left with traffic classes %v, want %#x alone", seen.others, dscp|link.ECT0)
				}
			})
		})
	}
}

// counterOf returns a counter of a QP.
func counterOf(t *testing.T, qp *verbs.QP, name string) uint64 {
	t.Helper()
	cs, err := qp.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}
