package hca

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// linuxFlushes makes a device send and take FLUSHes as Linux's rdma_rxe does, and counts those that leave by the inner link. Those
// with the ICRC of the specification are lost to it.
type linuxFlushes struct {
	*foreign
	sent *atomic.Int64
}

func isFlush(b []byte) bool { return wire.Opcode(b[0]) == wire.RCFlush }

// isStandard reports whether a FLUSH that leaves with identification 0 has the ICRC of the specification.
func isStandard(d *link.Datagram) bool {
	f := wire.NewFlow(d.Src, d.Dst)
	return f.Verify(0, d.Payload)
}

func (l *linuxFlushes) Send(batch []link.Datagram) error {
	for _, d := range batch {
		send := []link.Datagram{d}
		if !isFlush(d.Payload) {
			if err := l.foreign.Send(send); err != nil {
				return err
			}
			continue
		}
		if !isStandard(&d) {
			continue // the second of two: Linux sends one
		}
		l.sent.Add(1)
		send[0].Payload = slices.Clone(d.Payload)
		id, df := l.next()
		linktest.SealForeign(d.Src, d.Dst, id, df, send[0].Payload)
		wire.SealLinuxFlush(send[0].Payload)
		if err := l.foreign.Link.Send(send); err != nil {
			return err
		}
	}
	return nil
}

func (l *linuxFlushes) Recv(in []link.Datagram) (n int, err error) {
	got, err := l.foreign.Recv(in)
	for i := range got {
		if d := &in[i]; isFlush(d.Payload) {
			wire.UnsealLinuxFlush(d.Payload)
			if !isStandard(d) {
				continue
			}
		}
		in[n], in[i] = in[i], in[n]
		n++
	}
	return n, err
}

// countFlushes counts the FLUSHes that a device sends, one a datagram.
type countFlushes struct {
	link.Link
	sent *atomic.Int64
}

func (c *countFlushes) MaxTrain() int { return 1 }

func (c *countFlushes) Send(batch []link.Datagram) error {
	for _, d := range batch {
		if isFlush(d.Payload) {
			c.sent.Add(1)
		}
	}
	return c.Link.Send(batch)
}

// TestLinuxFlush: FLUSHes reach a Linux, and those of a Linux are taken, each the first time that it comes. Who knows that the peer is
// an adverb sends each once.
func TestLinuxFlush(t *testing.T) {
	const n, flushable = 20, everything | verbs.AccessFlushGlobal
	for name, linux := range map[string]bool{"Linux": true, "adverb": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := sim.New(sim.Config{QueueLen: 1 << 16})
				var sentA, sentB atomic.Int64
				count := func(sent *atomic.Int64) link.Middleware {
					return func(inner link.Link) link.Link { return &countFlushes{inner, sent} }
				}
				ofB := count(&sentB)
				if linux {
					ids := newLinuxIDs(1, 250)
					ofB = func(inner link.Link) link.Link { return &linuxFlushes{asLinux(ids)(inner).(*foreign), &sentB} }
				}
				a, b := simDevice(t, net, 1, count(&sentA)), simDevice(t, net, 2, ofB)
				x, y := connect(t, a, b, options{})
				mx, my := x.mr(64), y.mr(64)
				message(x, y, mx, my, 8) // by whose answer a knows b
				for _, e := range [][2]*end{{x, y}, {y, x}} {
					e[1].must(e[1].qp.Modify(&verbs.QPAttr{Access: flushable}, verbs.MaskAccessFlags))
					mr, err := e[1].pd.AllocMR(64, flushable)
					e[1].must(err)
					for range n {
						e[0].send(verbs.SendWR{Op: verbs.OpFlush, Flags: signaled, Remote: mr.Remote(0), Flush: verbs.Flush{Length: 64, Placement: verbs.FlushGlobal}})
						e[0].done()
					}
				}
				untroubled(t, x, y)
				want := int64(n)
				if linux {
					want = 2 * n
				}
				if a, b := sentA.Load(), sentB.Load(); a != want || b != n {
					t.Errorf("%d and %d FLUSHes have left, want %d and %d", a, b, want, n)
				}
			})
		})
	}
}
