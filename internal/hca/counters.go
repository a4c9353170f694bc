package hca

import (
	"sync"

	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/verbs"
)

// Counters cost no atomic and no lock of their own on the hot paths. A QP counts in plain fields
// under its lock, and links count anyway. A device adds up when it is asked: the counts of its QPs, and those of
// closed QPs, which are in retired.

// traffic counts the packets of a QP.
type traffic struct {
	sent, sentBytes uint64
	rcvd, rcvdBytes uint64 // packets for the QP that were whole

	sentNear, rcvdNear, lostNear   uint64 // of these, by lanes
	fast                           uint64 // SENDs that took the fast path
	direct                         uint64 // work requests that were carried out by direct access
	badICRC, badPKey, badSource    uint64
	forged, replayed, plain, noKey uint64 // dropped by packet security
}

// sends counts a packet that leaves by the network.
func (t *traffic) sends(bytes int) {
	t.sent++
	t.sentBytes += uint64(bytes)
}

// receives counts a packet that has come by the network.
func (t *traffic) receives(bytes int) {
	t.rcvd++
	t.rcvdBytes += uint64(bytes)
}

// sendsNear counts packets that leave by a lane.
func (t *traffic) sendsNear(packets, bytes int) {
	t.sent += uint64(packets)
	t.sentNear += uint64(packets)
	t.sentBytes += uint64(bytes)
}

// receivesNear counts packets that have come by a lane.
func (t *traffic) receivesNear(packets, bytes int) {
	t.rcvd += uint64(packets)
	t.rcvdNear += uint64(packets)
	t.rcvdBytes += uint64(bytes)
}

// tally are all counts of a QP.
type tally struct {
	transport.Counters
	transport.Work
	traffic
}

// tallied names the counters of a tally, in the order in which they are listed.
var tallied = []struct {
	name  string
	value func(t *tally) uint64
}{
	{"sent_pkts", func(t *tally) uint64 { return t.sent }},
	{"rcvd_pkts", func(t *tally) uint64 { return t.rcvd }},
	{"sent_bytes", func(t *tally) uint64 { return t.sentBytes }},
	{"rcvd_bytes", func(t *tally) uint64 { return t.rcvdBytes }},
	{"shm_sent_pkts", func(t *tally) uint64 { return t.sentNear }},
	{"shm_rcvd_pkts", func(t *tally) uint64 { return t.rcvdNear }},
	{"shm_fast_sends", func(t *tally) uint64 { return t.fast }},
	{"shm_direct_ops", func(t *tally) uint64 { return t.direct }},
	{"shm_lost_pkts", func(t *tally) uint64 { return t.lostNear }},
	{"rdma_sends", func(t *tally) uint64 {
		return t.done(verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv)
	}},
	{"rdma_recvs", func(t *tally) uint64 { return t.Received }},
	{"rdma_writes", func(t *tally) uint64 { return t.done(verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm) }},
	{"rdma_reads", func(t *tally) uint64 { return t.done(verbs.OpRDMARead) }},
	{"rdma_atomics", func(t *tally) uint64 { return t.done(verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd) }},
	{"rdma_flushes", func(t *tally) uint64 { return t.done(verbs.OpFlush) }},
	{"rdma_atomic_writes", func(t *tally) uint64 { return t.done(verbs.OpAtomicWrite) }},
	{"rx_write_requests", func(t *tally) uint64 { return t.Writes }},
	{"rx_write_bytes", func(t *tally) uint64 { return t.WriteBytes }},
	{"rx_read_requests", func(t *tally) uint64 { return t.Reads }},
	{"rx_atomic_requests", func(t *tally) uint64 { return t.Atomics }},
	{"rx_flush_requests", func(t *tally) uint64 { return t.Flushes }},
	{"rx_atomic_write_requests", func(t *tally) uint64 { return t.AtomicWrites }},

	{"retrans_pkts", func(t *tally) uint64 { return t.Retransmits }},
	{"completer_retry_err", func(t *tally) uint64 { return t.Repeats }},
	{"local_ack_timeout_err", func(t *tally) uint64 { return t.Timeouts }},
	{"loss_probes", func(t *tally) uint64 { return t.Probes }},
	{"needless_probes", func(t *tally) uint64 { return t.NeedlessProbes }},
	{"needless_repeats", func(t *tally) uint64 { return t.Needless }},
	{"duplicate_request", func(t *tally) uint64 { return t.Duplicates }},
	{"out_of_seq_request", func(t *tally) uint64 { return t.OutOfOrder }},
	{"held_request", func(t *tally) uint64 { return t.Held }},
	{"paths_left", func(t *tally) uint64 { return t.PathsLeft }},
	{"path_probes", func(t *tally) uint64 { return t.PathProbes }},
	{"rcvd_rnr_err", func(t *tally) uint64 { return t.RNRNAKs }},
	{"send_rnr_err", func(t *tally) uint64 { return t.SentRNRNAKs }},
	{"rcvd_seq_err", func(t *tally) uint64 { return t.SequenceNAKs }},
	{"send_seq_err", func(t *tally) uint64 { return t.SentSequenceNAKs }},
	{"implied_nak_seq_err", func(t *tally) uint64 { return t.ImpliedNAKs }},
	{"repeated_responses", func(t *tally) uint64 { return t.RepeatedResponses }},
	{"unexpected_pkts", func(t *tally) uint64 { return t.Unexpected }},
	{"rp_cnp_handled", func(t *tally) uint64 { return t.CongestionNotifications }},
	{"rp_cnp_ignored", func(t *tally) uint64 { return t.IgnoredNotifications }},
	{"np_cnp_sent", func(t *tally) uint64 { return t.SentNotifications }},
	{"np_ecn_marked_roce_packets", func(t *tally) uint64 { return t.CongestionMarks }},

	{"retry_exceeded_err", func(t *tally) uint64 { return t.RetryExceeded }},
	{"path_mtu_exceeded_err", func(t *tally) uint64 { return t.BlackHoles }},
	{"retry_rnr_exceeded_err", func(t *tally) uint64 { return t.RNRRetryExceeded }},
	{"req_remote_invalid_request", func(t *tally) uint64 { return t.InvalidNAKs }},
	{"req_remote_access_errors", func(t *tally) uint64 { return t.AccessNAKs }},
	{"req_remote_op_errors", func(t *tally) uint64 { return t.OperationNAKs }},
	{"resp_remote_invalid_request", func(t *tally) uint64 { return t.RefusedInvalid }},
	{"resp_remote_access_errors", func(t *tally) uint64 { return t.RefusedAccess }},
	{"resp_remote_op_errors", func(t *tally) uint64 { return t.RefusedOperation }},
	{"resp_local_length_error", func(t *tally) uint64 { return t.TooLong }},
	{"req_cqe_error", func(t *tally) uint64 { return t.SendErrors }},
	{"req_cqe_flush_error", func(t *tally) uint64 { return t.SendFlushes }},
	{"resp_cqe_error", func(t *tally) uint64 { return t.RecvErrors }},
	{"resp_cqe_flush_error", func(t *tally) uint64 { return t.RecvFlushes }},

	{"out_of_buffer", func(t *tally) uint64 { return t.NoReceive }},
	{"uc_missed_pkts", func(t *tally) uint64 { return t.MissedPackets }},
	{"uc_lost_msgs", func(t *tally) uint64 { return t.LostMessages }},
	{"rx_icrc_encapsulated", func(t *tally) uint64 { return t.badICRC }},
	{"qkey_viol_cntr", func(t *tally) uint64 { return t.QKeyViolations }},
	{"bad_pkey_cntr", func(t *tally) uint64 { return t.badPKey }},
	{"drop_source", func(t *tally) uint64 { return t.badSource }},
	{"sec_forged_pkts", func(t *tally) uint64 { return t.forged }},
	{"sec_replayed_pkts", func(t *tally) uint64 { return t.replayed }},
	{"sec_plain_pkts", func(t *tally) uint64 { return t.plain }},
	{"sec_no_key_pkts", func(t *tally) uint64 { return t.noKey }},
}

// done adds up the send work requests of some operations.
func (t *tally) done(ops ...verbs.Opcode) (n uint64) {
	for _, op := range ops {
		n += t.Completed(op)
	}
	return n
}

// tally returns q's counts. The caller holds q.mu.
func (q *qp) tally() tally { return tally{q.t.Counters(), q.t.Work(), q.traffic} }

// addTo adds the counters to list, which begins with those of other tallies or is empty.
func (t *tally) addTo(list verbs.Counters) verbs.Counters {
	if len(list) == 0 {
		list = make(verbs.Counters, len(tallied))
	}
	for i := range tallied {
		list[i].Name = tallied[i].name
		list[i].Value += tallied[i].value(t)
	}
	return list
}

// Counters implements verbs.ProviderQPCounters.
func (q *qp) Counters() (verbs.Counters, error) {
	q.mu.Lock()
	t, g := q.tally(), q.t.Gauges()
	q.mu.Unlock()
	return append(t.addTo(nil),
		verbs.Counter{Name: "window_pkts", Value: g.Window},
		verbs.Counter{Name: "inflight_pkts", Value: g.InFlight},
		verbs.Counter{Name: "rtt_ns", Value: g.RoundTrip},
		verbs.Counter{Name: "rate_limit_bytes", Value: g.Rate},
		verbs.Counter{Name: "send_queue_wrs", Value: g.SendQueue},
		verbs.Counter{Name: "recv_queue_wrs", Value: g.Receives},
	), nil
}

// retired are the counts of closed QPs. mu is taken before the lock of a QP, and held while a QP
// retires, so that each QP is added up once.
type retired struct {
	mu   sync.Mutex
	sum  verbs.Counters
	last tally // of the QP that retires: kept, so that none of the many is allocated
}

// retire is called when q closes, with d.retired.mu and q.mu held.
func (d *Device) retire(q *qp) {
	r := &d.retired
	r.last = q.tally()
	r.sum = r.last.addTo(r.sum)
}

// Counters implements verbs.ProviderCounters.
func (d *Device) Counters() (verbs.Counters, error) {
	d.retired.mu.Lock()
	sum := (&tally{}).addTo(append(verbs.Counters(nil), d.retired.sum...))
	add := func(q *qp) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.closed {
			t := q.tally()
			sum = t.addTo(sum)
		}
	}
	for _, s := range d.shards {
		s.qps.All(add)
	}
	if q := d.gsi.qp.Load(); q != nil {
		add(q)
	}
	d.retired.mu.Unlock()
	var l Stats
	for _, s := range d.Stats() {
		l.Drops.Malformed += s.Drops.Malformed
		l.Drops.NoQP += s.Drops.NoQP + s.Link.NoQP
		l.Link.SendErrors += s.Link.SendErrors
		l.Link.ReceiveDrops += s.Link.ReceiveDrops
	}
	return append(sum,
		verbs.Counter{Name: "drop_malformed", Value: l.Drops.Malformed},
		verbs.Counter{Name: "drop_no_qp", Value: l.Drops.NoQP},
		verbs.Counter{Name: "drop_overflow", Value: l.Link.ReceiveDrops},
		verbs.Counter{Name: "send_err", Value: l.Link.SendErrors},
		verbs.Counter{Name: "link_downed", Value: d.port.timesDown()},
	), nil
}

// The port counters of data count in units of dataUnit bytes.
const dataUnit = 4

// PortCounters implements verbs.ProviderCounters.
func (d *Device) PortCounters(int) (verbs.Counters, error) {
	var l Stats
	for _, s := range d.Stats() {
		l.Link.Sent += s.Link.Sent
		l.Link.SentBytes += s.Link.SentBytes
		l.Link.Received += s.Link.Received
		l.Link.ReceivedBytes += s.Link.ReceivedBytes
		l.Link.SendErrors += s.Link.SendErrors
		l.Drops.Malformed += s.Drops.Malformed
		l.Drops.ICRC += s.Drops.ICRC
	}
	return verbs.Counters{
		{Name: "port_xmit_data", Value: l.Link.SentBytes / dataUnit},
		{Name: "port_rcv_data", Value: l.Link.ReceivedBytes / dataUnit},
		{Name: "port_xmit_packets", Value: l.Link.Sent},
		{Name: "port_rcv_packets", Value: l.Link.Received},
		{Name: "port_rcv_errors", Value: l.Drops.Malformed + l.Drops.ICRC},
		{Name: "port_xmit_discards", Value: l.Link.SendErrors},
		{Name: "link_downed", Value: d.port.timesDown()},
		{Name: "bad_pkey_cntr", Value: uint64(d.port.badPKeys.load())},
		{Name: "qkey_viol_cntr", Value: uint64(d.port.qkeyViolations.load())},
	}, nil
}
