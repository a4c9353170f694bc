package transport

import (
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// store stores a response to w, from byte off of w's memory on. The response ends before seq. The targets of READs
// and atomics may overlap, as where one word is read again and again. The memory must then show the response to the
// last one posted. So where responses behind seq have come first, their bytes stay.
func (c *completer) store(w *sendWQE, off uint32, payload []byte, seq uint64) error {
	pd := c.qp.cfg.PD
	if c.rc.recovery.HeardTo() <= seq {
		return c.qp.scatter(pd, w.sg, off, payload)
	}
	if c.later == nil {
		c.later = new([]mem.Span)
	}
	behind := c.openLater((*c.later)[:0], seq)
	err := pd.ScatterLate(w.sg, off, payload, behind)
	for _, s := range behind {
		s.Release()
	}
	clear(behind)
	*c.later = behind
	return err
}

// openLater opens the memory of the responses to READs and atomics that have come from seq on, and appends its spans
// to dst. A region that is gone keeps nothing.
func (c *completer) openLater(dst []mem.Span, seq uint64) []mem.Span {
	sq, rec := &c.qp.sq, &c.rc.recovery
	place := sq.head
	for from, to := range rec.ArrivedFrom(seq) {
		for ; place != sq.tail && sq.at(place).seq < to; place++ {
			w := sq.at(place)
			if w.end() <= from || w.op != verbs.OpRDMARead && !w.isAtomic() {
				continue
			}
			begin, end := uint32(0), uint32(atomicLength)
			if w.op == verbs.OpRDMARead {
				begin = uint32(max(from, w.seq)-w.seq) * c.qp.mtu
				end = uint32(min(uint64(w.length), (to-w.seq)*uint64(c.qp.mtu)))
			}
			dst, _ = c.qp.cfg.PD.OpenList(dst, w.sg, begin, end-begin, verbs.AccessLocalWrite)
			if w.end() > to { // the next range may be of w too
				break
			}
		}
	}
	return dst
}
