// Package pingpong has the pingpong programs: two ends that bounce messages as fast as they can, by
// RC, UC or UD, or by RC with a shared receive queue; and several over XRC.
package pingpong

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/verbs"
)

// pingpong is a run of one of the pingpong programs.
type pingpong struct {
	inv   *cli.Invocation
	kind  *kind
	flags flags

	dev *verbs.Device
	pd  *verbs.PD
	mr  *verbs.MR
	cq  *verbs.CQ
	srq *verbs.SRQ // of srq_pingpong
	ah  *verbs.AH  // of ud_pingpong
	qps []pairQP

	sgidIndex int
	receiver  interface { // the SRQ or the QP
		PostRecv(wrs []verbs.RecvWR) (int, error)
	}
	recv     []verbs.RecvWR
	wcs      []verbs.WC
	posted   int             // receives that are posted
	received int             // messages
	ctx      context.Context // of the loop
	first    *time.Timer     // ends it, unless a message comes
	sent     int             // messages
}

// pairQP is a QP of the run.
type pairQP struct {
	*verbs.QP
	ownEnd  exchange.End
	send    []verbs.SendWR
	pending uint64 // IDs of the completions that the current round still lacks
}

// failure is a failure with the C program's line, which may be empty.
type failure struct {
	line  string
	cause error
}

func (e *failure) Error() string { return e.line }
func (e *failure) Unwrap() error { return e.cause }

func fail(cause error, format string, args ...any) error {
	return &failure{fmt.Sprintf(format, args...), cause}
}

func run(inv *cli.Invocation, k *kind) int {
	flags, code, ok := parse(inv, k)
	if !ok {
		return code
	}
	p := &pingpong{inv: inv, kind: k, flags: flags}
	if p.dev = device.Open(inv, flags.device); p.dev == nil {
		return cli.ExitError
	}
	err := p.run()
	// The objects are closed after a failure too, but only the first error counts.
	if cerr := p.close(); err == nil {
		err = cerr
	}
	return inv.Finish(err, func(err error) int { return reportFailure(inv, err) })
}

// reportFailure reports err and returns the exit status.
func reportFailure(inv *cli.Invocation, err error) int {
	if e, ok := errors.AsType[*exchange.Error](err); ok {
		err = &failure{e.Line, e.Cause}
	}
	e, ok := errors.AsType[*failure](err)
	if !ok {
		return inv.Fail(err, "")
	}
	if inner, ok := errors.AsType[*failure](e.cause); ok { // "Failed to modify…" comes first
		inv.Errorf("%s\n", inner.line)
		e.cause = inner.cause
	}
	return inv.Fail(e.cause, "%s\n", e.line)
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
			return fail(err, "Couldn't request CQ notification")
		}
	}
	if err := p.chooseAddress(); err != nil {
		return err
	}
	// The C program prints the line before it listens. Here a script that has seen the line may
	// count on the listener.
	var l net.Listener
	var listenErr error
	if p.flags.host == "" {
		l, listenErr = exchange.Listen(p.inv.Ctx, p.flags.port)
	}
	for i := range p.qps {
		printEnd(p.inv.Stdout, p.kind.localFormat, p.qps[i].ownEnd)
	}
	if listenErr != nil {
		return listenErr
	}
	if err := p.meet(l); err != nil {
		return err
	}
	start := time.Now()
	if err := p.loop(); err != nil {
		return err
	}
	printResult(p.inv.Stdout, p.flags.size, p.flags.iters, time.Since(start))
	if p.flags.check && p.flags.host == "" {
		p.checkPages()
	}
	return nil
}
