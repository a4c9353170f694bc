package bench

import (
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/bench/probe"
)

// probeEnd is an end of the probe.
type probeEnd struct {
	*order
	w *workload
	s probe.Socket

	train int // packets of a system call; 0: as many as it takes
}

func newProbeEnd(o *order, w *workload) end { return &probeEnd{order: o, w: w} }

// newSingleProbeEnd has each packet sent by a system call of its own.
func newSingleProbeEnd(o *order, w *workload) end { return &probeEnd{order: o, w: w, train: 1} }

func (e *probeEnd) open() (any, error) {
	addr, err := netip.ParseAddr(e.Addr)
	if err != nil {
		return nil, err
	}
	if e.s, err = probe.Open(addr); err != nil {
		return nil, err
	}
	return e.s.Addr(), nil
}

func (e *probeEnd) connect(address json.RawMessage) error {
	var peer netip.AddrPort
	if err := json.Unmarshal(address, &peer); err != nil {
		return err
	}
	return e.s.Connect(peer)
}

func (e *probeEnd) run(stop *stopper) (result, error) {
	m := newMeter(e.order, e.w.size)
	shape := probe.Shape{Size: e.w.size, PathMTU: e.PathMTU, Region: e.w.region(), Train: e.train}
	stopped := stop.set.Load
	var total int64
	more := func(n int64) bool {
		total = n
		return m.on(n)
	}
	var err error
	switch {
	case e.w.kind.isLatency():
		err = e.s.Bounce(shape, !e.Server, e.w.kind == kindBlocked, more, stopped)
	case e.Server:
		err = e.s.Receive(shape, more, stopped)
	default:
		err = e.s.Stream(shape, stopped)
	}
	if errors.Is(err, probe.ErrStopped) {
		err = nil
	}
	return m.result(total), err
}
