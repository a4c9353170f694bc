package hca

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestLosslessRepeatsNothing moves data both ways over networks that lose nothing, and delay less than the
// timeout. Neither end sends a packet twice, times out or refuses anything: the network has to carry what is
// repeated, and a peer that is told of a loss narrows its window.
func TestLosslessRepeatsNothing(t *testing.T) {
	const (
		qps  = 8
		size = 100 << 10
		msgs = 2 // of each kind, each way, on each QP
	)
	for _, tt := range []struct {
		name string
		sim.Config
	}{
		{name: "at once"},
		{name: "delay", Config: sim.Config{Delay: 20 * time.Millisecond}},
		{name: "jitter", Config: sim.Config{Delay: time.Millisecond, Jitter: 500 * time.Microsecond}},
		{name: "slow", Config: sim.Config{Rate: 200_000_000, QueueLen: 1 << 16}},
		{name: "marks", Config: sim.Config{Rate: 200_000_000, QueueLen: 1 << 16, MarkCEAbove: 64 << 10}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := sim.New(tt.Config)
				a, b := simDevice(t, net, 1), simDevice(t, net, 2)
				var ends []*end
				var done sync.WaitGroup
				for range qps {
					x, y := connect(t, a, b, options{})
					ends = append(ends, x, y)
					for _, way := range [][2]*end{{x, y}, {y, x}} {
						from, to := way[0], way[1]
						src, dst := from.mr(size), to.mr(size)
						for i := range uint64(msgs) {
							to.recv(verbs.RecvWR{ID: i, SGList: []verbs.SGE{dst.SGE(0, size)}})
						}
						done.Go(func() {
							sg := []verbs.SGE{src.SGE(0, size)}
							for range msgs {
								from.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: sg},
									verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: sg, Remote: dst.Remote(0)},
									verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: sg, Remote: dst.Remote(0)})
							}
						})
					}
				}
				done.Wait()
				for _, e := range ends {
					for range 4 * msgs { // a SEND, a WRITE, a READ and a receive
						e.done()
					}
				}
				got := counters(ends...)
				got.CongestionMarks, got.CongestionNotifications = 0, 0 // which slow down and repeat nothing
				if s := net.Stats(); got != (transport.Counters{}) || s.Overflowed+s.Lost > 0 {
					t.Errorf("counted %+v, want nothing; the network: %+v", got, s)
				}
				for _, d := range []*verbs.Device{a, b} {
					if s := stats(t, d); s.Drops != (Drops{}) {
						t.Errorf("dropped %+v, want nothing", s.Drops)
					}
				}
			})
		})
	}
}

// TestLongQueue: QPs that fill a queue of seconds before a slow network lose no connection, though an
// acknowledgement takes longer than their timeout. What they send again is little.
func TestLongQueue(t *testing.T) {
	const (
		qps  = 16
		size = 1 << 20
		msgs = 2
	)
	synctest.Test(t, func(t *testing.T) {
		net := sim.New(sim.Config{Rate: 50_000_000, Delay: 100 * time.Microsecond, QueueLen: 1 << 16})
		a, b := simDevice(t, net, 1), simDevice(t, net, 2)
		var xs []*end
		for range qps {
			x, y := connect(t, a, b, options{})
			src, dst := x.mr(size), y.mr(size)
			for range msgs {
				x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
			}
			xs = append(xs, x)
		}
		for _, x := range xs {
			for range msgs {
				x.done()
			}
		}
		// Each QP may take its first round trip for a loss a few times.
		if c := counters(xs...); c.Retransmits > 16*qps {
			t.Errorf("%+v, want %d packets sent again at most", c, 16*qps)
		}
	})
}

// TestSelectiveTold: who may be told, and when.
func TestSelectiveTold(t *testing.T) {
	net := sim.New(sim.Config{})
	e, to := newEnd(t, simDevice(t, net, 1), options{}), verbs.Peer{QPN: 0x123456, GID: verbs.GIDFromAddr(simAddr(2))}
	told := func(what string, qp *verbs.QP, can bool, want error) {
		t.Helper()
		if got := qp.RepeatsSelectively(); got != can {
			t.Errorf("%s: RepeatsSelectively is %v, want %v", what, got, can)
		}
		if err := qp.PeerRepeatsSelectively(); !errors.Is(err, want) {
			t.Errorf("%s: got error %v, want %v", what, err, want)
		}
	}
	told("INIT", e.qp, true, verbs.ErrState)
	e.must(e.qp.RTR(to, verbs.Path{}))
	told("RTR", e.qp, true, nil)
	e.must(e.qp.Modify(&verbs.QPAttr{State: verbs.QPStateErr}, verbs.MaskState))
	told("ERR", e.qp, true, verbs.ErrState)
	e.must(e.qp.Close())
	told("closed", e.qp, true, verbs.ErrClosed)
	told("UC", newEnd(t, e.dev, options{typ: verbs.QPTypeUC}).qp, false, verbs.ErrUnsupported)
	d, err := Open(net.Netdev("sim3", simAddr(3)), Config{Standard: true})
	e.must(err)
	t.Cleanup(func() { d.Close() })
	e = newEnd(t, verbs.NewDevice(d), options{})
	e.must(e.qp.RTR(to, verbs.Path{}))
	told("standard", e.qp, false, verbs.ErrUnsupported)
}

// TestSelectiveBetweenOurs: two devices of ours find out that both repeat selectively, over IPv4 and IPv6. What a
// lossy network makes them repeat is then little more than what it loses. A peer that shows no identifications of
// ours, or no flow labels, is told nothing, unless it seals its packets as only we do, or the program knows it.
func TestSelectiveBetweenOurs(t *testing.T) {
	const size, msgs = 1 << 20, 8
	for _, tt := range []struct {
		gid     int
		config  sim.Config
		secured bool
		told    bool // the program knows of both
		known   bool
	}{
		{0, sim.Config{}, false, false, true},
		{0, sim.Config{IDVisible: true}, false, false, false}, // visible identifications are not judged
		{0, sim.Config{IDVisible: true}, true, false, true},
		{0, sim.Config{IDVisible: true}, false, true, true},
		{0, sim.Config{NoLabels: true}, false, false, true},
		{1, sim.Config{}, false, false, true},
		{1, sim.Config{IDVisible: true}, false, false, true},
		{1, sim.Config{NoLabels: true}, false, false, false},
		{1, sim.Config{NoLabels: true}, true, false, true},
		{1, sim.Config{NoLabels: true}, false, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			tt.config.Seed, tt.config.Delay = 3, 500*time.Microsecond
			net := sim.New(tt.config)
			x, y := connect(t, simDevice(t, net, 1), simDevice(t, net, 2), options{gid: tt.gid, secured: tt.secured})
			src, dst := x.mr(size), y.mr(size)
			if tt.told {
				for _, e := range []*end{x, y} {
					e.must(e.qp.PeerRepeatsSelectively())
				}
			}
			write := func() {
				for range msgs {
					x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)})
				}
				for range msgs {
					x.done()
				}
			}
			write() // the peers get to know each other
			net.SetFaults(sim.Faults{Loss: 0.02, Delay: 500 * time.Microsecond})
			before := net.Stats().Lost
			write()
			c, held, lost := counters(x), y.impl().counts().Held, net.Stats().Lost-before
			if lost == 0 {
				t.Fatal("nothing was lost, want some")
			}
			if tt.known && (held == 0 || c.SequenceNAKs > 0 || c.Retransmits > lost+lost/2+4) {
				t.Errorf("GID %d, secured %v, %+v: %d packets were lost, %d sent again and %d held, %d NAKs; want as many sent again as lost, some held and no NAK", tt.gid, tt.secured, tt.config, lost, c.Retransmits, held, c.SequenceNAKs)
			}
			if !tt.known && held > 0 {
				t.Errorf("GID %d, %+v: %d packets were held, want none", tt.gid, tt.config, held)
			}
		})
	}
}
