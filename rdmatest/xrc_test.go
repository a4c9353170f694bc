package rdmatest_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// SRQs and targets of one XRC domain come and go while messages to them are under way. Each work request ends, and nothing
// is left in use.
func TestXRCComeAndGo(t *testing.T) {
	const (
		senders, takers = 3, 3
		connections     = 4  // of a sender
		messages        = 20 // of a connection
	)
	net := rdmatest.New(t, rdmatest.Config{})
	a, b := net.Device(), net.Device()
	xrcd, err := b.OpenXRCD(verbs.XRCDAttr{})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	gid := func(d *verbs.Device) verbs.GID {
		e, err := d.GID(1, 0)
		must(err)
		return e.GID
	}
	var over atomic.Bool
	var srqs [takers]atomic.Uint32 // numbers
	var took atomic.Uint32
	var sending, taking sync.WaitGroup
	for i := range takers {
		taking.Go(func() {
			for !over.Load() {
				pd, err := b.AllocPD()
				must(err)
				cq, err := b.CreateCQ(64)
				must(err)
				mr, err := pd.AllocMR(64, verbs.AccessLocalWrite)
				must(err)
				srq, err := xrcd.CreateSRQ(pd, cq, verbs.SRQAttr{MaxWR: 64, MaxSGE: 1})
				must(err)
				srqs[i].Store(uint32(srq.Num()))
				for n, life := 0, took.Load()+8; n < 3000 && took.Load() < life && !over.Load(); n++ {
					srq.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 64)}}}) // it may be full
					var wc [4]verbs.WC
					got, err := cq.Poll(wc[:])
					must(err)
					took.Add(uint32(got))
				}
				must(srq.Close())
				must(mr.Close())
				must(cq.Close())
				must(pd.Close())
			}
		})
	}
	for i := range senders {
		sending.Go(func() {
			pd, err := a.AllocPD()
			must(err)
			cq, err := a.CreateCQ(64)
			must(err)
			mr, err := pd.AllocMR(64, verbs.AccessLocalWrite)
			must(err)
			for range connections {
				qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCSend, SendCQ: cq, SignalAll: true, Cap: verbs.QPCap{MaxSendWR: messages, MaxSendSGE: 1}})
				must(err)
				target, err := xrcd.CreateQP(verbs.QPInitAttr{})
				must(err)
				handle, err := xrcd.OpenQP(target.QPN(), nil)
				must(err)
				for _, q := range []*verbs.QP{qp, target} {
					must(q.Init(1, verbs.AccessRemoteWrite))
				}
				must(qp.RTR(verbs.Peer{QPN: target.QPN(), GID: gid(b)}, verbs.Path{MTU: verbs.MTU1024}))
				must(target.RTR(verbs.Peer{QPN: qp.QPN(), GID: gid(a)}, verbs.Path{MTU: verbs.MTU1024}))
				must(qp.RTS(0, verbs.Retry{Timeout: 14, RetryCount: 7, RNRRetryCount: 3, MaxRDAtomic: 1}))
				for m := range messages {
					must(qp.PostOneSend(verbs.SendWR{ID: uint64(m), Op: verbs.OpSend, SGList: []verbs.SGE{mr.SGE(0, 32)}, RemoteSRQN: verbs.SRQN(srqs[(i+m)%takers].Load())}))
				}
				must(handle.Close())
				for n := 0; n < messages; {
					var wc [messages]verbs.WC
					got, err := cq.Poll(wc[:])
					must(err)
					n += got
				}
				must(target.Close())
				must(qp.Close())
			}
			must(mr.Close())
			must(cq.Close())
			must(pd.Close())
		})
	}
	sending.Wait()
	over.Store(true)
	taking.Wait()
	must(xrcd.Close())
}
