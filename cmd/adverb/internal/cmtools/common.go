// Package cmtools has the small programs of librdmacm: cmatose, which connects, udaddy, which
// exchanges datagrams, and mckey, which joins a multicast group.
package cmtools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// parse reads the flags of a program. own takes the value of a flag, and returns false for a flag that is not the
// program's own. The other flags go to f. refused is why a value cannot be had here.
func parse(inv *cli.Invocation, f *cm.Flags, own func(name, arg string) (known bool, err error)) (operands []string, code int, ok bool, refused error) {
	operands, code, ok = inv.Parse(cli.ExitError, func(name, arg string) bool {
		known, err := own(name, arg)
		if !known {
			err = f.Set(inv, name, arg)
		}
		if err != nil {
			refused = err
		}
		return true
	})
	return operands, code, ok, refused
}

// datagramFlag chooses the port space of a program that exchanges datagrams, by its number.
var datagramFlag = cli.Flag{Short: 'p', Long: "port-space-number", Arg: "<num>", Help: "0x111, which is udp; 0x2, ipoib, is refused",
	Values: cli.OneOf("0x111"), Check: clib.Within(0, math.MaxUint16)}

// portSpaceIPoIB is RDMA_PS_IPOIB.
const portSpaceIPoIB rdmacm.PortSpace = 0x0002

// checkDatagrams refuses a port space whose IDs have no UD QPs here.
func checkDatagrams(space rdmacm.PortSpace) error {
	switch space {
	case rdmacm.PortSpaceUDP:
		return nil
	case portSpaceIPoIB:
		return fmt.Errorf("port space 0x2 (IPoIB): RoCE has no IPoIB; use udp, 0x111")
	}
	return fmt.Errorf("port space %#x: datagrams have udp, 0x111", uint16(space))
}

// common is the part of a run that cmatose, udaddy and mckey share.
type common struct {
	inv   *cli.Invocation
	prog  string   // such as "cmatose", with which many lines begin, whatever argv[0] is
	flags cm.Flags // that the programs share
	count int      // messages
	size  int      // bytes

	security *rdmacm.Security // that peers must have as well; or nil

	// What differs in how cmatose and udaddy connect.
	prepare      func(*node) error // makes a node with a device ready to receive
	options      func(*rdmacm.ID)  // sets those of the ID, or nil
	connectParam *rdmacm.ConnParam
	acceptParam  *rdmacm.ConnParam

	newChannel func() *rdmacm.EventChannel
	ch         *rdmacm.EventChannel
	pending    []rdmacm.Event // fetched, but not handled yet
	surplus    error          // not nil if a request beyond -c was refused

	nodes           []node
	connectsLeft    int
	disconnectsLeft int
	wcs             [8]verbs.WC
}

// node is a connection.
type node struct {
	id             *rdmacm.ID
	pd             *verbs.PD
	sendCQ, recvCQ *verbs.CQ // the same one for datagrams
	mr             *verbs.MR // all messages, out and in
	connected      bool

	// Of datagrams.
	since      time.Time // when a client has asked for it
	received   int       // messages of that client
	ah         *verbs.AH
	remoteQPN  verbs.QPN
	remoteQKey verbs.QKey
}

func newCommon(inv *cli.Invocation, prog string, f *cm.Flags) common {
	return common{inv: inv, prog: prog, flags: *f, count: f.Count, size: f.Size}
}

// main makes the event channel and, for a client, the IDs, and runs body. It returns the exit
// status. The lines come in the order of the C program, which destroys its objects after "test
// complete".
func (r *common) main(makeIDs bool, body func() error) int {
	newChannel, done, ok := cm.Open(r.inv, r.flags.Device)
	if !ok {
		return cli.ExitError
	}
	defer done()
	r.newChannel, r.ch = newChannel, newChannel()
	if err := r.makeNodes(r.flags.Connections, makeIDs); err != nil {
		r.close()
		return cli.ExitError
	}
	err := body()
	ended := err == nil || !r.inv.Interrupted()
	if ended {
		r.inv.Printf("test complete\n")
	}
	r.close()
	if ended {
		r.inv.Printf("return status %d\n", cm.StatusOf(err))
	}
	return r.inv.Finish(err, func(err error) int { return cm.ExitStatus(cm.StatusOf(err)) })
}

func (r *common) makeNodes(connections int, makeIDs bool) error {
	if r.size == 0 {
		r.count = 0
	}
	r.nodes = make([]node, connections)
	r.connectsLeft = connections
	for i := 0; i < connections && makeIDs; i++ {
		id, err := rdmacm.NewID(r.ch, r.flags.Space)
		if err != nil {
			r.inv.Explain(err)
			return cm.Failed(cm.StatusFailed)
		}
		id.Context = &r.nodes[i]
		r.nodes[i].id = id
		if err := id.SetSecurity(r.security); err != nil {
			r.inv.Explain(err)
			return cm.Failed(cm.StatusFailed)
		}
	}
	return nil
}

func (r *common) close() {
	for i := range r.nodes {
		r.inv.Explain(r.nodes[i].close())
	}
	for _, ev := range r.pending { // requests that nobody has answered
		if ev.Type == rdmacm.EventConnectRequest {
			r.inv.Explain(ev.ID.Close())
		}
	}
	r.inv.Explain(r.ch.Close())
}

// close closes everything that was made, and returns the first failure.
func (n *node) close() error {
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
func (r *common) perror(err error, what string) error {
	return cm.Perror(r.inv, r.prog+": "+what, err)
}

// complain reports a failure by a line on stdout.
func (r *common) complain(status int, cause error, format string, args ...any) error {
	return cm.Complain(r.inv, status, cause, format, args...)
}

// lookupFailed reports that an address was not found.
func (r *common) lookupFailed(err error) error {
	if e, ok := errors.AsType[*cm.LookupError](err); ok {
		return r.complain(e.Code, err, "rdma_getaddrinfo error: %s", e.Text())
	}
	r.inv.Explain(err)
	return cm.Failed(cm.StatusFailed)
}

// listen makes a server's listening ID. The C programs print their first line before they listen.
// Here a script that has seen the line may count on the listener.
func (r *common) listen() (*rdmacm.ID, error) {
	l, report := r.tryListen()
	r.inv.Printf("%s: starting server\n", r.prog)
	if report != nil {
		if l != nil {
			defer func() { r.inv.Explain(l.Close()) }()
		}
		return nil, report()
	}
	return l, nil
}

// tryListen returns the ID. If it failed, then it returns a function that reports the failure.
func (r *common) tryListen() (l *rdmacm.ID, report func() error) {
	failed := func(err error, what string) (*rdmacm.ID, func() error) {
		return l, func() error { return r.perror(err, what) }
	}
	l, err := rdmacm.NewID(r.ch, r.flags.Space)
	if err != nil {
		return failed(err, "listen request failed")
	}
	err, asked := r.flags.BindID(r.inv.Ctx, l)
	if asked != nil {
		return l, func() error { return r.lookupFailed(asked) }
	}
	if err != nil {
		return failed(err, "bind address failed")
	}
	if err := l.SetSecurity(r.security); err != nil {
		return failed(err, "failure trying to listen")
	}
	if err := l.Listen(0); err != nil {
		return failed(err, "failure trying to listen")
	}
	return l, nil
}

// setup gives a node with a device its PD, CQs, QP and buffer. The buffer has extra bytes in front
// of an incoming message.
func (r *common) setup(n *node, extra int) (err error) {
	dev, datagrams := n.id.Device(), r.flags.Space == rdmacm.PortSpaceUDP
	if n.pd, err = dev.AllocPD(); err != nil {
		return r.complain(cm.StatusNoMemory, err, "%s: unable to allocate PD", r.prog)
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
		return r.complain(cm.StatusNoMemory, err, "%s: unable to create CQ", r.prog)
	}
	attr := verbs.QPInitAttr{SendCQ: n.sendCQ, RecvCQ: n.recvCQ, SignalAll: !datagrams,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if err := n.id.CreateQP(n.pd, attr); err != nil {
		return r.perror(err, "unable to create QP")
	}
	if r.count == 0 {
		return nil
	}
	if n.mr, err = n.pd.AllocMR(r.size+extra, verbs.AccessLocalWrite); err != nil {
		r.inv.Printf("failed to reg MR\n")
		return r.complain(cm.StatusFailed, err, "%s: failed to create messages: %d", r.prog, cm.StatusFailed)
	}
	return nil
}

// fits refuses messages that are too large for a datagram.
func (r *common) fits(n *node) error {
	port, err := n.id.Device().QueryPort(n.id.Port())
	if err != nil {
		r.inv.Explain(err)
		return cm.Failed(cm.StatusFailed)
	}
	if mtu := port.ActiveMTU.Bytes(); r.count != 0 && r.size > mtu {
		return r.complain(cm.StatusInvalid, nil, "%s: message_size %d is larger than active mtu %d", r.prog, r.size, mtu)
	}
	return nil
}

// postRecvs posts a receive for each message.
func (r *common) postRecvs(n *node) error {
	if r.count == 0 {
		return nil
	}
	wr := []verbs.RecvWR{{SGList: []verbs.SGE{n.mr.SGE(0, n.mr.Len())}}}
	for range r.count {
		if _, err := n.id.QP().PostRecv(wr); err != nil {
			return r.complain(clib.PostStatus(err), err, "failed to post receives: %d", clib.PostStatus(err))
		}
	}
	return nil
}

// postSends posts all messages of a node. The last message has the flags in last too.
func (r *common) postSends(n *node, flags, last verbs.SendFlags) error {
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
			return r.complain(clib.PostStatus(err), err, "failed to post sends: %d", clib.PostStatus(err))
		}
	}
	return nil
}

// sendAll posts all messages of all nodes. The last message of each has the flags in last too.
func (r *common) sendAll(flags, last verbs.SendFlags) error {
	for i := range r.nodes {
		if err := r.postSends(&r.nodes[i], flags, last); err != nil {
			return err
		}
	}
	return nil
}

// The CQs of a node.
func (n *node) sends() *verbs.CQ    { return n.sendCQ }
func (n *node) receives() *verbs.CQ { return n.recvCQ }

// collectAll waits for a completion of each message of each node, or until a peer disconnects.
func (r *common) collectAll(cq func(*node) *verbs.CQ) error {
	ctx, stop := r.watch(nil)
	defer stop()
	return r.collectEach(ctx, cq, r.count)
}

// collectEach takes count completions of each node that is connected.
func (r *common) collectEach(ctx context.Context, cq func(*node) *verbs.CQ, count int) error {
	for i := range r.nodes {
		if n := &r.nodes[i]; n.connected {
			if err := r.collect(ctx, cq(n), count); err != nil {
				return err
			}
		}
	}
	return nil
}

// collect takes count completions of a CQ, whichever they are.
func (r *common) collect(ctx context.Context, cq *verbs.CQ, count int) error {
	for done := 0; done < count; {
		n, err := r.poll(ctx, cq)
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// poll waits for completions, and leaves them in r.wcs. The C programs ignore the status of a completion. Here a
// completion that failed ends the run.
func (r *common) poll(ctx context.Context, cq *verbs.CQ) (n int, err error) {
	n, err = device.Wait(ctx, cq, r.wcs[:])
	if err != nil && r.inv.Ctx.Err() != nil {
		return 0, err
	}
	for i := 0; err == nil && i < n; i++ {
		err = r.wcs[i].Err()
	}
	if err == nil {
		return n, nil
	}
	err = cmp.Or(context.Cause(ctx), err) // the reason for a flush
	if err == errAsked {
		return 0, err
	}
	return 0, r.complain(cm.StatusFailed, err, "%s: failed polling CQ: %d", r.prog, cm.StatusFailed)
}

// next returns the next event.
func (r *common) next() (rdmacm.Event, error) {
	if len(r.pending) > 0 {
		ev := r.pending[0]
		r.pending = r.pending[1:]
		return ev, nil
	}
	return r.ch.Next(r.inv.Ctx)
}

// events handles events until left is 0 or one fails.
func (r *common) events(left *int, handle func(rdmacm.Event) error) error {
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

// call asks the server for a connection of each node, and handles events until each has it.
func (r *common) call(handle func(rdmacm.Event) error) error {
	r.inv.Printf("%s: starting client\n", r.prog)
	src, dst, err := r.flags.Addresses(r.inv.Ctx)
	if err != nil {
		return r.lookupFailed(err)
	}
	r.inv.Printf("%s: connecting\n", r.prog)
	for i := range r.nodes {
		if err := r.flags.Resolve(r.nodes[i].id, src, dst); err != nil {
			return r.perror(err, "failure getting addr")
		}
	}
	return r.events(&r.connectsLeft, handle)
}

// calling handles the events of a client until it is connected.
func (r *common) calling(ev rdmacm.Event) error {
	var err error
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		err = r.addrResolved(ev.ID)
	case rdmacm.EventRouteResolved:
		err = r.routeResolved(ev.ID.Context.(*node))
	case rdmacm.EventAddrError, rdmacm.EventRouteError, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected,
		rdmacm.EventMulticastError:
		err = r.complain(ev.Status, ev.Err, "%s: event: %v, error: %d", r.prog, ev.Type, ev.Status)
	}
	if err != nil {
		r.connectsLeft--
	}
	return err
}

func (r *common) addrResolved(id *rdmacm.ID) error {
	if r.flags.TOS >= 0 {
		if err := id.SetTOS(uint8(r.flags.TOS)); err != nil {
			r.perror(err, "set TOS option failed")
		}
	}
	if r.options != nil {
		r.options(id)
	}
	if err := id.ResolveRoute(); err != nil {
		return r.perror(err, "resolve route failed")
	}
	return nil
}

func (r *common) routeResolved(n *node) error {
	if err := r.prepare(n); err != nil {
		return err
	}
	if err := n.id.Connect(r.connectParam); err != nil {
		return r.perror(err, "failure connecting")
	}
	return nil
}

// prepareDatagrams makes a node with a device ready to receive datagrams.
func (r *common) prepareDatagrams(n *node) error {
	if err := r.fits(n); err != nil {
		return err
	}
	if err := r.setup(n, verbs.GRHSize); err != nil {
		return err
	}
	return r.postRecvs(n)
}

// found takes the address of the peer's QP, or of a group, which the connection manager has found.
func (r *common) found(n *node, ud *rdmacm.UDParam) (err error) {
	r.connectsLeft--
	n.remoteQPN, n.remoteQKey = ud.QPN, ud.QKey
	if n.ah, err = n.pd.CreateAH(ud.AH); err != nil {
		return r.complain(cm.StatusFailed, err, "%s: failure creating address handle", r.prog)
	}
	n.connected = true
	return nil
}

// refuse rejects a request that the program cannot take, and returns the reason.
func (r *common) refuse(id *rdmacm.ID, reason error) error {
	r.inv.Printf("%s: failing connection request\n", r.prog)
	r.inv.Explain(id.Reject(nil))
	return reason
}

// admit gives the ID of a request to the next node. It refuses a request beyond -c, and returns nil.
// The C programs end then. Here the other connections go on, and the exit status tells of the
// refusal in the end.
func (r *common) admit(id *rdmacm.ID) *node {
	for i := range r.nodes {
		if n := &r.nodes[i]; n.id == nil {
			n.id, id.Context = id, n
			return n
		}
	}
	r.inv.Explain(cm.ErrTooMany)
	r.surplus = r.refuse(id, cm.Failed(cm.StatusNoMemory))
	r.inv.Explain(id.Close())
	return nil
}

// accept says yes to a request, and returns its node. The node is nil if the request is beyond -c.
func (r *common) accept(id *rdmacm.ID) (*node, error) {
	n := r.admit(id)
	if n == nil {
		return nil, nil
	}
	err := r.prepare(n)
	if err == nil {
		if r.options != nil {
			r.options(id)
		}
		if aerr := id.Accept(r.acceptParam); aerr != nil {
			err = r.perror(aerr, "failure accepting")
		}
	}
	if err != nil {
		r.connectsLeft--
		return n, r.refuse(id, err)
	}
	return n, nil
}

// errPeerLeft is the reason why no more completions will come.
var errPeerLeft = errors.New("the peer disconnected before all messages were exchanged: give both ends the same -c, -C and -S")

// watch fetches events while data flows. The context that it returns ends when a peer disconnects,
// since missing messages will not come then. watch refuses connection requests at once: a client
// that waits for the answer sends no data on its other connections. If take is not nil, it gets them
// instead. stop ends the watch. It leaves all other events to be handled.
func (r *common) watch(take func(rdmacm.Event)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(r.inv.Ctx)
	fetching, stopFetching := context.WithCancel(r.inv.Ctx)
	ch, done := r.ch, make(chan struct{})
	var refused []error
	go func() {
		defer close(done)
		for {
			ev, err := ch.Next(fetching)
			if err != nil {
				return
			}
			if ev.Type == rdmacm.EventConnectRequest && take != nil {
				take(ev)
				continue
			}
			if ev.Type == rdmacm.EventConnectRequest {
				refused = append(refused, errors.Join(ev.ID.Reject(nil), ev.ID.Close()))
				continue
			}
			r.pending = append(r.pending, ev) // nobody reads it before this goroutine has ended
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
			r.inv.Explain(cm.ErrTooMany)
			r.surplus = r.complain(cm.StatusNoMemory, err, "%s: failing connection request", r.prog)
		}
	}
}
