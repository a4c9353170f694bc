package rdmaio

import (
	"context"
	"errors"
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
