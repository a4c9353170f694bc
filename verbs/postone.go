package verbs

import "sync"

// PostOneSend posts one work request, whose SGList is sges if there are any (rdma_post_send and its
// like of librdmacm, for every operation):
//
//	err := qp.PostOneSend(verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled}, mr.SGE(0, n))
//
// It allocates nothing. The errors are those of [QP.PostSend], which posts many work requests at once
// for less: each post takes a lock and may take a system call.
func (qp *QP) PostOneSend(wr SendWR, sges ...SGE) error {
	o := ones.Get().(*one)
	defer o.done()
	w := &o.send[0]
	*w = wr
	if len(sges) > 0 {
		if len(wr.SGList) > 0 {
			return wrap("post send to", qp.name, invalidf("SGEs in SGList and as arguments: give them once"))
		}
		w.SGList = o.list(sges)
	}
	if err := qp.checkSend(w); err != nil {
		if _, perr := qp.p.PostSend(nil); perr != nil { // it is closed
			err = perr
		}
		return wrap("post send to", qp.name, err)
	}
	_, err := qp.p.PostSend(o.send[:])
	return wrap("post send to", qp.name, err)
}

// PostOneRecv posts one receive, for a message of as many bytes as the SGEs have (rdma_post_recv of
// librdmacm). It allocates nothing. The errors are those of [QP.PostRecv].
func (qp *QP) PostOneRecv(id uint64, sges ...SGE) error {
	if len(sges) > qp.cap.MaxRecvSGE {
		err := Errorf(ErrLimit, "%d SGEs: the QP was created for %d (max_recv_sge)", len(sges), qp.cap.MaxRecvSGE)
		if _, perr := qp.p.PostRecv(nil); perr != nil { // it is closed
			err = perr
		}
		return wrap("post receive to", qp.name, err)
	}
	return wrap("post receive to", qp.name, postOneRecv(qp.p, id, sges))
}

// PostOneRecv posts one receive, as [QP.PostOneRecv] does.
func (s *SRQ) PostOneRecv(id uint64, sges ...SGE) error {
	return wrap("post receive to", s.name, postOneRecv(s.p, id, sges))
}

func postOneRecv(to interface {
	PostRecv([]RecvWR) (int, error)
}, id uint64, sges []SGE) error {
	o := ones.Get().(*one)
	defer o.done()
	o.recv[0] = RecvWR{ID: id, SGList: o.list(sges)}
	_, err := to.PostRecv(o.recv[:])
	return err
}

// one is a list of one work request. Arguments to a provider's methods are allocated, so these lists are kept.
type one struct {
	send [1]SendWR
	recv [1]RecvWR
	sges []SGE
}

var ones = sync.Pool{New: func() any { return new(one) }}

// list copies sges, so that the caller's need not be allocated.
func (o *one) list(sges []SGE) []SGE {
	o.sges = append(o.sges[:0], sges...)
	return o.sges
}

func (o *one) done() {
	o.send[0], o.recv[0] = SendWR{}, RecvWR{} // they name objects of the program
	ones.Put(o)
}
