package pingpong

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

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
	ctx, stop := p.expectFirst()
	defer stop()
	p.ctx = ctx
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

// Until the first message an end waits for firstPatience, and for as long as the message takes at slowest bytes a
// second. The peer has sent it, or answers, as soon as it is connected. One that has come shows that the two
// understand each other; later ones may take any time.
var firstPatience = 10 * time.Second // tests have less

const slowest = 1 << 20

// expectFirst returns a context that ends if no message comes. p.first ends the wait for it.
func (p *pingpong) expectFirst() (ctx context.Context, stop func()) {
	patience := firstPatience + time.Duration(p.flags.size/slowest)*time.Second
	ctx, cancel := context.WithCancelCause(p.inv.Ctx)
	p.first = time.AfterFunc(patience, func() {
		cancel(fmt.Errorf("wait for the peer's first message: none has come for %v: is the peer %s too, with the same flags? "+
			"if so it was lost on the way, so start both again", patience, p.inv.Cmd.Name))
	})
	return ctx, func() {
		p.first.Stop()
		cancel(nil)
	}
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
		case <-p.ctx.Done():
			return 0, fail(context.Cause(p.ctx), "Failed to get cq_event")
		}
		if err := p.cq.Notify(false); err != nil {
			return 0, fail(err, "Couldn't request CQ notification")
		}
		n, err = p.cq.Poll(p.wcs)
	} else {
		if n, err = device.Wait(p.ctx, p.cq, p.wcs); n == 0 && p.ctx.Err() != nil {
			err = context.Cause(p.ctx)
		}
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
		if p.received++; p.received == 1 {
			p.first.Stop()
		}
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
