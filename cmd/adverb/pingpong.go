package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

const statusInterrupted = 130 // as of a program that SIGINT ended

// pingpong is a run of one of the pingpong programs.
type pingpong struct {
	inv   *invocation
	kind  *pingpongKind
	flags pingpongFlags

	dev *verbs.Device
	pd  *verbs.PD
	mr  *verbs.MR
	cq  *verbs.CQ
	srq *verbs.SRQ // of srq_pingpong
	ah  *verbs.AH  // of ud_pingpong
	qps []pingQP

	sgidIndex int
	receiver  interface { // the SRQ or the QP
		PostRecv(wrs []verbs.RecvWR) (int, error)
	}
	recv     []verbs.RecvWR
	wcs      []verbs.WC
	routs    int // receives posted
	rcnt     int // messages received
	scnt     int // messages sent
	canceled atomic.Bool
}

// pingQP is a QP of the run.
type pingQP struct {
	*verbs.QP
	local   pingpongEnd
	send    []verbs.SendWR
	pending uint64 // IDs that the current round still waits for
}

// pingError is a failure with its classic line. The line may be empty.
type pingError struct {
	line  string
	cause error
}

func (e *pingError) Error() string { return e.line }

func pingErr(cause error, format string, args ...any) error {
	return &pingError{fmt.Sprintf(format, args...), cause}
}

func runPingpong(inv *invocation, k *pingpongKind) int {
	flags, code, ok := parsePingpong(inv, k)
	if !ok {
		return code
	}
	p := &pingpong{inv: inv, kind: k, flags: flags}
	defer context.AfterFunc(inv.ctx, func() { p.canceled.Store(true) })()

	if p.dev = inv.openDevice(flags.device); p.dev == nil {
		return exitError
	}
	err := p.run()
	// After a failure the objects are closed all the same, but only the first error counts.
	if cerr := p.close(); err == nil {
		err = cerr
	}
	return inv.pingStatus(err)
}

// pingStatus reports err and returns the exit status.
func (inv *invocation) pingStatus(err error) int {
	if err == nil {
		return exitOK
	}
	if inv.ctx.Err() != nil {
		inv.explain(errors.New("interrupted"))
		return statusInterrupted
	}
	if e, ok := errors.AsType[*exchangeError](err); ok {
		err = &pingError{e.line, e.cause}
	}
	e, ok := errors.AsType[*pingError](err)
	if !ok {
		return inv.fail(err, "")
	}
	if inner, ok := errors.AsType[*pingError](e.cause); ok { // "Failed to modify…" comes first
		inv.errorf("%s\n", inner.line)
		e.cause = inner.cause
	}
	return inv.fail(e.cause, "%s\n", e.line)
}

func (p *pingpong) run() error {
	if err := p.setup(); err != nil {
		return err
	}
	if err := p.topUpReceives(); err != nil {
		return err
	}
	if p.flags.events {
		if err := p.cq.Notify(false); err != nil {
			return pingErr(err, "Couldn't request CQ notification")
		}
	}
	if err := p.chooseAddress(); err != nil {
		return err
	}
	// The C program prints first. Whoever waits for the line may count on the listener here.
	var l net.Listener
	var listenErr error
	if p.flags.host == "" {
		l, listenErr = listenPingpong(p.inv.ctx, p.flags.port)
	}
	for i := range p.qps {
		printEnd(p.inv.stdout, p.kind.localFormat, p.qps[i].local)
	}
	if listenErr != nil {
		return listenErr
	}
	if err := p.exchange(l); err != nil {
		return err
	}
	start := time.Now()
	if err := p.loop(); err != nil {
		return err
	}
	printResult(p.inv.stdout, p.flags.size, p.flags.iters, time.Since(start))
	if p.flags.check && p.flags.host == "" {
		p.checkPages()
	}
	return nil
}
