package pingpong

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/adverb-rdma/adverb/verbs"
)

// setup makes the objects and takes the QPs to INIT.
func (p *pingpong) setup() (err error) {
	f := &p.flags
	if p.kind.qpType == verbs.QPTypeUD {
		if err := p.checkFits(); err != nil {
			return err
		}
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return fail(err, "Couldn't allocate PD")
	}
	switch {
	case f.iodp:
		return fail(nil, "The device doesn't support implicit ODP")
	case f.ts:
		return fail(nil, "The device isn't completion timestamp capable")
	case f.dm:
		return fail(nil, "Device doesn't support dm allocation")
	}
	if err := p.register(); err != nil {
		return err
	}
	if p.cq, err = p.dev.CreateCQ(f.rxDepth + f.numQP); err != nil {
		return fail(err, "Couldn't create CQ")
	}
	p.wcs = make([]verbs.WC, 2)
	if p.kind.srq {
		if p.srq, err = p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: f.rxDepth, MaxSGE: 1}); err != nil {
			return fail(err, "Couldn't create SRQ")
		}
		p.receiver, p.wcs = p.srq, make([]verbs.WC, f.rxDepth+f.numQP)
	}
	for range f.numQP {
		if err := p.createQP(); err != nil {
			return err
		}
	}
	for i := range p.qps {
		if err := p.initQP(&p.qps[i]); err != nil {
			return fail(err, "Failed to modify QP%s to INIT", p.qpIndex(i))
		}
	}
	return nil
}

// checkFits refuses messages that are too large for a datagram.
func (p *pingpong) checkFits() error {
	port, err := p.dev.QueryPort(p.flags.ibPort)
	if err != nil {
		return fail(err, "Unable to query port info for port %d", p.flags.ibPort)
	}
	if mtu := port.ActiveMTU.Bytes(); p.flags.size > int64(mtu) {
		return fail(nil, "Requested size larger than port MTU (%d)", mtu)
	}
	return nil
}

// register makes the buffer that all messages share, outgoing and incoming.
func (p *pingpong) register() (err error) {
	access := verbs.AccessLocalWrite
	if p.flags.odp {
		access |= verbs.AccessOnDemand
	}
	grh, size := p.kind.grh, int(p.flags.size)
	p.mr, err = p.pd.AllocMR(grh+size, access)
	switch {
	case p.flags.odp && errors.Is(err, verbs.ErrUnsupported):
		return fail(err, "%s", p.kind.onDemandLine)
	case err != nil:
		return fail(err, "Couldn't register MR")
	}
	copy(p.mr.Bytes(), bytes.Repeat([]byte{p.kind.fill}, p.mr.Len()))
	p.recv = []verbs.RecvWR{{ID: recvID, SGList: []verbs.SGE{p.mr.SGE(0, grh+size)}}}
	return nil
}

// qpIndex returns the text behind "QP" in the error lines of a program with several QPs.
func (p *pingpong) qpIndex(i int) string {
	if p.kind.srq {
		return fmt.Sprintf("[%d]", i)
	}
	return ""
}

func (p *pingpong) createQP() error {
	f := &p.flags
	qp, err := p.pd.CreateQP(verbs.QPInitAttr{
		Type: p.kind.qpType, SendCQ: p.cq, RecvCQ: p.cq, SRQ: p.srq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: f.rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return fail(err, "Couldn't create QP%s", p.qpIndex(len(p.qps)))
	}
	if p.srq == nil {
		p.receiver = qp
	}
	flags := verbs.SendSignaled
	if _, got, err := qp.Query(); err == nil && int64(got.Cap.MaxInlineData) >= f.size {
		flags |= verbs.SendInline
	}
	p.qps = append(p.qps, pairQP{QP: qp, send: []verbs.SendWR{{
		ID: sendID, Op: verbs.OpSend, Flags: flags, SGList: []verbs.SGE{p.mr.SGE(p.kind.grh, int(f.size))},
	}}})
	return nil
}

func (p *pingpong) initQP(qp *pairQP) error {
	if p.kind.qpType != verbs.QPTypeUD {
		return qp.Init(p.flags.ibPort, 0)
	}
	return qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: p.flags.ibPort, QKey: qkey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey)
}

// close closes everything that was made, and returns the first failure.
func (p *pingpong) close() (first error) {
	note := func(err error, format string, args ...any) {
		if err != nil && first == nil {
			first = fail(err, format, args...)
		}
	}
	for i := range p.qps {
		note(p.qps[i].Close(), "Couldn't destroy QP%s", p.qpIndex(i))
	}
	if p.srq != nil {
		note(p.srq.Close(), "Couldn't destroy SRQ")
	}
	if p.cq != nil {
		note(p.cq.Close(), "Couldn't destroy CQ")
	}
	if p.mr != nil {
		note(p.mr.Close(), "Couldn't deregister MR")
	}
	if p.ah != nil {
		note(p.ah.Close(), "Couldn't destroy AH")
	}
	if p.pd != nil {
		note(p.pd.Close(), "Couldn't deallocate PD")
	}
	note(p.dev.Close(), "Couldn't release context")
	return first
}
