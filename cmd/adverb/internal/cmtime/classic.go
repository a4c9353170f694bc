package cmtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// Steps of the older form, in the order of its table.
const (
	timeCreateID = iota
	timeBind
	timeResolveAddr
	timeResolveRoute
	timeCreateQP
	timeConnect
	timeDisconnect
	timeDestroy
	numSteps
)

var stepNames = [numSteps]string{"create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"}

// timedConn is a connection of the older form's client.
type timedConn struct {
	id      *rdmacm.ID
	times   [numSteps]interval
	failed  bool
	retries int
}

// client is a run of the older form's client.
type client struct {
	inv   *cli.Invocation
	flags *flags
	ch    *rdmacm.EventChannel
	probe func() *rdmacm.EventChannel
	clock stopwatch
	steps [numSteps]interval
	dst   netip.AddrPort
	sync  *classicSync // nil if the server does not synchronise
	quiet bool         // the round is not measured

	mu         sync.Mutex // of the fields below
	changed    sync.Cond
	conns      []timedConn
	unanswered int // connections whose step has begun and has had no answer
}

// qpAttr is for the QPs of the connections, which carry no data.
var qpAttr = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}

func runClient(inv *cli.Invocation, f *flags) int {
	newChannel, done, ok := cm.Open(inv, f.device)
	if !ok {
		return cli.ExitError
	}
	defer done()
	c := &client{inv: inv, flags: f, ch: newChannel(), probe: newChannel, clock: newStopwatch()}
	c.changed.L = &c.mu
	pumping, stopPump := context.WithCancel(inv.Ctx)
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		c.pump(pumping)
	}()
	defer context.AfterFunc(inv.Ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})()
	err := c.run()
	stopPump()
	<-pumped
	for i := range c.conns { // after a failure
		if id := c.conns[i].id; id != nil {
			inv.Explain(id.Close())
		}
	}
	inv.Explain(c.ch.Close())
	return inv.Finish(err, exitStatus)
}

// exitStatus is the exit status of a run that failed with err, which has been reported.
func exitStatus(err error) int {
	if f, ok := errors.AsType[cm.Failed](err); ok {
		return cm.ExitStatus(int(f))
	}
	return cli.ExitError
}

// run makes the connections, and prints how long that took.
func (c *client) run() error {
	f := c.flags
	addresses := cm.Flags{Server: f.server, Bind: f.bind, Port: f.port}
	src, dst, err := addresses.Addresses(c.inv.Ctx)
	if err == nil {
		c.dst = dst
		// Over iWARP the server's device listens at that TCP port.
		if !overIWARP(c.inv.Ctx, c.probe(), src, dst) {
			c.sync, err = openClassicSync(c.inv.Ctx, dst)
		}
	}
	if c.sync == nil {
		return c.round(f.connections, src, err)
	}
	defer c.sync.close()
	c.quiet = true
	if err := c.round(1, src, nil); err != nil { // the server counts on it
		return err
	}
	c.quiet = false
	if err := c.round(f.connections, src, nil); err != nil {
		return err
	}
	c.quiet = true
	return c.round(f.connections, src, nil) // and on this, which the C client makes without QPs
}

// overIWARP reports whether the device that connects the addresses speaks iWARP. It closes the channel.
func overIWARP(ctx context.Context, ch *rdmacm.EventChannel, src, dst netip.AddrPort) bool {
	defer ch.Close()
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return false
	}
	defer id.Close()
	if err := id.ResolveAddr(src, dst); err != nil {
		return false // the first step finds out, and says so
	}
	ev, err := ch.Next(ctx)
	return err == nil && ev.Type == rdmacm.EventAddrResolved && isIWARP(id.Device())
}

func isIWARP(dev *verbs.Device) bool {
	return dev != nil && dev.Info().Transport == verbs.TransportIWARP
}

// round does the steps, each for all connections before the next. lookup is the error of looking up
// the addresses, if there was one.
func (c *client) round(connections int, src netip.AddrPort, lookup error) error {
	f := c.flags
	c.mu.Lock()
	c.conns, c.steps = make([]timedConn, connections), [numSteps]interval{}
	c.mu.Unlock()
	if err := c.sync.await(syncStart); err != nil {
		return c.explained(err)
	}
	if err := c.step(timeCreateID, "creating id", "failure creating id", false, func(t *timedConn) (err error) {
		if t.id, err = rdmacm.NewID(c.ch, rdmacm.PortSpaceTCP); err == nil {
			t.id.Context = t
		}
		return err
	}); err != nil {
		return err
	}
	if e, ok := errors.AsType[*cm.LookupError](lookup); ok {
		return cm.Complain(c.inv, e.Code, lookup, "getaddrinfo error: %s", e.Text())
	} else if lookup != nil {
		return lookup
	}
	if src.IsValid() {
		if err := c.step(timeBind, "binding source address", "failure bind addr", false, func(t *timedConn) error {
			return t.id.BindAddr(src)
		}); err != nil {
			return err
		}
	}
	param := rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: uint8(max(0, min(f.retries, 7)))}
	for _, s := range []struct {
		step         int
		line, failed string
		awaited      bool // events answer the step
		do           func(*timedConn) error
	}{
		{timeResolveAddr, "resolving address", "failure getting addr", true, func(t *timedConn) error {
			t.retries = f.retries
			return t.id.ResolveAddr(netip.AddrPort{}, c.dst) // from where it is bound to
		}},
		{timeResolveRoute, "resolving route", "failure resolving route", true, func(t *timedConn) error {
			t.retries = f.retries
			return t.id.ResolveRoute()
		}},
		{timeCreateQP, "creating qp", "failure creating qp", false, func(t *timedConn) error { return t.id.CreateQP(nil, qpAttr) }},
		{timeConnect, "connecting", "failure rconnecting", true, func(t *timedConn) error { return t.id.Connect(&param) }},
		{timeDisconnect, "disconnecting", "failure disconnecting", true, func(t *timedConn) error {
			if err := t.id.Disconnect(); err != nil {
				return err
			}
			return t.id.DestroyQP()
		}},
	} {
		if err := c.step(s.step, s.line, s.failed, s.awaited, s.do); err != nil {
			return err
		}
		if after, ok := syncAfter[s.step]; ok {
			if err := c.allMade(); err != nil {
				return c.explained(err)
			}
			if err := c.sync.await(after); err != nil {
				return c.explained(err)
			}
		}
	}
	c.destroy()
	if c.quiet {
		return nil
	}
	printTimes(c.inv.Stdout, &c.steps, c.conns, src.IsValid())
	if f.rate {
		c.printRate()
	}
	// C's program ends with status 0 here, and a script takes a table of nothing for a measurement.
	if n := c.failures(); n > 0 {
		return c.explained(fmt.Errorf("measure %d connections to %v: %d of them have failed, and are not in the table: the lines above it say why",
			len(c.conns), c.dst, n))
	}
	return nil
}

// step does a step for all connections that have not failed. If awaited, then events answer the
// step, and step waits for all of them.
func (c *client) step(step int, line, failed string, awaited bool, do func(*timedConn) error) error {
	c.say(line)
	c.steps[step].start = c.clock.now()
	for i := range c.conns {
		t := &c.conns[i]
		c.mu.Lock()
		skip := t.failed || c.inv.Ctx.Err() != nil
		if !skip {
			t.times[step].start = c.clock.now()
			if awaited {
				c.unanswered++
			}
		}
		c.mu.Unlock()
		if skip {
			continue
		}
		err := do(t)
		c.mu.Lock()
		switch {
		case err != nil:
			t.failed = true
			if awaited {
				c.unanswered--
			}
		case !awaited:
			t.times[step].end = c.clock.now()
		}
		c.mu.Unlock()
		if err != nil {
			cm.Perror(c.inv, failed, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.unanswered > 0 && c.inv.Ctx.Err() == nil {
		c.changed.Wait()
	}
	c.steps[step].end = c.clock.now()
	return c.inv.Ctx.Err()
}

// explained prints an error, unless the user has caused it by an interruption.
func (c *client) explained(err error) error {
	if !c.inv.Interrupted() {
		c.inv.Explain(err)
	}
	return err
}

// say prints the client's step.
func (c *client) say(line string) {
	if !c.quiet {
		c.inv.Printf("%s\n", line)
	}
}

// allMade returns an error if a connection has failed and the server waits for it.
func (c *client) allMade() error {
	if c.sync == nil {
		return nil
	}
	failed := c.failures()
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d connections have failed, and the server waits for all: restart it", failed, len(c.conns))
}

// failures returns how many connections of the round have failed.
func (c *client) failures() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.conns {
		if c.conns[i].failed {
			n++
		}
	}
	return n
}

// destroy closes all IDs, those of failed connections too.
func (c *client) destroy() {
	c.say("destroying id")
	c.steps[timeDestroy].start = c.clock.now()
	for i := range c.conns {
		t := &c.conns[i]
		t.times[timeDestroy].start = c.clock.now()
		if t.id != nil {
			c.inv.Explain(t.id.Close())
			t.id = nil
		}
		t.times[timeDestroy].end = c.clock.now()
	}
	c.steps[timeDestroy].end = c.clock.now()
}

// pump handles each event at once, so that the measured times are those of the connection manager.
func (c *client) pump(ctx context.Context) {
	for {
		ev, err := c.ch.Next(ctx)
		if err != nil {
			return
		}
		c.handle(ev)
	}
}

func (c *client) handle(ev rdmacm.Event) {
	now := c.clock.now()
	t, ok := ev.ID.Context.(*timedConn)
	if !ok {
		return
	}
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		c.stepDone(t, timeResolveAddr, now, false)
	case rdmacm.EventRouteResolved:
		c.stepDone(t, timeResolveRoute, now, false)
	case rdmacm.EventEstablished:
		c.stepDone(t, timeConnect, now, false)
	case rdmacm.EventDisconnected:
		c.stepDone(t, timeDisconnect, now, false)
	case rdmacm.EventAddrError:
		if c.mayRetry(t) && t.id.ResolveAddr(netip.AddrPort{}, c.dst) == nil {
			return
		}
		c.fail(t, timeResolveAddr, now, ev, "%v, error: %d")
	case rdmacm.EventRouteError:
		if c.mayRetry(t) && t.id.ResolveRoute() == nil {
			return
		}
		c.fail(t, timeResolveRoute, now, ev, "%v, error: %d")
	case rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		c.fail(t, timeConnect, now, ev, "event: %v, error: %d")
	}
}

// mayRetry counts a retry of resolution. It returns false when there have been enough.
func (c *client) mayRetry(t *timedConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.retries--
	return t.retries >= 0
}

func (c *client) fail(t *timedConn, step int, now int64, ev rdmacm.Event, format string) {
	cm.Complain(c.inv, ev.Status, ev.Err, format, ev.Type, ev.Status)
	c.stepDone(t, step, now, true)
}

// stepDone ends a connection's step.
func (c *client) stepDone(t *timedConn, step int, now int64, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &t.times[step]
	if v.start == 0 || v.end != 0 {
		// Nobody asked for this: the server has disconnected. There will be no second event of that.
		t.failed = true
		return
	}
	v.end = now
	t.failed = t.failed || failed
	c.unanswered--
	if c.unanswered == 0 {
		c.changed.Broadcast()
	}
}

// noTime is printed as the smallest time, in microseconds, if no connection has done the step.
const noTime = 999999999

// printTimes prints the table.
func printTimes(w io.Writer, steps *[numSteps]interval, conns []timedConn, bound bool) {
	fmt.Fprintf(w, "step              total ms     max ms     min us  us / conn\n")
	for s, name := range stepNames {
		if s == timeBind && !bound {
			continue
		}
		longest, shortest := 0.0, float64(float32(noTime))
		for i := range conns {
			if ns, ok := conns[i].times[s].took(); ok {
				us := float64(ns) / 1e3
				longest, shortest = max(longest, us), min(shortest, us)
			}
		}
		total, _ := steps[s].took()
		us := float64(total) / 1e3
		fmt.Fprintf(w, "%-13s: %11.2f%11.2f%11.2f%11.2f\n", name, us/1e3, longest/1e3, shortest, us/float64(len(conns)))
	}
}

// printRate prints a line that the C program does not have: the connections made in a second, counted
// over the connect step and over all steps up to it.
func (c *client) printRate() {
	made := 0
	for i := range c.conns {
		if _, ok := c.conns[i].times[timeConnect].took(); ok && !c.conns[i].failed {
			made++
		}
	}
	all := interval{c.steps[timeCreateID].start, c.steps[timeConnect].end}
	c.inv.Printf("rate         : %.0f connections/s (connect), %.0f connections/s (all steps up to connect)\n",
		perSecond(made, c.steps[timeConnect]), perSecond(made, all))
}

// serve is the older form's server. It serves until it is interrupted.
func serve(inv *cli.Invocation, f *flags) int {
	newChannel, done, ok := cm.Open(inv, f.device)
	if !ok {
		return cli.ExitError
	}
	defer done()
	s := &server{inv: inv, ch: newChannel(), ids: map[*rdmacm.ID]struct{}{}}
	defer s.close()
	addresses := cm.Flags{Bind: f.bind, Port: f.port}
	addr, _, err := addresses.Addresses(inv.Ctx)
	if e, ok := errors.AsType[*cm.LookupError](err); ok {
		cm.Complain(inv, e.Code, err, "getrdmaaddr error: %s", e.Text())
		return cm.ExitStatus(e.Code)
	} else if err != nil {
		inv.Explain(err)
		return cli.ExitError
	}
	if err = s.start(addr); err == nil {
		inv.Endless = true
		err = s.serve()
	}
	return inv.Finish(err, exitStatus)
}

// server accepts requests, and closes a connection when its peer disconnects.
type server struct {
	inv *cli.Invocation
	ch  *rdmacm.EventChannel
	ids map[*rdmacm.ID]struct{}

	sync  net.Listener // or nil
	iwarp bool         // the address is of a device that speaks iWARP
}

func (s *server) listen(addr netip.AddrPort) error {
	l, err := rdmacm.NewID(s.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return cm.Perror(s.inv, "listen request failed", err)
	}
	s.ids[l] = struct{}{}
	if err := l.BindAddr(addr); err != nil {
		return cm.Perror(s.inv, "bind address failed", err)
	}
	if err := l.Listen(0); err != nil {
		return cm.Perror(s.inv, "failure trying to listen", err)
	}
	s.iwarp = isIWARP(l.Device())
	return nil
}

// start listens, for clients of all kinds.
func (s *server) start(addr netip.AddrPort) error {
	err := s.listen(addr)
	if err == nil && !s.iwarp { // or the listener has the TCP port of those that wait for the server
		s.listenSync(addr)
	}
	return err
}

func (s *server) serve() error {
	for {
		ev, err := s.ch.Next(s.inv.Ctx)
		if err != nil {
			return err
		}
		s.handle(ev)
	}
}

func (s *server) handle(ev rdmacm.Event) {
	switch ev.Type {
	case rdmacm.EventConnectRequest:
		s.ids[ev.ID] = struct{}{}
		s.accept(ev.ID)
	case rdmacm.EventDisconnected:
		_ = ev.ID.Disconnect() // fails if nothing is left to do
		s.drop(ev.ID)
	case rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		cm.Complain(s.inv, ev.Status, ev.Err, "event: %v, error: %d", ev.Type, ev.Status)
		s.drop(ev.ID)
	}
}

func (s *server) accept(id *rdmacm.ID) {
	err := id.CreateQP(nil, qpAttr)
	if err != nil {
		cm.Perror(s.inv, "failure creating qp", err)
	} else if err = id.Accept(nil); err != nil {
		cm.Perror(s.inv, "failure accepting", err)
	}
	if err != nil {
		s.inv.Printf("failing connection request\n")
		s.inv.Explain(id.Reject(nil))
		s.drop(id)
	}
}

func (s *server) drop(id *rdmacm.ID) {
	s.inv.Explain(id.Close())
	delete(s.ids, id)
}

func (s *server) close() {
	if s.sync != nil {
		s.sync.Close()
	}
	for id := range s.ids {
		s.drop(id)
	}
	s.inv.Explain(s.ch.Close())
}
