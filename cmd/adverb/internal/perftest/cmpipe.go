package perftest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// pipeReceives is how many messages of the peer may wait. The C programs have one receive posted.
const pipeReceives = 8

// cmPipe is a connection of rdma_cm: each message of the exchange is a SEND.
type cmPipe struct {
	ctx    context.Context
	end    *cmEnd
	pd     *verbs.PD
	qp     *verbs.QP
	mr     *verbs.MR // a slot to send from, and one for each receive
	sendCQ *verbs.CQ
	recvCQ *verbs.CQ
	wcs    [1]verbs.WC
}

// setup gives the ID of the connection its QP, and posts the receives.
func (p *cmPipe) setup(id *rdmacm.ID) (err error) {
	dev := id.Device()
	if p.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if p.mr, err = p.pd.AllocMR((1+pipeReceives)*binarySize, verbs.AccessLocalWrite); err != nil {
		return err
	}
	if p.sendCQ, err = dev.CreateCQ(1); err != nil {
		return err
	}
	if p.recvCQ, err = dev.CreateCQ(pipeReceives); err != nil {
		return err
	}
	err = id.CreateQP(p.pd, verbs.QPInitAttr{SendCQ: p.sendCQ, RecvCQ: p.recvCQ,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: pipeReceives, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return err
	}
	p.qp = id.QP()
	for i := range pipeReceives {
		if err := p.postReceive(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (p *cmPipe) postReceive(slot uint64) error {
	_, err := p.qp.PostRecv([]verbs.RecvWR{{ID: slot, SGList: []verbs.SGE{p.mr.SGE(int(1+slot)*binarySize, binarySize)}}})
	return err
}

func (p *cmPipe) wait(cq *verbs.CQ) (*verbs.WC, error) {
	if _, err := device.Wait(p.ctx, cq, p.wcs[:]); err != nil {
		return nil, err
	}
	wc := &p.wcs[0]
	if wc.Status == verbs.WCFlushErr {
		return nil, errPeerGone
	}
	return wc, wc.Err()
}

func (p *cmPipe) send(b []byte) error {
	n := copy(p.mr.Bytes()[:binarySize], b)
	_, err := p.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, n)}}})
	if err == nil {
		_, err = p.wait(p.sendCQ)
	}
	return err
}

func (p *cmPipe) receive(b []byte) error {
	wc, err := p.wait(p.recvCQ)
	if err != nil {
		return err
	}
	if int(wc.ByteLen) != len(b) {
		return fmt.Errorf("the peer has sent %d bytes where %d belong: is it the same program, with the same flags?", wc.ByteLen, len(b))
	}
	slot := wc.ID
	copy(b, p.mr.Bytes()[int(1+slot)*binarySize:])
	return p.postReceive(slot)
}

// leave ends the connection when the peer has. The client of the C program is the first to go.
func (p *cmPipe) leave() error {
	if p.end != nil {
		t := time.NewTimer(departure)
		defer t.Stop()
		p.end.id.Disconnect()
		select {
		case <-p.end.gone:
		case <-t.C:
		case <-p.ctx.Done():
		}
	}
	return p.close()
}

// close frees the connection's resources.
func (p *cmPipe) close() (err error) {
	if p.end != nil {
		err = p.end.id.Close()
	}
	for _, cq := range []*verbs.CQ{p.sendCQ, p.recvCQ} {
		if cq != nil {
			err = errors.Join(err, cq.Close())
		}
	}
	if p.mr != nil {
		err = errors.Join(err, p.mr.Close())
	}
	if p.pd != nil {
		err = errors.Join(err, p.pd.Close())
	}
	return err
}
