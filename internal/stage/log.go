package stage

import (
	"bytes"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/verbs"
)

// Entry is something that has happened. Kind says which of the other fields mean something. A page puts it into words.
//
//	sent, arrived, lost, drop, delay, damage, copy, deliver   a packet, and what the link or a decision does with it
//	post, receive    a program posts a work request        poll     a program polls a CQE
//	cqe              a device puts a CQE into a CQ         state    a QP has another state
//	count            a counter of a device has grown       memory   bytes of a region have changed
//	cm               an event of the connection manager    cut      the link is cut, or mended
//	error            a call has failed                      over     nothing is under way any more
type Entry struct {
	Step    int    `json:"step"`
	At      int64  `json:"at"` // ns
	Kind    string `json:"kind"`
	Who     string `json:"who,omitempty"`
	Packet  int    `json:"packet,omitempty"`
	Other   int    `json:"other,omitempty"`
	ID      uint64 `json:"id,omitempty"`
	Op      string `json:"op,omitempty"`
	Status  int    `json:"status,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`
	Text    string `json:"text,omitempty"`
	From    int    `json:"from,omitempty"`
	Count   uint64 `json:"count,omitempty"`
	On      bool   `json:"on,omitempty"`
	Decided bool   `json:"decided,omitempty"` // by the watcher
}

func (s *Stage) note(e Entry) {
	e.Step, e.At = s.play.Steps, int64(s.now/time.Nanosecond)
	s.log = append(s.log, e)
}

// seen is what the log has of a host.
type seen struct {
	state    verbs.QPState
	cqes     int // in all, polled or not
	polled   int
	counters map[string]uint64
}

// quiet are the counters that say nothing beyond the packets and completions that are shown anyway.
var quiet = map[string]bool{
	"sent_pkts": true, "rcvd_pkts": true, "sent_bytes": true, "rcvd_bytes": true, "port_xmit_data": true, "port_rcv_data": true,
	"port_xmit_packets": true, "port_rcv_packets": true, "rdma_sends": true, "rdma_recvs": true, "rdma_writes": true, "rdma_reads": true,
	"rdma_atomics": true, "rx_write_bytes": true, "port_rcv_errors": true, "completer_retry_err": true, "req_cqe_error": true,
	"req_cqe_flush_error": true, "resp_cqe_error": true, "resp_cqe_flush_error": true,
}

// observe notes what has changed at both ends.
func (s *Stage) observe() {
	for _, n := range s.nodes() {
		n.observe()
	}
}

func (n *node) observe() {
	n.observeCounters()
	for _, r := range n.regions {
		n.observeMemory(r)
	}
	if n.qp == nil {
		return
	}
	l := n.look()
	if l.State != n.seen.state {
		n.s.note(Entry{Kind: "state", Who: n.name, Op: stateName(n.seen.state), Text: stateName(l.State)})
		n.seen.state = l.State
	}
	for n.seen.cqes < n.seen.polled+len(l.SendCQ) {
		c := l.SendCQ[n.seen.cqes-n.seen.polled]
		n.seen.cqes++
		n.s.note(Entry{Kind: "cqe", Who: n.name, ID: c.ID, Op: wcName(c.Op), Status: int(c.Status), Bytes: int(c.ByteLen)})
	}
	if len(l.SendCQ) > 0 && n.pollAt == never {
		n.pollAt = n.s.now + pollDelay
	}
}

// observeCounters looks at the QP's counters and at what the device has dropped. The device's own counters would be a walk
// over all QPs that it may have.
func (n *node) observeCounters() {
	var counters verbs.Counters
	if n.qp != nil {
		counters, _ = n.qp.Counters() // a software device's QP has them
	}
	var drops hca.Drops
	for _, s := range n.hca.Stats() {
		drops.Malformed += s.Drops.Malformed
		drops.NoQP += s.Drops.NoQP
		drops.Source += s.Drops.Source
		drops.ICRC += s.Drops.ICRC
	}
	counters = append(counters, verbs.Counter{Name: "drop_malformed", Value: drops.Malformed}, verbs.Counter{Name: "drop_no_qp", Value: drops.NoQP},
		verbs.Counter{Name: "drop_source", Value: drops.Source}, verbs.Counter{Name: "rx_icrc_encapsulated", Value: drops.ICRC})
	if n.seen.counters == nil {
		n.seen.counters = map[string]uint64{}
	}
	for _, c := range counters {
		before := n.seen.counters[c.Name]
		if c.Value <= before || quiet[c.Name] {
			continue
		}
		if d, _ := verbs.DescribeCounter(c.Name); d.Gauge {
			continue
		}
		n.s.note(Entry{Kind: "count", Who: n.name, Text: c.Name, Count: c.Value - before})
		n.seen.counters[c.Name] = c.Value
	}
}

func (n *node) observeMemory(r *region) {
	now := r.mr.Bytes()
	if r.before == nil {
		r.before = bytes.Clone(now)
		return
	}
	if bytes.Equal(now, r.before) {
		return
	}
	first, end := 0, len(now)
	for now[first] == r.before[first] {
		first++
	}
	for now[end-1] == r.before[end-1] {
		end--
	}
	copy(r.before[first:end], now[first:end])
	r.shown = true
	n.s.note(Entry{Kind: "memory", Who: n.name, Text: r.use, From: first, Bytes: end - first})
}
