package verbs_test

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// counted returns the counters of a device or a QP.
func counted(t *testing.T, of interface {
	Counters() (verbs.Counters, error)
}) verbs.Counters {
	t.Helper()
	cs, err := of.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// wantCounts fails the test unless counters have these values.
func wantCounts(t *testing.T, what string, cs verbs.Counters, want map[string]uint64) {
	t.Helper()
	for name, value := range want {
		if got, ok := cs.Get(name); !ok || got != value {
			t.Errorf("%s: %s is %d (present: %v), want %d", what, name, got, ok, value)
		}
	}
}

// traffic sends so many messages of 100 bytes from x to y, writes as many, and reads one back.
func traffic(x, y *rdmatest.Endpoint, n int) {
	src, dst := x.MR(4096), y.MR(4096)
	for range n {
		y.Recv(verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 100)}})
		x.Send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 100)}})
		y.Done()
		x.Done()
		x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 100)}, Remote: dst.Remote(0)})
		x.Done()
	}
	x.Send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 100)}, Remote: dst.Remote(0)})
	x.Done()
}

// Counters of a QP, of its device and of the port count the packets on the wire, and the device keeps
// the counts of a QP that is closed. In a bubble, since in real time a short delay of the host makes a
// probe, which counts too.
func TestCounters(t *testing.T) { synctest.Test(t, testCounters) }

func testCounters(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b)
	const n = 5
	traffic(x, y, n)

	// One packet each, an acknowledgement each, and one response. BTH and ICRC have 12 and 4 bytes, a
	// RETH 16, an AETH 4. And each end tells the other once that it is an adverb.
	const hello = 12 + 8 + 4
	const sent = 2*n + 1 + 1
	const sentBytes = n*(12+100+4) + n*(12+16+100+4) + 12 + 16 + 4 + hello
	const rcvdBytes = 2*n*(12+4+4) + 12 + 4 + 100 + 4 + hello
	active := map[string]uint64{
		"sent_pkts": sent, "rcvd_pkts": sent, "sent_bytes": sentBytes, "rcvd_bytes": rcvdBytes,
		"rdma_sends": n, "rdma_writes": n, "rdma_reads": 1, "rdma_atomics": 0, "rdma_recvs": 0,
		"retrans_pkts": 0, "rx_write_requests": 0,
	}
	passive := map[string]uint64{
		"sent_pkts": sent, "rcvd_bytes": sentBytes, "rdma_recvs": n, "rx_write_requests": n, "rx_write_bytes": 100 * n,
		"rx_read_requests": 1, "rdma_sends": 0, "duplicate_request": 0,
	}
	wantCounts(t, "QP", counted(t, x.QP), active)
	wantCounts(t, "peer's QP", counted(t, y.QP), passive)
	if w, _ := counted(t, x.QP).Get("window_pkts"); w == 0 {
		t.Error("window_pkts is 0, want the window of an RC QP")
	}
	wantCounts(t, "device", counted(t, a), active)
	wantCounts(t, "peer's device", counted(t, b), passive)
	if _, ok := counted(t, a).Get("window_pkts"); ok {
		t.Error("the device has window_pkts, which is a QP's alone")
	}
	port, err := a.PortCounters(1)
	if err != nil {
		t.Fatal(err)
	}
	wantCounts(t, "port", port, map[string]uint64{
		"port_xmit_packets": sent, "port_rcv_packets": sent, "port_xmit_data": sentBytes / 4, "port_rcv_data": rcvdBytes / 4, "port_rcv_errors": 0,
	})
	_, err = a.PortCounters(2)
	wantErr(t, "counters of port 2", err, verbs.ErrNotFound, "no port 2")

	if err := x.QP.Close(); err != nil {
		t.Fatal(err)
	}
	wantCounts(t, "device after Close of its QP", counted(t, a), active)
	_, err = x.QP.Counters()
	wantErr(t, "counters of a closed QP", err, verbs.ErrClosed)
}

// Faults are counted by their cause, at the end that sees them.
func TestCountersOfFaults(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()

	x, y := rdmatest.Connect(t, a, b)
	src, dst := x.MR(64), y.MR(64)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, SGList: []verbs.SGE{src.SGE(0, 8)}, Remote: verbs.RemoteAddr{VA: dst.Addr() + 60, RKey: dst.RKey()}})
	x.Next()
	wantCounts(t, "requester", counted(t, x.QP), map[string]uint64{"req_remote_access_errors": 1, "req_cqe_error": 1})
	wantCounts(t, "responder", counted(t, y.QP), map[string]uint64{"resp_remote_access_errors": 1, "resp_cqe_error": 0})

	ctx, cancel := context.WithTimeout(context.Background(), rdmatest.Patience)
	defer cancel()
	for {
		e, err := b.NextEvent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type != verbs.EventQPAccessErr {
			continue
		}
		if e.QP != y.QP || !errors.Is(e.Cause, verbs.ErrInvalid) || !errorHas(e.Cause, "outside the memory region") {
			t.Errorf("event %+v, want one of the responder with the cause", e)
		}
		break
	}

	x, y = rdmatest.Connect(t, a, b, rdmatest.Options{Retry: verbs.Retry{Timeout: 14, RetryCount: 7, RNRRetryCount: rdmatest.Zero, MaxRDAtomic: 1}})
	src = x.MR(64)
	x.Send(verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{src.SGE(0, 8)}})
	if wc := x.Next(); wc.Status != verbs.WCRNRRetryExceeded {
		t.Errorf("a SEND without receive ends with %v, want %v", wc.Status, verbs.WCRNRRetryExceeded)
	}
	wantCounts(t, "requester", counted(t, x.QP), map[string]uint64{"rcvd_rnr_err": 1, "retry_rnr_exceeded_err": 1})
	wantCounts(t, "responder", counted(t, y.QP), map[string]uint64{"send_rnr_err": 1})
}

// Lost packets show at both ends.
func TestCountersOfLoss(t *testing.T) {
	net := rdmatest.New(t, rdmatest.Config{Loss: 0.05, Seed: 11})
	x, y := rdmatest.Connect(t, net.Device(), net.Device(), rdmatest.Options{
		Path: verbs.Path{MTU: verbs.MTU256}, Retry: verbs.Retry{Timeout: 12, RetryCount: 7, RNRRetryCount: 7, MaxRDAtomic: 1}})
	src, dst := x.MR(1<<18), y.MR(1<<18)
	x.Send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 1<<18)}, Remote: dst.Remote(0)})
	x.Done()
	cx, cy := counted(t, x.QP), counted(t, y.QP)
	repeats := cx.Value("completer_retry_err")
	if cx.Value("retrans_pkts") == 0 || repeats == 0 || repeats > cx.Value("rcvd_seq_err")+cx.Value("local_ack_timeout_err") {
		t.Errorf("seed %d: requester %v, want packets sent again, for NAKs or timeouts", net.Seed(), cx)
	}
	if cy.Value("out_of_seq_request") == 0 || cy.Value("send_seq_err") < cx.Value("rcvd_seq_err") {
		t.Errorf("seed %d: responder %v, want requests out of sequence, and at least as many NAKs as came", net.Seed(), cy)
	}
}

// A device that does not count says so.
func TestCountersUnsupported(t *testing.T) {
	f := &foreign{}
	d := f.open(t)
	_, err := d.Counters()
	wantErr(t, "counters", err, verbs.ErrUnsupported, "no counters")
	_, err = d.PortCounters(1)
	wantErr(t, "port counters", err, verbs.ErrUnsupported, "no counters")
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	qp, _ := f.qp(t, pd, 1)
	_, err = qp.Counters()
	wantErr(t, "counters of a QP", err, verbs.ErrUnsupported, "no counters")
}

// Every counter of the software device is described once, by a name that Prometheus takes too.
func TestCounterDescs(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := map[string]bool{}
	for _, d := range verbs.CounterDescs() {
		if seen[d.Name] || !valid.MatchString(d.Name) || d.Help == "" {
			t.Errorf("counter %+v: want a name of its own in snake_case, and a description", d)
		}
		seen[d.Name] = true
	}
	net := rdmatest.New(t)
	x, _ := rdmatest.Connect(t, net.Device(), net.Device())
	port, err := x.Device.PortCounters(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, cs := range []verbs.Counters{counted(t, x.QP), counted(t, x.Device), port} {
		listed := map[string]bool{}
		for _, c := range cs {
			if !seen[c.Name] || listed[c.Name] {
				t.Errorf("counter %s is listed twice or not described, want it once, described", c.Name)
			}
			listed[c.Name] = true
		}
	}
	if d, ok := verbs.DescribeCounter("nosuch"); ok || d.Name != "nosuch" {
		t.Errorf("an unknown counter is described as %+v, want its name alone, and false", d)
	}
}

func TestCountersSince(t *testing.T) {
	before := verbs.Counters{{Name: "sent_pkts", Value: 10}, {Name: "window_pkts", Value: 7}, {Name: "of_a_card", Value: 4}, {Name: "cm_tx_msgs_req", Value: 6}}
	after := verbs.Counters{{Name: "sent_pkts", Value: 12}, {Name: "window_pkts", Value: 3}, {Name: "rcvd_pkts", Value: 5}, {Name: "of_a_card", Value: 9},
		{Name: "cm_tx_msgs_req", Value: 2}} // another connection manager has begun to count
	wantCounts(t, "growth", after.Since(before), map[string]uint64{"sent_pkts": 2, "window_pkts": 3, "rcvd_pkts": 5, "of_a_card": 5, "cm_tx_msgs_req": 0})
}

// Resources lists open objects, and no closed ones.
func TestResources(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	x, y := rdmatest.Connect(t, a, b)
	mr := x.MR(100)
	gone := x.MR(200)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	srq, err := x.PD.CreateSRQ(verbs.SRQAttr{MaxWR: 8, MaxSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	r, err := a.Resources()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.PD) != 1 || len(r.CQ) != 1 || len(r.QP) != 1 || len(r.MR) != 1 || len(r.SRQ) != 1 || len(r.MW) != 0 || r.AH != 0 {
		t.Fatalf("resources %+v, want one PD, CQ, QP, MR and SRQ each", r)
	}
	if q := r.QP[0]; q.QPN != x.QP.QPN() || q.State != verbs.QPStateRTS || q.Type != verbs.QPTypeRC || q.DestQPN != y.QP.QPN() ||
		q.PD != r.PD[0] || q.SendCQ != r.CQ[0].Name || q.PathMTU != verbs.MTU4096 {
		t.Errorf("QP %+v, want that of the connection", q)
	}
	if m := r.MR[0]; m.RKey != mr.RKey() || m.Length != 100 || m.Access != rdmatest.Access || m.PD != r.PD[0] {
		t.Errorf("MR %+v, want the one that is open", m)
	}
	if s := r.SRQ[0]; s.MaxWR != 8 {
		t.Errorf("SRQ %+v, want room for 8", s)
	}
	_ = srq.Close()
	if r, _ := a.Resources(); len(r.SRQ) != 0 {
		t.Errorf("SRQs %+v after Close, want none", r.SRQ)
	}
}

// Asking for counters and resources from another goroutine races with nothing.
func TestCountersWhileBusy(t *testing.T) {
	net := rdmatest.New(t)
	a, b := net.Device(), net.Device()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var last uint64
		for {
			select {
			case <-stop:
				return
			default:
			}
			cs, err := a.Counters()
			if sent := cs.Value("sent_pkts"); err != nil || sent < last {
				t.Errorf("sent_pkts fell from %d to %d: %v, want it to grow", last, sent, err)
			} else {
				last = sent
			}
			if _, err := a.Resources(); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 10 {
		x, y := rdmatest.Connect(t, a, b)
		traffic(x, y, 3)
		for _, e := range []*rdmatest.Endpoint{x, y} {
			if err := e.QP.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	<-done
}
