package perftest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// tester is a run of one of the programs.
type tester struct {
	*params
	inv  *cli.Invocation
	kind *kind

	ctx    context.Context // ends with the user's patience, and with the peer
	cancel context.CancelCauseFunc

	dev      *verbs.Device
	opened   bool   // dev is ours to close
	agent    *agent // of -R and -z
	listener *rdmacm.ID
	talk     talk

	sgid     verbs.GIDEntry
	withGID  bool
	port     verbs.PortAttr
	pathMTU  verbs.MTU
	cycle    int // bytes that small messages go round in
	line     int // bytes between them
	stride   int // bytes of a QP's buffer to send from, and of that to receive in
	lanes    []lane
	pd       *verbs.PD
	cq       *verbs.CQ
	xrcd     *verbs.XRCD // of XRC
	sharedRQ *verbs.SRQ
	credits  *credits // or nil, where RNR NAKs do it

	meter meter
	out   results
}

// failure is a failure with the C program's line.
type failure struct {
	line  string
	cause error
}

func (e *failure) Error() string {
	if e.cause == nil {
		return e.line
	}
	return e.line + ": " + e.cause.Error()
}
func (e *failure) Unwrap() error { return e.cause }

func fail(cause error, format string, args ...any) error {
	return &failure{fmt.Sprintf(format, args...), cause}
}

func run(inv *cli.Invocation, k *kind) int {
	p, code, ok := parse(inv, k)
	if !ok {
		return code
	}
	t := &tester{params: p, inv: inv, kind: k, cycle: 4096, line: 64}
	t.ctx, t.cancel = context.WithCancelCause(inv.Ctx)
	defer t.cancel(nil)
	inv.Endless = p.endless
	if !p.cmExchange || p.device != "" {
		if t.dev = device.Open(inv, p.device); t.dev == nil {
			return cli.ExitError
		}
		t.opened = true
	}
	err := t.run()
	if cerr := t.close(); err == nil {
		err = cerr
	}
	return inv.Finish(err, t.report)
}

// report reports a failure and returns the exit status.
func (t *tester) report(err error) int {
	cause := err
	if e, ok := errors.AsType[*failure](err); ok {
		t.inv.Errorf(" %s\n", e.line)
		cause = e.cause
	}
	// A test that ends because its peer has gone fails in many ways.
	if gone := context.Cause(t.ctx); gone != nil && (cause == nil || errors.Is(cause, context.Canceled)) {
		cause = gone
	}
	return t.inv.Fail(cause, "")
}

func (t *tester) run() error {
	if t.dev != nil && t.xrc() {
		if err := t.checkXRC(); err != nil {
			return err
		}
	}
	if t.dev != nil && t.isIWARP() && !t.cmExchange {
		return fail(verbs.Errorf(verbs.ErrUnsupported, "%s speaks iWARP, whose QPs only the connection manager connects: give -R at both ends", t.dev.Name()),
			"Couldn't create IB resources")
	}
	if err := t.meet(); err != nil {
		return err
	}
	if err := t.agreeOn(); err != nil {
		return err
	}
	if err := t.connect(); err != nil {
		return err
	}
	if err := t.measure(); err != nil {
		return err
	}
	if err := t.end(); err != nil {
		return err
	}
	return t.out.verdict(t.params)
}

// meet finds the peer, and opens the exchange.
func (t *tester) meet() error {
	banner := func() {
		if t.classicOutput() && t.host == "" {
			t.inv.Printf("\n************************************\n* Waiting for client to connect... *\n************************************\n")
		}
	}
	t.talk.first = t.host != ""
	if t.cmExchange {
		return t.meetByCM(banner)
	}
	var conn net.Conn
	var err error
	if t.host != "" {
		conn, err = dialTCP(t.ctx, t.host, t.params.port, t.sourceIP)
	} else {
		var l net.Listener
		if l, err = listenTCP(t.ctx, t.params.port, t.sourceIP); err != nil {
			return err
		}
		banner()
		conn, err = acceptTCP(t.ctx, l)
	}
	if err != nil {
		return err
	}
	t.talk.pipe = newSocketPipe(t.ctx, conn, t.cancel)
	return nil
}

// meetByCM is meet over a connection of rdma_cm. The server goes on listening: the QPs of the test
// are connected at the same port.
func (t *tester) meetByCM(banner func()) error {
	src, dst, err := t.addresses(t.ctx)
	if err != nil {
		return err
	}
	t.agent = newAgent(t.ctx, t.dev, t.security)
	p := &cmPipe{ctx: t.ctx}
	t.talk.pipe, t.talk.encoding = p, binaryStruct
	param := &rdmacm.ConnParam{RetryCount: uint8(t.retryCount), RNRRetryCount: 7}
	if t.host != "" {
		p.end, _, err = t.agent.connect(rdmacm.PortSpaceTCP, src, dst, -1, 1, param, p.setup)
		if err != nil {
			return fail(err, "Unable to perform rdma_client function")
		}
	} else {
		if t.listener, err = t.agent.listen(rdmacm.PortSpaceTCP, src); err != nil {
			return fail(err, "Unable to perform rdma_server function")
		}
		banner()
		if p.end, err = t.agent.accept(rdmacm.PortSpaceTCP, param, p.setup); err != nil {
			return fail(err, "Unable to perform rdma_server function")
		}
	}
	p.end.lost = t.cancel
	if t.dev == nil {
		t.dev = p.end.id.Device()
		t.ibPort = p.end.id.Port()
	}
	return nil
}

// agreeOn exchanges the data that both ends need before they can make their buffers.
func (t *tester) agreeOn() (err error) {
	if t.port, err = t.dev.QueryPort(t.ibPort); err != nil {
		return fail(err, "Couldn't get context for the device")
	}
	mtu := t.port.ActiveMTU
	if m, ok := verbs.MTUFromBytes(t.mtu); ok {
		if mtu = min(m, mtu); m != mtu {
			t.inv.Printf("Requested mtu is higher than active mtu \nChanging to active mtu - %d\n", mtu)
		}
	}
	t.pathMTU = mtu
	if !t.dontTell {
		if err := t.talk.swapVersions(); err != nil {
			return err
		}
		for _, v := range []*int{&t.cycle, &t.line} {
			theirs, err := t.talk.swapInt(*v)
			if err != nil {
				return err
			}
			const sane = 1 << 24 // bytes; a page has fewer
			if theirs > sane {
				return fmt.Errorf("the peer's buffers go round in %d bytes: at most %d can be", theirs, sane)
			}
			*v = max(*v, theirs)
		}
		theirs, err := t.talk.swapMTU(int(mtu))
		if err != nil {
			return err
		}
		if m := verbs.MTU(theirs); m >= verbs.MTU256 && m < mtu {
			t.pathMTU = m
		}
	}
	if err := t.fitDatagrams(); err != nil {
		return err
	}
	return t.chooseAddress()
}

// fitDatagrams makes the messages of UD fit into a packet.
func (t *tester) fitDatagrams() error {
	limit := t.pathMTU.Bytes()
	if t.qpType != verbs.QPTypeUD || t.size <= limit {
		return nil
	}
	if t.sizeGiven && !t.all {
		return fail(nil, "Max message size in UD cannot be greater than MTU (%d)", limit)
	}
	if t.all {
		t.inv.Errorf(" Max msg size in UD is MTU %d\n Changing to this MTU\n", limit)
	}
	t.size = limit
	return nil
}

// isIWARP reports whether the device speaks iWARP.
func (t *tester) isIWARP() bool { return t.dev.Info().Transport == verbs.TransportIWARP }

// chooseAddress finds the GID of this end.
func (t *tester) chooseAddress() error {
	if !t.cmExchange {
		t.talk.encoding = textWithoutGID
	}
	if t.port.LinkLayer != verbs.LinkLayerEthernet && t.gidIndex < 0 {
		return nil
	}
	t.withGID = true
	if !t.cmExchange {
		t.talk.encoding = textWithGID
	}
	entries, err := t.dev.GIDs(t.ibPort)
	if err != nil {
		return fail(err, "Unable to set up my IB connection parameters")
	}
	index := t.gidIndex
	if index < 0 {
		if t.ipv6 {
			entries = onlyIPv6(entries)
		}
		var ok bool
		if t.isIWARP() {
			index = 0 // the port's only entry, which nobody uses
		} else if index, ok = device.FirstGID(entries); !ok {
			return fail(fmt.Errorf("%s has no RoCE v2 address of the wanted kind; give its interface one", t.dev.Name()),
				"Unable to set up my IB connection parameters")
		}
	}
	if t.sgid, err = t.dev.GID(t.ibPort, index); err != nil {
		return fail(err, "Unable to set up my IB connection parameters")
	}
	return nil
}

func onlyIPv6(entries []verbs.GIDEntry) (list []verbs.GIDEntry) {
	for _, e := range entries {
		if !e.GID.Addr().Is4() {
			list = append(list, e)
		}
	}
	return list
}

// end takes leave of the peer.
func (t *tester) end() error {
	if t.kind.verb == verbWrite && t.kind.latency {
		// The ends of write_lat part without a message. This end acknowledges the rest within that time.
		if t.cmExchange {
			t.pause(departure / 10)
		}
		return nil
	}
	if t.endless {
		return nil
	}
	return t.sync()
}

// pause waits for d, or until the test ends.
func (t *tester) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
	}
}

// close closes everything that was made, and returns the first failure.
func (t *tester) close() (first error) {
	note := func(err error, what string) {
		if err != nil && first == nil {
			first = fail(err, "Failed to destroy %s", what)
		}
	}
	if t.waitDestroy > 0 && t.ctx.Err() == nil {
		t.inv.Printf(" Waiting %d seconds before releasing resources...\n", t.waitDestroy/time.Second)
		t.pause(t.waitDestroy)
	}
	if p, ok := t.talk.pipe.(*socketPipe); ok {
		p.leave() // the peer's use of the TCP connection no longer matters
	}
	for i := range t.lanes {
		note(t.lanes[i].close(), "QP")
	}
	if p, ok := t.talk.pipe.(*cmPipe); ok {
		note(p.leave(), "the rdma_cm connection")
	}
	if t.sharedRQ != nil {
		note(t.sharedRQ.Close(), "SRQ")
	}
	if t.xrcd != nil {
		note(t.xrcd.Close(), "XRC domain")
	}
	if t.cq != nil {
		note(t.cq.Close(), "CQ")
	}
	closed := map[*verbs.MR]bool{}
	for i := range t.lanes {
		if mr := t.lanes[i].mr; mr != nil && !closed[mr] {
			closed[mr] = true
			note(mr.Close(), "MR")
		}
	}
	if t.credits != nil {
		note(t.credits.mr.Close(), "MR")
	}
	if t.pd != nil {
		note(t.pd.Close(), "PD")
	}
	if t.listener != nil {
		note(t.listener.Close(), "the listener")
	}
	if t.agent != nil {
		note(t.agent.close(), "the event channel")
	}
	if t.opened {
		note(t.dev.Close(), "context")
	}
	return first
}

// classicOutput reports whether the C program's tables are printed.
func (t *tester) classicOutput() bool { return t.output == "" && !t.json }

// wait waits for completions, as -e says.
func (t *tester) wait(ctx context.Context, wcs []verbs.WC) (int, error) {
	if t.events {
		return t.cq.Wait(ctx, wcs)
	}
	return device.Wait(ctx, t.cq, wcs)
}
