package whole

import (
	"bytes"

	"github.com/adverb-rdma/adverb/verbs"
)

const (
	maxMessage = 9 << 10
	recvSize   = 10 << 10
)

// recvSlots are receive buffers. Each buffer is filled before its receive is posted, so that bytes that are
// written behind the end of a message show.
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

// take checks that slot i has a message and nothing else, unless a message may have been dropped that was in the
// slot before.
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
