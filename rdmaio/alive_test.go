package rdmaio

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// A call that waits ends, at both ends, when the other host has vanished: after the period of each end's KeepAlive, and
// never where that is negative.
func TestKeepAlive(t *testing.T) {
	const short, retries, long = time.Second, 3 * time.Second, 10 * time.Minute
	for name, tt := range map[string]struct {
		client, server, clientEnds, serverEnds time.Duration // 0: it does not
	}{
		"client":  {short, -1, short, 0},
		"server":  {-1, short, 0, short},
		"neither": {-1, -1, 0, 0},
		"default": {0, 0, rdmacm.DefaultKeepAlive, rdmacm.DefaultKeepAlive},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{Config: &Config{KeepAlive: tt.server}}
				begun, told := make(chan struct{}), make(chan time.Time, 1)
				s.Handle("wait", func(ctx context.Context, c *Call) ([]byte, error) {
					close(begun)
					<-ctx.Done()
					told <- time.Now()
					return nil, nil
				})
				p := newServer(t, rdmatest.Config{}, s)
				c := p.dial(t, Config{KeepAlive: tt.client})
				failed := make(chan time.Time, 1)
				go func() {
					if _, err := c.Call(t.Context(), "wait", nil, Bulk{}); err == nil {
						t.Error("a call to a host that has vanished has gone well, want an error")
					}
					failed <- time.Now()
				}()
				<-begun
				synctest.Wait()
				p.net.Partition(p.from, p.at)
				start := time.Now()
				over, cancel := context.WithTimeout(t.Context(), long)
				defer cancel()
				for range 2 {
					select {
					case at := <-failed:
						if d := at.Sub(start); tt.clientEnds == 0 || d < tt.clientEnds/2 || d > tt.clientEnds+retries {
							t.Errorf("the call has ended after %v, want it to after %v and the retries (0: never)", d, tt.clientEnds)
						}
						tt.clientEnds = 0
					case at := <-told:
						if d := at.Sub(start); tt.serverEnds == 0 || d < tt.serverEnds/2 || d > tt.serverEnds+retries {
							t.Errorf("the handler was told after %v, want it to be after %v and the retries (0: never)", d, tt.serverEnds)
						}
						tt.serverEnds = 0
					case <-over.Done():
					}
				}
				if tt.clientEnds != 0 || tt.serverEnds != 0 {
					t.Errorf("%v later the client and the server do not both know", long)
				}
			})
		})
	}
}

// A requester is for RC QPs.
func TestRequesterRefuses(t *testing.T) {
	net := rdmatest.New(t)
	d := net.Device()
	pd, err := d.AllocPD()
	ok(t, err)
	cq, err := d.CreateCQ(10)
	ok(t, err)
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		qp, err := pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
		ok(t, err)
		if r, err := NewRequester(qp, nil); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("of a %v QP: %v, want %v", typ, err, verbs.ErrInvalid)
			if err == nil {
				r.Close()
			}
		}
		ok(t, qp.Close())
	}
	ok(t, cq.Close())
	ok(t, pd.Close()) // nothing is left
}

// A client that goes silent before it is connected holds memory of the server for setupTime, and no longer.
func TestSetupDeadline(t *testing.T) { synctest.Test(t, testSetupDeadline) }

func testSetupDeadline(t *testing.T) {
	p := newServer(t, rdmatest.Config{}, methods())
	before, err := p.at.Resources()
	ok(t, err)
	ch := rdmacm.NewEventChannel(p.from)
	defer ch.Close()
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	ok(t, err)
	defer id.Close()
	next := func(want rdmacm.EventType) {
		t.Helper()
		if ev, err := ch.Next(patience(t)); err != nil || ev.Type != want {
			t.Fatalf("got event %v, %v, want %v", ev.Type, err, want)
		}
	}
	ok(t, id.ResolveAddr(netip.AddrPort{}, p.addr))
	next(rdmacm.EventAddrResolved)
	ok(t, id.ResolveRoute())
	next(rdmacm.EventRouteResolved)
	ok(t, id.Connect(&rdmacm.ConnParam{QPN: 0x123456, PrivateData: appendHello(nil, hello{slots: 32, longest: 4096})}))
	next(rdmacm.EventConnectResponse) // which an ID without a QP has to answer, and this one does not
	during, err := p.at.Resources()
	ok(t, err)
	if len(during.MR) == len(before.MR) || len(during.QP) == len(before.QP) {
		t.Fatal("the server holds nothing for a client that it has answered")
	}
	start := time.Now()
	next(rdmacm.EventRejected)
	if took := time.Since(start); took > setupTime {
		t.Errorf("the server has given up after %v, want it to after %v at most", took, setupTime)
	}
	synctest.Wait()
	after, err := p.at.Resources()
	ok(t, err)
	if len(after.MR) > len(before.MR) || len(after.QP) > len(before.QP) {
		t.Errorf("then the server holds %d regions and %d QPs, want %d and %d as before", len(after.MR), len(after.QP), len(before.MR), len(before.QP))
	}
}
