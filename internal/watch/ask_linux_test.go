//go:build !adverb_portable

package watch_test

import (
	"io"
	"os"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/verbs"
)

// A program answers while it has a device open, and tells the open objects and the counters.
func TestAsk(t *testing.T) {
	self := func(w watch.Want) (*watch.Process, []watch.Process) {
		t.Helper()
		all, _, err := watch.Ask(t.Context(), w) // other programs of this host may be silent
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			if all[i].PID == os.Getpid() {
				return &all[i], all
			}
		}
		return nil, all
	}
	if p, _ := self(watch.WantStat); p != nil {
		t.Fatalf("%+v without an open device, want no answer", p)
	}
	dev, err := verbs.Open("soft_lo@127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.AllocMR(100, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(4)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	p, all := self(watch.WantRes)
	if p == nil || len(p.Devices) != 1 {
		t.Fatalf("answers %+v, want one of this program with a device", all)
	}
	d := p.Devices[0]
	if d.Name != "soft_lo@127.0.0.1" || len(d.MR) != 1 || d.MR[0].Length != 100 || d.MR[0].RKey != uint32(mr.RKey()) || len(d.CQ) != 1 ||
		len(d.QP) != 1 || d.QP[0].QPN != uint32(qp.QPN()) || d.QP[0].State != "QPS_RESET" || d.Count["pd"] != 1 || d.Counters != nil {
		t.Errorf("device %+v, want one MR, CQ, QP and PD, and no counters", d)
	}
	p, _ = self(watch.WantQPStat)
	if d = p.Devices[0]; len(d.QP) != 1 || d.QP[0].Counters == nil || d.Counters == nil || d.Port == nil || d.MR != nil {
		t.Errorf("device %+v, want counters of the device, its port and its QP, and no MRs", d)
	}
	if _, ok := d.Counters["sent_pkts"]; !ok {
		t.Errorf("counters %v, want sent_pkts", d.Counters)
	}
	for _, c := range []io.Closer{qp, cq, mr, pd, dev} {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if p, _ := self(watch.WantStat); p != nil {
		t.Fatalf("%+v after Close of the device, want no answer", p)
	}
}
