package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// The work request IDs of the pingpong programs. They are bits, for pingpong.pending.
const (
	pingRecvID = 1
	pingSendID = 2
)

// Attributes of the connection, as the C program sets them.
const (
	pingMinRNRTimer = 12
	pingTimeout     = 14
	pingRetry       = 7
	pingRDAtomic    = 1
)

const (
	pingFill = 0x7b // the byte that messages are filled with

	// spinPolls is how often an empty CQ is polled before the program sleeps until a completion
	// comes. Spinning on would only take the processor from a peer on the same machine.
	spinPolls = 2000
	// yieldPolls is after how many empty polls others may run: the device's own goroutine may be
	// the one that has the completion.
	yieldPolls = 16

	statusInterrupted = 130 // as of a program that SIGINT ended
)

// pingpong is a run of rc_pingpong.
type pingpong struct {
	inv   *invocation
	flags pingpongFlags

	dev *verbs.Device
	pd  *verbs.PD
	mr  *verbs.MR
	cq  *verbs.CQ
	qp  *verbs.QP

	sendFlags verbs.SendFlags
	sgidIndex int
	local     pingpongEnd

	send     []verbs.SendWR
	recv     []verbs.RecvWR
	wcs      [2]verbs.WC
	pending  uint64 // IDs that the current round still waits for
	routs    int    // receives posted
	rcnt     int    // messages received
	scnt     int    // messages sent
	canceled atomic.Bool
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

func runRCPingpong(inv *invocation) int {
	flags, code, ok := parsePingpong(inv)
	if !ok {
		return code
	}
	p := &pingpong{inv: inv, flags: flags}
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
	printEnd(p.inv.stdout, "local", p.local)
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

// setup makes the objects and takes the QP to INIT.
func (p *pingpong) setup() (err error) {
	f := &p.flags
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return pingErr(err, "Couldn't allocate PD")
	}
	switch {
	case f.iodp:
		return pingErr(nil, "The device doesn't support implicit ODP")
	case f.ts:
		return pingErr(nil, "The device isn't completion timestamp capable")
	case f.dm:
		return pingErr(nil, "Device doesn't support dm allocation")
	}
	access := verbs.AccessLocalWrite
	if f.odp {
		access |= verbs.AccessOnDemand
	}
	p.mr, err = p.pd.AllocMR(int(f.size), access)
	switch {
	case f.odp && errors.Is(err, verbs.ErrUnsupported):
		return pingErr(err, "The device isn't ODP capable or does not support RC send and receive with ODP")
	case err != nil:
		return pingErr(err, "Couldn't register MR")
	}
	buf := p.mr.Bytes()
	for i := range buf {
		buf[i] = pingFill
	}
	if p.cq, err = p.dev.CreateCQ(f.rxDepth + 1); err != nil {
		return pingErr(err, "Couldn't create CQ")
	}
	p.qp, err = p.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: p.cq, RecvCQ: p.cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: f.rxDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return pingErr(err, "Couldn't create QP")
	}
	p.sendFlags = verbs.SendSignaled
	if _, got, err := p.qp.Query(); err == nil && int64(got.Cap.MaxInlineData) >= f.size {
		p.sendFlags |= verbs.SendInline
	}
	if err := p.qp.Init(f.ibPort, 0); err != nil {
		return pingErr(err, "Failed to modify QP to INIT")
	}
	sges := []verbs.SGE{p.mr.SGE(0, int(f.size))}
	p.send = []verbs.SendWR{{ID: pingSendID, Op: verbs.OpSend, Flags: p.sendFlags, SGList: sges}}
	p.recv = []verbs.RecvWR{{ID: pingRecvID, SGList: sges}}
	return nil
}

// topUpReceives posts receives until rx-depth are.
func (p *pingpong) topUpReceives() error {
	for p.routs < p.flags.rxDepth {
		if _, err := p.qp.PostRecv(p.recv); err != nil {
			return pingErr(err, "Couldn't post receive (%d)", p.routs)
		}
		p.routs++
	}
	return nil
}

// chooseAddress fills p.local.
func (p *pingpong) chooseAddress() error {
	f := &p.flags
	port, err := p.dev.QueryPort(f.ibPort)
	if err != nil {
		return pingErr(err, "Couldn't get port info")
	}
	ethernet := port.LinkLayer == verbs.LinkLayerEthernet
	if !ethernet && port.LID == 0 {
		return pingErr(errors.New("the port has no LID: is a subnet manager running?"), "Couldn't get local LID")
	}
	index := f.gidIndex
	if index < 0 && ethernet {
		// The C program goes on without a GID, and fails later.
		entries, err := p.dev.GIDs(f.ibPort)
		if err != nil {
			return pingErr(err, "can't read sgid of index %d", f.gidIndex)
		}
		var ok bool
		if index, ok = firstGID(entries); !ok {
			return pingErr(fmt.Errorf("%s has no RoCE v2 address; give its interface an IP address", p.dev.Name()),
				"can't read sgid of index %d", f.gidIndex)
		}
	}
	p.local = pingpongEnd{LID: port.LID, QPN: p.qp.QPN(), PSN: verbs.PSN(rand.Uint32N(1 << 24))}
	if index < 0 {
		return nil
	}
	e, err := p.dev.GID(f.ibPort, index)
	if err != nil {
		return pingErr(err, "can't read sgid of index %d", index)
	}
	p.sgidIndex, p.local.GID = index, e.GID
	return nil
}

// exchange learns where the peer is, and connects to it. The line about the peer comes where the
// C programs have it: a server connects first. l is the server's.
func (p *pingpong) exchange(l net.Listener) (err error) {
	ctx, f := p.inv.ctx, &p.flags
	if l != nil {
		remote, err := serverExchange(ctx, l, p.local, p.connect)
		if err == nil {
			printEnd(p.inv.stdout, "remote", remote)
		}
		return err
	}
	_, err = clientExchange(ctx, f.host, f.port, p.local, func(remote pingpongEnd) error {
		printEnd(p.inv.stdout, "remote", remote)
		return p.connect(remote)
	})
	return err
}

var errNoPeerGID = errors.New("the peer has no GID, and Ethernet needs one: give the peer its -g (\"adverb gids\" or \"ibv_devinfo -v\" there lists them)")

// connect takes the QP to RTR and RTS.
func (p *pingpong) connect(remote pingpongEnd) error {
	if !remote.hasGID() {
		return pingErr(errNoPeerGID, "Failed to modify QP to RTR")
	}
	err := p.qp.Modify(&verbs.QPAttr{
		State: verbs.QPStateRTR,
		// The C program sets a hop limit of 1, but what counts there is the kernel's route.
		// The default of verbs reaches as far.
		AH:              verbs.AHAttr{DGID: remote.GID, SGIDIndex: p.sgidIndex, SL: uint8(p.flags.sl), Port: p.flags.ibPort},
		PathMTU:         p.flags.mtu,
		DestQPN:         remote.QPN,
		RQPSN:           remote.PSN,
		MaxDestRDAtomic: pingRDAtomic,
		MinRNRTimer:     pingMinRNRTimer,
	}, verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPN|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
	if err != nil {
		return pingErr(err, "Failed to modify QP to RTR")
	}
	err = p.qp.RTS(p.local.PSN, verbs.Retry{Timeout: pingTimeout, Count: pingRetry, RNRCount: pingRetry, MaxRDAtomic: pingRDAtomic})
	if err != nil {
		return pingErr(err, "Failed to modify QP to RTS")
	}
	return nil
}

// loop bounces messages: the client sends, and each end answers a message with one.
func (p *pingpong) loop() error {
	p.pending = pingRecvID
	if p.flags.host != "" {
		if p.flags.check {
			p.markPages()
		}
		if err := p.postSend(); err != nil {
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

func (p *pingpong) postSend() error {
	if _, err := p.qp.PostSend(p.send); err != nil {
		return pingErr(err, "Couldn't post send")
	}
	p.pending = pingRecvID | pingSendID
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
		n, err = p.cq.Poll(p.wcs[:])
	default:
		for i := range spinPolls {
			if n, err = p.cq.Poll(p.wcs[:]); n > 0 || err != nil {
				break
			}
			if i%yieldPolls == yieldPolls-1 {
				runtime.Gosched()
			}
		}
		if n == 0 && err == nil {
			n, err = p.cq.Wait(p.inv.ctx, p.wcs[:])
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
		return pingErr(wc.Err(), "Failed status %s (%d) for wr_id %d\nparse WC failed %d",
			wcStatusText(wc.Status), wc.Status, wc.ID, n)
	}
	switch wc.ID {
	case pingSendID:
		p.scnt++
	case pingRecvID:
		p.routs--
		if p.routs <= 1 {
			if err := p.topUpReceives(); err != nil {
				return err
			}
		}
		p.rcnt++
	default:
		return pingErr(nil, "Completion for unknown wr_id %d", wc.ID)
	}
	p.pending &^= wc.ID
	if p.pending == 0 && p.scnt < p.flags.iters {
		return p.postSend()
	}
	return nil
}

// markPages is the client's part of -c: it writes the number of each page modulo the size of a
// byte, and so 0, at the page's start.
func (p *pingpong) markPages() {
	buf := p.mr.Bytes()
	for i := 0; i < len(buf); i += os.Getpagesize() {
		buf[i] = 0
	}
}

// checkPages is the server's part of -c.
func (p *pingpong) checkPages() {
	buf, page := p.mr.Bytes(), os.Getpagesize()
	for i := 0; i < len(buf); i += page {
		if buf[i] != 0 {
			p.inv.printf("invalid data in page %d\n", i/page)
		}
	}
}

// close closes everything that was made, and returns the first failure.
func (p *pingpong) close() (first error) {
	note := func(err error, line string) {
		if err != nil && first == nil {
			first = pingErr(err, "%s", line)
		}
	}
	if p.qp != nil {
		note(p.qp.Close(), "Couldn't destroy QP")
	}
	if p.cq != nil {
		note(p.cq.Close(), "Couldn't destroy CQ")
	}
	if p.mr != nil {
		note(p.mr.Close(), "Couldn't deregister MR")
	}
	if p.pd != nil {
		note(p.pd.Close(), "Couldn't deallocate PD")
	}
	note(p.dev.Close(), "Couldn't release context")
	return first
}
