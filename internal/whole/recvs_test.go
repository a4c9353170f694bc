package whole

import (
	"bytes"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	maxMessage  = 9 << 10
	recvSize    = 10 << 10
	sharedSlots = 24
)

// recvSlots are receive buffers. Each is filled before it is posted, so that what is written behind the end
// of a message shows.
type recvSlots struct {
	r      *region
	posted []bool
}

func newRecvSlots(n *node, name string, slots int) recvSlots {
	return recvSlots{newRegion(n, name, slots*recvSize, verbs.AccessLocalWrite), make([]bool, slots)}
}

func (s *recvSlots) bytes(i int) []byte { return s.r.bytes()[i*recvSize:][:recvSize] }

// post returns a receive into slot i.
func (s *recvSlots) post(i int, id uint64, pieces int) verbs.RecvWR {
	b := s.bytes(i)
	for k := range b {
		b[k] = untouched
	}
	s.posted[i] = true
	return verbs.RecvWR{ID: id, SGList: split(s.r.mr, i*recvSize, recvSize, pieces)}
}

// take checks that slot i has a message and nothing else, unless a message may have been dropped, which was
// there before.
func (s *recvSlots) take(who any, i int, data []byte, dropped bool) {
	w, b := s.r.n.w, s.bytes(i)
	if !s.posted[i] {
		w.failf("%v: receive slot %d completes, and is not posted", who, i)
	}
	s.posted[i] = false
	if !bytes.Equal(b[:len(data)], data) {
		w.failf("%v: receive slot %d has other contents than were sent", who, i)
	}
	for _, c := range b[len(data):] {
		if c != untouched && !dropped {
			w.failf("%v: receive slot %d is written behind the end of a message of %d bytes", who, i, len(data))
		}
	}
}

// split makes a scatter/gather list of some pieces.
func split(mr *verbs.MR, off, n, pieces int) (list []verbs.SGE) {
	for ; pieces > 1 && n > 1; pieces-- {
		k := 1 + n*7/16%n
		if k >= n {
			break
		}
		list = append(list, mr.SGE(off, k))
		off, n = off+k, n-k
	}
	return append(list, mr.SGE(off, n))
}

// sharedRecvs is the node's shared receive queue.
type sharedRecvs struct {
	recvSlots
	n     *node
	srq   *verbs.SRQ
	count int // posted
}

func newSharedRecvs(n *node) *sharedRecvs {
	s := &sharedRecvs{recvSlots: newRecvSlots(n, "shared receives", sharedSlots), n: n}
	var err error
	s.srq, err = n.pd.CreateSRQ(verbs.SRQAttr{MaxWR: sharedSlots, MaxSGE: 3})
	n.w.must(err)
	return s
}

// act posts receives, now and then too few.
func (s *sharedRecvs) act() (did bool) {
	for i, posted := range s.posted {
		if posted || s.n.rnd.IntN(2) == 0 {
			continue
		}
		_, err := s.srq.PostRecv([]verbs.RecvWR{s.post(i, uint64(i), 1+s.n.rnd.IntN(3))})
		s.n.w.must(err)
		s.count++
		did = true
	}
	return did
}

// done takes note that the receive with an ID has completed.
func (s *sharedRecvs) done(id uint64) {
	s.posted[id] = false
	s.count--
}

// close checks that no receive was lost: no QP is left that could hold one.
func (s *sharedRecvs) close() {
	w := s.n.w
	s.n.cq.drain()
	mask := verbs.SRQMaskMaxWR
	if s.count > 1 {
		if err := s.srq.Modify(verbs.SRQAttr{MaxWR: s.count - 1}, mask); err == nil {
			w.failf("%v: fewer than %d receives are posted to the SRQ, want all that did not complete", s.n, s.count)
		}
	}
	if s.count > 0 {
		if err := s.srq.Modify(verbs.SRQAttr{MaxWR: s.count}, mask); err != nil {
			w.failf("%v: more than %d receives are posted to the SRQ, want those that did not complete: %v", s.n, s.count, err)
		}
	}
	w.must(s.srq.Close())
	s.r.check()
	s.r.close()
}
