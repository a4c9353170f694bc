package adverbprom_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/adverb-rdma/adverb/adverbprom"
	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/verbs"
)

// A counter never falls, whatever closes: Prometheus would take that for a program that has begun anew. Gauges end with
// the last device.
func TestCountersOnlyGrow(t *testing.T) {
	const writes = `adverb_rdma_writes_total{device="soft_lo@127.0.77.7"}`
	for what, given := range map[string]bool{"all devices": false, "some devices": true} {
		t.Run(what, func(t *testing.T) {
			a, b := open(t), open(t)
			var options []adverbprom.Option
			if given {
				options = append(options, adverbprom.WithDevices(a, b))
			}
			r := registry(t, options...)
			before, _ := values(t, r)
			look := func(when string, more float64) (gauges int) {
				t.Helper()
				now, gauges := values(t, r)
				if now[writes] != before[writes]+more {
					t.Errorf("%s: %s is %v, and was %v, want %v more", when, writes, now[writes], before[writes], more)
				}
				for name, v := range before {
					if n, ok := now[name]; !ok || n < v {
						t.Errorf("%s: %s is %v, and was %v, want it to stay or to grow", when, name, n, v)
					}
				}
				before = now
				return gauges
			}
			write(t, a, 3)
			write(t, b, 2)
			look("both are open", 5)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			write(t, b, 1)
			look("one is open", 1)
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			if n := look("none is open", 0); n > 0 {
				t.Errorf("%d gauges of devices that are closed, want none", n)
			}
		})
	}
}

func open(t *testing.T) *verbs.Device {
	t.Helper()
	d, err := verbs.Open("soft_lo@127.0.77.7")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// values returns the values of all counters, and how many gauges there are.
func values(t *testing.T, r *prometheus.Registry) (counters map[string]float64, gauges int) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counters = map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetType().String() != "COUNTER" {
				gauges++
				continue
			}
			name := f.GetName() + "{"
			for i, l := range m.Label {
				name += fmt.Sprintf("%.*s%s=%q", min(i, 1), ",", l.GetName(), l.GetValue())
			}
			counters[name+"}"] = m.GetCounter().GetValue()
		}
	}
	return counters, gauges
}

// write writes n times, by a QP that is connected to itself.
func write(t *testing.T, d *verbs.Device, n int) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pd, err := d.AllocPD()
	ok(err)
	mr, err := pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	ok(err)
	cq, err := d.CreateCQ(16)
	ok(err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 1}})
	ok(err)
	gid, err := d.GID(1, 0)
	ok(err)
	ok(qp.Init(1, verbs.AccessRemoteWrite))
	ok(qp.RTR(verbs.Peer{QPN: qp.QPN(), GID: gid.GID}, verbs.Path{}))
	ok(qp.RTS(0, verbs.DefaultRetry))
	var wcs [1]verbs.WC
	for range n {
		ok(qp.PostOneSend(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: mr.Remote(32)}, mr.SGE(0, 8)))
		_, err := cq.Wait(t.Context(), wcs[:])
		ok(err)
		ok(wcs[0].Err())
	}
	for _, c := range []interface{ Close() error }{qp, cq, mr, pd} {
		ok(c.Close())
	}
}
