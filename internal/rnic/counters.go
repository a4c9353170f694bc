package rnic

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/verbs"
)

// octets counts the bytes of a QP's streams, with all headers.
type octets struct{ sent, rcvd uint64 }

// read counts bytes that came from a stream, and wrote bytes that a stream took.
func (o *octets) read(n int)  { o.rcvd += uint64(n) }
func (o *octets) wrote(n int) { o.sent += uint64(n) }

func (o *octets) add(p octets) {
	o.sent += p.sent
	o.rcvd += p.rcvd
}

// tally is all counts of a QP. The QP's lock guards them; a device adds them up when a program asks.
type tally struct {
	iwarp.Counters
	octets
}

// tally returns the counts of q. The caller holds q.mu.
func (q *qp) tally() tally { return tally{q.t.Counters, q.bytes} }

func (t *tally) add(o tally) {
	t.FPDUsSent += o.FPDUsSent
	t.FPDUsReceived += o.FPDUsReceived
	t.BytesSent += o.BytesSent
	t.BytesReceived += o.BytesReceived
	t.TerminatesSent += o.TerminatesSent
	t.TerminatesReceived += o.TerminatesReceived
	t.CRCErrors += o.CRCErrors
	t.octets.add(o.octets)
}

// list names the counters of QPs.
func (t *tally) list() verbs.Counters {
	return verbs.Counters{
		{Name: "iw_tx_fpdus", Value: t.FPDUsSent}, {Name: "iw_rx_fpdus", Value: t.FPDUsReceived},
		{Name: "iw_tx_bytes", Value: t.BytesSent}, {Name: "iw_rx_bytes", Value: t.BytesReceived},
		{Name: "iw_tx_terminates", Value: t.TerminatesSent}, {Name: "iw_rx_terminates", Value: t.TerminatesReceived},
		{Name: "iw_rx_crc_errors", Value: t.CRCErrors},
	}
}

// Counters implements verbs.ProviderQPCounters.
func (q *qp) Counters() (verbs.Counters, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.tally()
	return t.list(), nil
}

// retired has the sum of the closed QPs' counts. mu is taken before the lock of a QP, and held
// while a QP closes, so that each QP is added up once.
type retired struct {
	mu  sync.Mutex
	sum tally
}

// sum adds up the counts of all QPs, closed ones included.
func (d *Device) sum() tally {
	d.retired.mu.Lock()
	defer d.retired.mu.Unlock()
	sum := d.retired.sum
	d.qps.All(func(q *qp) {
		q.mu.Lock()
		defer q.mu.Unlock()
		sum.add(q.tally())
	})
	return sum
}

// timesDown returns how often the port went down.
func (d *Device) timesDown() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.downed
}

// Counters implements verbs.ProviderCounters.
func (d *Device) Counters() (verbs.Counters, error) {
	t := d.sum()
	return append(t.list(), verbs.Counter{Name: "link_downed", Value: d.timesDown()}), nil
}

// The port counters of data count in units of dataUnit bytes.
const dataUnit = 4

// PortCounters implements verbs.ProviderCounters. A packet is an FPDU, since only TCP knows its segments.
func (d *Device) PortCounters(int) (verbs.Counters, error) {
	t := d.sum()
	return verbs.Counters{
		{Name: "port_xmit_data", Value: t.sent / dataUnit},
		{Name: "port_rcv_data", Value: t.rcvd / dataUnit},
		{Name: "port_xmit_packets", Value: t.FPDUsSent},
		{Name: "port_rcv_packets", Value: t.FPDUsReceived},
		{Name: "port_rcv_errors", Value: t.CRCErrors},
		{Name: "link_downed", Value: d.timesDown()},
	}, nil
}
