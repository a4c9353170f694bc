package queue

import (
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/verbs"
)

// Recv is a posted receive. The queue that it is from owns it, until a transport takes it.
type Recv struct {
	ID     uint64
	PD     *mem.PD // that its memory is checked against: an SRQ's may be another than the QP's
	SGList []verbs.SGE
	Length uint32 // bytes of SGList; 2^31 at most

	place uint64 // in its receive queue
}

// setUp gives a receive the room for its SGList, whose memory is checked against a PD.
func (r *Recv) setUp(pd *mem.PD, sges []verbs.SGE) { r.PD, r.SGList = pd, sges }

// fill copies a work request to its place in a queue. The SGList of r has room for it.
func (r *Recv) fill(wr *verbs.RecvWR) {
	r.ID = wr.ID
	r.SGList = append(r.SGList[:0], wr.SGList...)
	total := uint64(0)
	for i := range wr.SGList {
		total += uint64(wr.SGList[i].Length)
	}
	r.Length = uint32(min(total, verbs.MaxMessageSize))
}

// Place stores src in the receive's memory, from byte off of it on.
func (r *Recv) Place(off uint32, src []byte) error { return r.PD.Scatter(r.SGList, off, src) }
