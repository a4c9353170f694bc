package adverbprom_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/adverb-rdma/adverb/adverbprom"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// connected returns two ends between which one WRITE went.
func connected(t *testing.T) (x, y *rdmatest.Endpoint) {
	t.Helper()
	net := rdmatest.New(t)
	x, y = rdmatest.Connect(t, net.Device(), net.Device())
	src, dst := x.MR(64), y.MR(64)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: dst.Remote(0)})
	x.Done()
	return x, y
}

// registry returns a registry with a collector. It finds what is wrong with its metrics: two of one name,
// or one with two descriptions.
func registry(t *testing.T, options ...adverbprom.Option) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(adverbprom.New(options...)); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCollector(t *testing.T) {
	x, y := connected(t)
	r := registry(t, adverbprom.WithDevices(x.Device, y.Device), adverbprom.WithQueuePairs())
	want := fmt.Sprintf(`
# HELP adverb_open_objects objects that are open, by kind
# TYPE adverb_open_objects gauge
adverb_open_objects{device="sim0",kind="ah"} 0
adverb_open_objects{device="sim0",kind="cm_id"} 0
adverb_open_objects{device="sim0",kind="cq"} 1
adverb_open_objects{device="sim0",kind="mr"} 1
adverb_open_objects{device="sim0",kind="mw"} 0
adverb_open_objects{device="sim0",kind="pd"} 1
adverb_open_objects{device="sim0",kind="qp"} 1
adverb_open_objects{device="sim0",kind="srq"} 0
adverb_open_objects{device="sim1",kind="ah"} 0
adverb_open_objects{device="sim1",kind="cm_id"} 0
adverb_open_objects{device="sim1",kind="cq"} 1
adverb_open_objects{device="sim1",kind="mr"} 1
adverb_open_objects{device="sim1",kind="mw"} 0
adverb_open_objects{device="sim1",kind="pd"} 1
adverb_open_objects{device="sim1",kind="qp"} 1
adverb_open_objects{device="sim1",kind="srq"} 0
# HELP adverb_port_xmit_packets_total packets sent
# TYPE adverb_port_xmit_packets_total counter
adverb_port_xmit_packets_total{device="sim0",port="1"} 1
adverb_port_xmit_packets_total{device="sim1",port="1"} 1
# HELP adverb_qp_window_pkts RC: packets that may be unacknowledged
# TYPE adverb_qp_window_pkts gauge
adverb_qp_window_pkts{device="sim0",qp="%v",type="QPT_RC"} 65
adverb_qp_window_pkts{device="sim1",qp="%v",type="QPT_RC"} 64
# HELP adverb_rdma_writes_total WRITE work requests that succeeded
# TYPE adverb_rdma_writes_total counter
adverb_rdma_writes_total{device="sim0"} 1
adverb_rdma_writes_total{device="sim1"} 0
`, x.QP.QPN(), y.QP.QPN())
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "adverb_rdma_writes_total", "adverb_open_objects",
		"adverb_port_xmit_packets_total", "adverb_qp_window_pkts"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(r); err != nil {
		t.Error(err)
	} else {
		for _, p := range problems {
			if !strings.Contains(p.Text, "abbreviated") && !strings.Contains(p.Text, "base unit") && !strings.Contains(p.Text, "unit") {
				t.Errorf("%s: %s, want no such problem", p.Metric, p.Text)
			}
		}
	}
}

// Without WithQueuePairs there are no metrics of QPs, and without devices none at all.
func TestOptions(t *testing.T) {
	x, _ := connected(t)
	if n, err := testutil.GatherAndCount(registry(t, adverbprom.WithDevices(x.Device)), "adverb_qp_sent_pkts_total"); err != nil || n != 0 {
		t.Errorf("%d metrics of QPs, %v; want none", n, err)
	}
	if n, err := testutil.GatherAndCount(registry(t)); err != nil || n != 0 {
		t.Errorf("%d metrics without open devices, %v; want none", n, err)
	}
	if err := x.QP.Close(); err != nil {
		t.Fatal(err)
	}
	r := registry(t, adverbprom.WithDevices(x.Device), adverbprom.WithQueuePairs())
	if n, err := testutil.GatherAndCount(r, "adverb_qp_sent_pkts_total", "adverb_sent_pkts_total"); err != nil || n != 1 {
		t.Errorf("%d metrics of sent packets after the QP is closed, %v; want the device's alone", n, err)
	}
}

// What a scrape gets is what Prometheus reads.
func TestScrape(t *testing.T) {
	x, _ := connected(t)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry(t, adverbprom.WithDevices(x.Device)), promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, "\nadverb_sent_pkts_total{device=\"sim0\"} 1\n") {
		t.Errorf("status %d:\n%.500s\nwant status 200 and one packet of sim0", w.Code, body)
	}
}

func Example() {
	prometheus.MustRegister(adverbprom.New())
	// http.Handle("/metrics", promhttp.Handler())
}

// TestOpenedTwice: the metrics of a device that is open twice are added up. Two of one name would make the
// whole scrape fail.
func TestOpenedTwice(t *testing.T) {
	x, _ := connected(t)
	one, err := testutil.GatherAndCount(registry(t, adverbprom.WithDevices(x.Device)))
	if err != nil {
		t.Fatal(err)
	}
	r := registry(t, adverbprom.WithDevices(x.Device, x.Device))
	if two, err := testutil.GatherAndCount(r); err != nil || two != one {
		t.Errorf("%d metrics, %v; want %d as of one", two, err, one)
	}
	want := "# HELP adverb_rdma_writes_total WRITE work requests that succeeded\n# TYPE adverb_rdma_writes_total counter\n" +
		"adverb_rdma_writes_total{device=\"sim0\"} 2\n"
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "adverb_rdma_writes_total"); err != nil {
		t.Error(err)
	}
}
