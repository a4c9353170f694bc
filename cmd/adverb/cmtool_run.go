package main

import (
	"context"
	"errors"
	"runtime"
	"syscall"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// cmRun is a run of cmatose, udaddy or mckey.
type cmRun struct {
	inv   *invocation
	prog  string // "cmatose", which starts many lines whatever the program is called as
	space rdmacm.PortSpace
	count int // messages
	size  int // bytes

	newChannel func() *rdmacm.EventChannel
	ch         *rdmacm.EventChannel
	pending    []rdmacm.Event // fetched and not handled yet
	surplus    error          // the failure of having refused a request beyond -c

	nodes           []cmNode
	connectsLeft    int
	disconnectsLeft int
	wcs             [8]verbs.WC
}

// cmNode is a connection.
type cmNode struct {
	id             *rdmacm.ID
	pd             *verbs.PD
	sendCQ, recvCQ *verbs.CQ // the same one for datagrams
	mr             *verbs.MR // all messages, out and in
	connected      bool

	// Of datagrams.
	ah         *verbs.AH
	remoteQPN  verbs.QPN
	remoteQKey verbs.QKey
}

// main makes the event channel and, for a client, the IDs, and runs body. It returns the exit
// status. The lines are in the classic order: objects go after "test complete".
func (r *cmRun) main(device string, connections int, makeIDs bool, body func() error) int {
	newChannel, done, ok := r.inv.cmOpen(device)
	if !ok {
		return exitError
	}
	defer done()
	r.newChannel, r.ch = newChannel, newChannel()
	if err := r.makeNodes(connections, makeIDs); err != nil {
		r.close()
		return exitError
	}
	err := body()
	if r.inv.ctx.Err() != nil {
		r.close()
		r.inv.explain(errors.New("interrupted"))
		return statusInterrupted
	}
	r.inv.printf("test complete\n")
	r.close()
	status := 0
	if err != nil {
		status = cmStatusFailed
		if f, ok := errors.AsType[cmFailed](err); ok {
			status = int(f)
		}
	}
	r.inv.printf("return status %d\n", status)
	return cmExit(status)
}

func (r *cmRun) makeNodes(connections int, makeIDs bool) error {
	if connections < 0 || connections > maxCMConnections {
		return r.complain(cmStatusNoMemory, nil, "%s: unable to allocate memory for test nodes", r.prog)
	}
	if r.size == 0 {
		r.count = 0
	}
	r.nodes = make([]cmNode, connections)
	r.connectsLeft = connections
	for i := 0; i < connections && makeIDs; i++ {
		id, err := rdmacm.NewID(r.ch, r.space)
		if err != nil {
			r.inv.explain(err)
			return cmFailed(cmStatusFailed)
		}
		id.Context = &r.nodes[i]
		r.nodes[i].id = id
	}
	return nil
}

func (r *cmRun) close() {
	for i := range r.nodes {
		r.inv.explain(r.nodes[i].close())
	}
	for _, ev := range r.pending { // requests that nobody has answered
		if ev.Type == rdmacm.EventConnectRequest {
			r.inv.explain(ev.ID.Close())
		}
	}
	r.inv.explain(r.ch.Close())
}

// close closes everything that was made, and returns the first failure.
func (n *cmNode) close() error {
	if n.id == nil {
		return nil
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	if n.ah != nil {
		note(n.ah.Close())
	}
	if n.id.QP() != nil {
		note(n.id.DestroyQP())
	}
	if n.sendCQ != nil {
		note(n.sendCQ.Close())
	}
	if n.recvCQ != nil && n.recvCQ != n.sendCQ {
		note(n.recvCQ.Close())
	}
	if n.mr != nil {
		note(n.mr.Close())
	}
	if n.pd != nil {
		note(n.pd.Close())
	}
	note(n.id.Close())
	return errors.Join(errs...)
}

// perror reports a failed call: "cmatose: failure connecting: Connection refused".
func (r *cmRun) perror(err error, what string) error {
	return r.inv.cmPerror(r.prog+": "+what, err)
}

// complain reports a failure by a line on stdout.
func (r *cmRun) complain(status int, cause error, format string, args ...any) error {
	return r.inv.cmComplain(status, cause, format, args...)
}

// lookupFailed reports an address that is not to be had.
func (r *cmRun) lookupFailed(err error) error {
	if e, ok := errors.AsType[*cmLookupError](err); ok {
		return r.complain(e.code, err, "rdma_getaddrinfo error: %s", e.text())
	}
	r.inv.explain(err)
	return cmFailed(cmStatusFailed)
}

// listen makes a server's listening ID. The C programs print their first line before they do
// anything. Whoever waits for it may count on the listener here.
func (r *cmRun) listen(f *cmFlags) (*rdmacm.ID, error) {
	l, report := r.tryListen(f)
	r.inv.printf("%s: starting server\n", r.prog)
	if report != nil {
		if l != nil {
			defer func() { r.inv.explain(l.Close()) }()
		}
		return nil, report()
	}
	return l, nil
}

// tryListen returns the ID, and what reports the failure if there is one.
func (r *cmRun) tryListen(f *cmFlags) (l *rdmacm.ID, report func() error) {
	failed := func(err error, what string) (*rdmacm.ID, func() error) {
		return l, func() error { return r.perror(err, what) }
	}
	l, err := rdmacm.NewID(r.ch, r.space)
	if err != nil {
		return failed(err, "listen request failed")
	}
	addr, _, err := f.addresses(r.inv.ctx)
	if err != nil {
		return l, func() error { return r.lookupFailed(err) }
	}
	if err := l.BindAddr(addr); err != nil {
		return failed(err, "bind address failed")
	}
	if err := l.Listen(0); err != nil {
		return failed(err, "failure trying to listen")
	}
	return l, nil
}

// setup gives a node with a device its PD, CQs, QP and buffer. extra is what the buffer has in
// front of the messages that come.
func (r *cmRun) setup(n *cmNode, extra int) (err error) {
	dev, datagrams := n.id.Device(), r.space == rdmacm.PortSpaceUDP
	if n.pd, err = dev.AllocPD(); err != nil {
		return r.complain(cmStatusNoMemory, err, "%s: unable to allocate PD", r.prog)
	}
	depth := r.count
	if depth == 0 {
		depth = 1
	}
	if datagrams {
		n.recvCQ, err = dev.CreateCQ(2 * depth)
		n.sendCQ = n.recvCQ
	} else if n.sendCQ, err = dev.CreateCQ(depth); err == nil {
		n.recvCQ, err = dev.CreateCQ(depth)
	}
	if err != nil {
		return r.complain(cmStatusNoMemory, err, "%s: unable to create CQ", r.prog)
	}
	attr := verbs.QPInitAttr{SendCQ: n.sendCQ, RecvCQ: n.recvCQ, SignalAll: !datagrams,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if err := n.id.CreateQP(n.pd, attr); err != nil {
		return r.perror(err, "unable to create QP")
	}
	if r.count == 0 {
		return nil
	}
	if r.size < 0 {
		r.inv.printf("failed message allocation\n")
	} else if n.mr, err = n.pd.AllocMR(r.size+extra, verbs.AccessLocalWrite); err != nil {
		r.inv.printf("failed to reg MR\n")
	}
	if n.mr == nil {
		return r.complain(cmStatusFailed, err, "%s: failed to create messages: %d", r.prog, cmStatusFailed)
	}
	return nil
}

// fits refuses messages that no datagram holds.
func (r *cmRun) fits(n *cmNode) error {
	port, err := n.id.Device().QueryPort(n.id.Port())
	if err != nil {
		r.inv.explain(err)
		return cmFailed(cmStatusFailed)
	}
	if mtu := port.ActiveMTU.Bytes(); r.count != 0 && r.size > mtu {
		return r.complain(cmStatusInvalid, nil, "%s: message_size %d is larger than active mtu %d", r.prog, r.size, mtu)
	}
	return nil
}

// postRecvs posts a receive for each message.
func (r *cmRun) postRecvs(n *cmNode) error {
	if r.count == 0 {
		return nil
	}
	wr := []verbs.RecvWR{{SGList: []verbs.SGE{n.mr.SGE(0, n.mr.Len())}}}
	for range r.count {
		if _, err := n.id.QP().PostRecv(wr); err != nil {
			return r.complain(cmPostStatus(err), err, "failed to post receives: %d", cmPostStatus(err))
		}
	}
	return nil
}

// postSends posts all messages of a node. The last one has the flags last as well.
func (r *cmRun) postSends(n *cmNode, flags, last verbs.SendFlags) error {
	if !n.connected || r.count == 0 {
		return nil
	}
	qp := n.id.QP()
	wr := []verbs.SendWR{{Op: verbs.OpSend, Flags: flags, SGList: []verbs.SGE{n.mr.SGE(0, r.size)}}}
	if n.ah != nil {
		wr[0].Op, wr[0].Imm = verbs.OpSendWithImm, uint32(qp.QPN())
		wr[0].AH, wr[0].RemoteQPN, wr[0].RemoteQKey = n.ah, n.remoteQPN, n.remoteQKey
	}
	for i := range r.count {
		if i == r.count-1 {
			wr[0].Flags |= last
		}
		if _, err := qp.PostSend(wr); err != nil {
			return r.complain(cmPostStatus(err), err, "failed to post sends: %d", cmPostStatus(err))
		}
	}
	return nil
}

// cmPostStatus is what ibv_post_send and ibv_post_recv return: a positive errno.
func cmPostStatus(err error) int {
	if e := cmErrno(err); e != 0 {
		return int(e)
	}
	return int(syscall.EINVAL)
}

// collect takes count completions of a CQ, whichever they are. The C programs look at no
// completion's status; here one that failed ends the run. take, if there is one, gets the first.
func (r *cmRun) collect(ctx context.Context, cq *verbs.CQ, count int, take func(*verbs.WC) error) error {
	for done := 0; done < count; {
		n, err := r.poll(ctx, cq)
		if err != nil {
			if r.inv.ctx.Err() != nil {
				return err
			}
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return r.complain(cmStatusFailed, err, "%s: failed polling CQ: %d", r.prog, cmStatusFailed)
		}
		for i := range n {
			if err := r.wcs[i].Err(); err != nil {
				if cause := context.Cause(ctx); cause != nil {
					err = cause // why it was flushed
				}
				return r.complain(cmStatusFailed, err, "%s: failed polling CQ: %d", r.prog, cmStatusFailed)
			}
		}
		if take != nil {
			if err := take(&r.wcs[0]); err != nil {
				return err
			}
			take = nil
		}
		done += n
	}
	return nil
}

// poll waits for completions: it spins for a while, and then sleeps.
func (r *cmRun) poll(ctx context.Context, cq *verbs.CQ) (int, error) {
	for i := range spinPolls {
		if n, err := cq.Poll(r.wcs[:]); n > 0 || err != nil {
			return n, err
		}
		if i%yieldPolls == yieldPolls-1 {
			runtime.Gosched()
		}
	}
	return cq.Wait(ctx, r.wcs[:])
}

// next returns the next event.
func (r *cmRun) next() (rdmacm.Event, error) {
	if len(r.pending) > 0 {
		ev := r.pending[0]
		r.pending = r.pending[1:]
		return ev, nil
	}
	return r.ch.Next(r.inv.ctx)
}

// events handles events until left is 0 or one fails.
func (r *cmRun) events(left *int, handle func(rdmacm.Event) error) error {
	for *left > 0 {
		ev, err := r.next()
		if err != nil {
			return err
		}
		if err := handle(ev); err != nil {
			return err
		}
	}
	return nil
}

// failedEvent reports an event that ends the run.
func (r *cmRun) failedEvent(ev rdmacm.Event) error {
	r.connectsLeft--
	return r.complain(ev.Status, ev.Err, "%s: event: %v, error: %d", r.prog, ev.Type, ev.Status)
}

// refuse rejects a request that the program cannot take, and returns the reason.
func (r *cmRun) refuse(id *rdmacm.ID, reason error) error {
	r.inv.printf("%s: failing connection request\n", r.prog)
	r.inv.explain(id.Reject(nil))
	return reason
}

// errTooMany is a request beyond -c.
var errTooMany = errors.New("a peer asked for more connections than -c says: give both ends the same -c")

// admit makes a request's ID that of the next node. It is nil for a request beyond -c, which is
// refused. The C programs end then; here the others go on, and the status says it in the end.
func (r *cmRun) admit(id *rdmacm.ID) *cmNode {
	for i := range r.nodes {
		if n := &r.nodes[i]; n.id == nil {
			n.id, id.Context = id, n
			return n
		}
	}
	r.inv.explain(errTooMany)
	r.surplus = r.refuse(id, cmFailed(cmStatusNoMemory))
	r.inv.explain(id.Close())
	return nil
}

// errPeerLeft is why completions will not come.
var errPeerLeft = errors.New("the peer disconnected before all messages were exchanged: give both ends the same -c, -C and -S")

// watch fetches events while data flows. The context that it returns ends when a peer goes: what is
// missing then will not come. Requests are refused, or who waits for the answer would not send. stop ends
// the watch; other events are still to be handled.
func (r *cmRun) watch() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(r.inv.ctx)
	fetching, stopFetching := context.WithCancel(r.inv.ctx)
	ch, done := r.ch, make(chan struct{})
	var refused []error
	go func() {
		defer close(done)
		for {
			ev, err := ch.Next(fetching)
			if err != nil {
				return
			}
			if ev.Type == rdmacm.EventConnectRequest {
				refused = append(refused, errors.Join(ev.ID.Reject(nil), ev.ID.Close()))
				continue
			}
			r.pending = append(r.pending, ev) // read only when this goroutine is gone
			if ev.Type == rdmacm.EventDisconnected || ev.Type == rdmacm.EventDeviceRemoval {
				cancel(errPeerLeft)
			}
		}
	}()
	return ctx, func() {
		stopFetching()
		<-done
		cancel(nil)
		for _, err := range refused {
			r.inv.explain(errTooMany)
			r.surplus = r.complain(cmStatusNoMemory, err, "%s: failing connection request", r.prog)
		}
	}
}
