package pingpong

import (
	"os"
	"slices"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// The work request IDs of the pingpong programs. Each is one bit of pairQP.pending.
const (
	recvID = 1
	sendID = 2
)

// loop bounces messages: the client sends, and each end answers a message with one.
func (p *pingpong) loop() error {
	client := p.flags.host != ""
	if client && p.flags.check {
		p.markPages()
	}
	for i := range p.qps {
		p.qps[i].pending = recvID
		if !client {
			continue
		}
		if err := p.qps[i].postSend(); err != nil {
			return err
		}
	}
	for p.received < p.flags.iters || p.sent < p.flags.iters {
		n, err := p.poll()
		if err != nil {
			return err
		}
		for i := range n {
			if err := p.completed(&p.wcs[i], n); err != nil {
				return err
			}
		}
	}
	return nil
}

// topUpReceives posts receives until --rx-depth of them are posted.
func (p *pingpong) topUpReceives() error {
	for p.posted < p.flags.rxDepth {
		if _, err := p.receiver.PostRecv(p.recv); err != nil {
			return fail(err, "Couldn't post receive (%d)", p.posted)
		}
		p.posted++
	}
	return nil
}

func (qp *pairQP) postSend() error {
	if _, err := qp.PostSend(qp.send); err != nil {
		return fail(err, "Couldn't post send")
	}
	qp.pending = recvID | sendID
	return nil
}

// poll waits for completions: for an event with -e, and otherwise by polling first. With -e there
// may be none.
func (p *pingpong) poll() (n int, err error) {
	if p.flags.events {
		select {
		case <-p.cq.Events():
		case <-p.inv.Ctx.Done():
			return 0, fail(p.inv.Ctx.Err(), "Failed to get cq_event")
		}
		if err := p.cq.Notify(false); err != nil {
			return 0, fail(err, "Couldn't request CQ notification")
		}
		n, err = p.cq.Poll(p.wcs)
	} else {
		n, err = device.Wait(p.inv.Ctx, p.cq, p.wcs)
	}
	if err != nil && n == 0 {
		return 0, fail(err, "poll CQ failed %d", -1)
	}
	return n, nil
}

// completed accounts for one of the n completions of a poll.
func (p *pingpong) completed(wc *verbs.WC, n int) error {
	if wc.Status != verbs.WCSuccess {
		const line = "Failed status %s (%d) for wr_id %d"
		if p.kind.parseLine {
			return fail(wc.Err(), line+"\nparse WC failed %d", clib.WCStatus(wc.Status), wc.Status, wc.ID, n)
		}
		return fail(wc.Err(), line, clib.WCStatus(wc.Status), wc.Status, wc.ID)
	}
	i := slices.IndexFunc(p.qps, func(qp pairQP) bool { return qp.QPN() == wc.QPN })
	if i < 0 {
		return fail(nil, "Couldn't find QPN %06x", uint32(wc.QPN))
	}
	qp := &p.qps[i]
	switch wc.ID {
	case sendID:
		p.sent++
	case recvID:
		p.posted--
		if p.posted <= len(p.qps) {
			if err := p.topUpReceives(); err != nil {
				return err
			}
		}
		p.received++
	default:
		return fail(nil, "Completion for unknown wr_id %d", wc.ID)
	}
	qp.pending &^= wc.ID
	if qp.pending == 0 && p.sent < p.flags.iters {
		return qp.postSend()
	}
	return nil
}

// markPages is the client's part of -c. As in the C program, it writes the page's number modulo the
// size of a char at the start of each page, which is always 0.
func (p *pingpong) markPages() {
	buf := p.message()
	for i := 0; i < len(buf); i += os.Getpagesize() {
		buf[i] = 0
	}
}

// checkPages is the server's part of -c.
func (p *pingpong) checkPages() {
	buf, page := p.message(), os.Getpagesize()
	for i := 0; i < len(buf); i += page {
		if buf[i] != 0 {
			p.inv.Printf("invalid data in page %d\n", i/page)
		}
	}
}

// message returns the part of the buffer that the messages are in.
func (p *pingpong) message() []byte { return p.mr.Bytes()[p.kind.grh:] }
