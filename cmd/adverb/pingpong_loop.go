package main

import (
	"os"
	"runtime"
	"slices"

	"github.com/adverb-rdma/adverb/verbs"
)

// The work request IDs of the pingpong programs. They are bits, for pingQP.pending.
const (
	pingRecvID = 1
	pingSendID = 2
)

const (
	// spinPolls is how often an empty CQ is polled before the program sleeps until a completion
	// comes. Spinning on would only take the processor from a peer on the same machine.
	spinPolls = 2000
	// yieldPolls is after how many empty polls others may run: the device's own goroutine may be
	// the one that has the completion.
	yieldPolls = 16
)

// loop bounces messages: the client sends, and each end answers a message with one.
func (p *pingpong) loop() error {
	client := p.flags.host != ""
	if client && p.flags.check {
		p.markPages()
	}
	for i := range p.qps {
		p.qps[i].pending = pingRecvID
		if !client {
			continue
		}
		if err := p.qps[i].postSend(); err != nil {
			return err
		}
	}
	for p.rcnt < p.flags.iters || p.scnt < p.flags.iters {
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

// topUpReceives posts receives until rx-depth are.
func (p *pingpong) topUpReceives() error {
	for p.routs < p.flags.rxDepth {
		if _, err := p.receiver.PostRecv(p.recv); err != nil {
			return pingErr(err, "Couldn't post receive (%d)", p.routs)
		}
		p.routs++
	}
	return nil
}

func (qp *pingQP) postSend() error {
	if _, err := qp.PostSend(qp.send); err != nil {
		return pingErr(err, "Couldn't post send")
	}
	qp.pending = pingRecvID | pingSendID
	return nil
}

// poll waits for completions, as -e or its absence says. With -e there may be none.
func (p *pingpong) poll() (n int, err error) {
	if p.canceled.Load() {
		return 0, p.inv.ctx.Err()
	}
	switch {
	case p.flags.events:
		select {
		case <-p.cq.Events():
		case <-p.inv.ctx.Done():
			return 0, pingErr(p.inv.ctx.Err(), "Failed to get cq_event")
		}
		if err := p.cq.Notify(false); err != nil {
			return 0, pingErr(err, "Couldn't request CQ notification")
		}
		n, err = p.cq.Poll(p.wcs)
	default:
		for i := range spinPolls {
			if n, err = p.cq.Poll(p.wcs); n > 0 || err != nil {
				break
			}
			if i%yieldPolls == yieldPolls-1 {
				runtime.Gosched()
			}
		}
		if n == 0 && err == nil {
			n, err = p.cq.Wait(p.inv.ctx, p.wcs)
		}
	}
	if err != nil && n == 0 {
		return 0, pingErr(err, "poll CQ failed %d", -1)
	}
	return n, nil
}

// completed accounts for one of the n completions of a poll.
func (p *pingpong) completed(wc *verbs.WC, n int) error {
	if wc.Status != verbs.WCSuccess {
		const line = "Failed status %s (%d) for wr_id %d"
		if p.kind.parseLine {
			return pingErr(wc.Err(), line+"\nparse WC failed %d", wcStatusText(wc.Status), wc.Status, wc.ID, n)
		}
		return pingErr(wc.Err(), line, wcStatusText(wc.Status), wc.Status, wc.ID)
	}
	i := slices.IndexFunc(p.qps, func(qp pingQP) bool { return qp.QPN() == wc.QPN })
	if i < 0 {
		return pingErr(nil, "Couldn't find QPN %06x", uint32(wc.QPN))
	}
	qp := &p.qps[i]
	switch wc.ID {
	case pingSendID:
		p.scnt++
	case pingRecvID:
		p.routs--
		if p.routs <= len(p.qps) {
			if err := p.topUpReceives(); err != nil {
				return err
			}
		}
		p.rcnt++
	default:
		return pingErr(nil, "Completion for unknown wr_id %d", wc.ID)
	}
	qp.pending &^= wc.ID
	if qp.pending == 0 && p.scnt < p.flags.iters {
		return qp.postSend()
	}
	return nil
}

// markPages is the client's part of -c: it writes the number of each page modulo the size of a
// byte, and so 0, at the page's start.
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
			p.inv.printf("invalid data in page %d\n", i/page)
		}
	}
}

// message is the part of the buffer that the messages are in.
func (p *pingpong) message() []byte { return p.mr.Bytes()[p.kind.grh:] }
