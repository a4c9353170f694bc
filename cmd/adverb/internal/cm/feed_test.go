package cm

import (
	"context"
	"testing"
	"time"

	_ "github.com/adverb-rdma/adverb/provider/soft" // the device of the test
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// A silent peer is asked whether it is there. The feed goes on if it is, and fails if not.
func TestFeedProbe(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dev, err := verbs.Open("soft_lo@127.0.88.61")
	if err != nil {
		t.Fatal(err)
	}
	pd, err1 := dev.AllocPD()
	cq, err2 := dev.CreateCQ(16)
	var qps [2]*verbs.QP
	for i := range qps {
		qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
		if err1 != nil || err2 != nil || err != nil {
			t.Fatal(err1, err2, err)
		}
		qps[i] = qp
	}
	entry, err := dev.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, qp := range qps {
		const code = 8 // 1 ms
		err1 := qp.Init(1, verbs.AccessRemoteWrite)
		err2 := qp.RTR(verbs.Peer{QPN: qps[1-i].QPN(), GID: entry.GID}, verbs.Path{})
		err3 := qp.RTS(0, verbs.Retry{Timeout: code, RetryCount: 1})
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
	}
	f := NewFeed(ctx)
	f.CQ = cq
	f.Probe(qps[0])
	f.idleAfter = time.Millisecond
	probe, probes := f.onIdle, 0
	f.onIdle = func() error {
		if probes++; probes == 10 {
			f.events <- rdmacm.Event{Type: rdmacm.EventEstablished}
		}
		return probe()
	}
	if wc, ev, err := f.Wait(); wc != nil || err != nil || ev.Type != rdmacm.EventEstablished {
		t.Errorf("a peer that answers: got completion %v, event %v, error %v; want the event %v", wc, ev, err, rdmacm.EventEstablished)
	}
	if err := qps[1].Close(); err != nil {
		t.Fatal(err)
	}
	if wc, _, err := f.Wait(); err != nil || wc == nil || wc.ID != ProbeID || wc.Status != verbs.WCRetryExceeded {
		t.Errorf("a peer that is gone: got completion %+v, error %v; want the failed probe", wc, err)
	}
	for _, close := range []func() error{qps[0].Close, cq.Close, pd.Close, dev.Close} {
		if err := close(); err != nil {
			t.Error(err)
		}
	}
}
