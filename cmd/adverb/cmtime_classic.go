package main

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"

	"fmt"

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
	timeSteps
)

var timeStepNames = [timeSteps]string{"create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"}

// timedConn is a connection of the older form's client.
type timedConn struct {
	id      *rdmacm.ID
	times   [timeSteps]interval
	failed  bool
	retries int
}

// cmtimeClient is a run of the older form's client.
type cmtimeClient struct {
	inv   *invocation
	flags *cmtimeFlags
	ch    *rdmacm.EventChannel
	watch stopwatch
	steps [timeSteps]interval
	dst   netip.AddrPort

	mu      sync.Mutex // of what follows
	changed sync.Cond
	conns   []timedConn
	waiting int // answers that are to come
}

// cmtimeQP is what the connections have, which carry no data.
var cmtimeQP = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}

func runCmtimeClient(inv *invocation, f *cmtimeFlags) int {
	newChannel, done, ok := inv.cmOpen(f.device)
	if !ok {
		return exitError
	}
	defer done()
	c := &cmtimeClient{inv: inv, flags: f, ch: newChannel(), watch: newStopwatch(), conns: make([]timedConn, f.connections)}
	c.changed.L = &c.mu
	pumping, stopPump := context.WithCancel(inv.ctx)
	pumped := make(chan struct{})
	go func() {
		defer close(pumped)
		c.pump(pumping)
	}()
	defer context.AfterFunc(inv.ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})()
	err := c.run()
	stopPump()
	<-pumped
	for i := range c.conns { // after a failure
		if id := c.conns[i].id; id != nil {
			inv.explain(id.Close())
		}
	}
	inv.explain(c.ch.Close())
	switch {
	case inv.ctx.Err() != nil:
		inv.explain(errors.New("interrupted"))
		return statusInterrupted
	case err != nil:
		if f, ok := errors.AsType[cmFailed](err); ok {
			return cmExit(int(f))
		}
		return exitError
	}
	return exitOK
}

// run does the steps, each for all connections before the next.
func (c *cmtimeClient) run() error {
	f := c.flags
	if err := c.step(timeCreateID, "creating id", "failure creating id", false, func(t *timedConn) (err error) {
		if t.id, err = rdmacm.NewID(c.ch, rdmacm.PortSpaceTCP); err == nil {
			t.id.Context = t
		}
		return err
	}); err != nil {
		return err
	}
	addresses := cmFlags{server: f.server, bind: f.bind, port: f.port}
	src, dst, err := addresses.addresses(c.inv.ctx)
	if e, ok := errors.AsType[*cmLookupError](err); ok {
		return c.inv.cmComplain(e.code, err, "getaddrinfo error: %s", e.text())
	} else if err != nil {
		return err
	}
	c.dst = dst
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
		answered     bool
		do           func(*timedConn) error
	}{
		{timeResolveAddr, "resolving address", "failure getting addr", true, func(t *timedConn) error {
			t.retries = f.retries
			return t.id.ResolveAddr(netip.AddrPort{}, dst) // from where it is bound to
		}},
		{timeResolveRoute, "resolving route", "failure resolving route", true, func(t *timedConn) error {
			t.retries = f.retries
			return t.id.ResolveRoute()
		}},
		{timeCreateQP, "creating qp", "failure creating qp", false, func(t *timedConn) error { return t.id.CreateQP(nil, cmtimeQP) }},
		{timeConnect, "connecting", "failure rconnecting", true, func(t *timedConn) error { return t.id.Connect(&param) }},
		{timeDisconnect, "disconnecting", "failure disconnecting", true, func(t *timedConn) error {
			if err := t.id.Disconnect(); err != nil {
				return err
			}
			return t.id.DestroyQP()
		}},
	} {
		if err := c.step(s.step, s.line, s.failed, s.answered, s.do); err != nil {
			return err
		}
	}
	c.destroy()
	printTimes(c.inv.stdout, &c.steps, c.conns, src.IsValid())
	if f.rate {
		c.printRate()
	}
	return nil
}

// step does a step for all connections that have not failed. Of one that is answered by events it
// awaits the answers.
func (c *cmtimeClient) step(step int, line, failed string, answered bool, do func(*timedConn) error) error {
	c.inv.printf("%s\n", line)
	c.steps[step].start = c.watch.now()
	for i := range c.conns {
		t := &c.conns[i]
		c.mu.Lock()
		skip := t.failed || c.inv.ctx.Err() != nil
		if !skip {
			t.times[step].start = c.watch.now()
			if answered {
				c.waiting++
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
			if answered {
				c.waiting--
			}
		case !answered:
			t.times[step].end = c.watch.now()
		}
		c.mu.Unlock()
		if err != nil {
			c.inv.cmPerror(failed, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting > 0 && c.inv.ctx.Err() == nil {
		c.changed.Wait()
	}
	c.steps[step].end = c.watch.now()
	return c.inv.ctx.Err()
}

// destroy closes the IDs, also of connections that failed.
func (c *cmtimeClient) destroy() {
	c.inv.printf("destroying id\n")
	c.steps[timeDestroy].start = c.watch.now()
	for i := range c.conns {
		t := &c.conns[i]
		t.times[timeDestroy].start = c.watch.now()
		if t.id != nil {
			c.inv.explain(t.id.Close())
			t.id = nil
		}
		t.times[timeDestroy].end = c.watch.now()
	}
	c.steps[timeDestroy].end = c.watch.now()
}

// pump handles events as they come, so that the times are those of the connection manager.
func (c *cmtimeClient) pump(ctx context.Context) {
	for {
		ev, err := c.ch.Next(ctx)
		if err != nil {
			return
		}
		c.handle(ev)
	}
}

func (c *cmtimeClient) handle(ev rdmacm.Event) {
	now := c.watch.now()
	t, ok := ev.ID.Context.(*timedConn)
	if !ok {
		return
	}
	switch ev.Type {
	case rdmacm.EventAddrResolved:
		c.answered(t, timeResolveAddr, now, false)
	case rdmacm.EventRouteResolved:
		c.answered(t, timeResolveRoute, now, false)
	case rdmacm.EventEstablished:
		c.answered(t, timeConnect, now, false)
	case rdmacm.EventDisconnected:
		c.answered(t, timeDisconnect, now, false)
	case rdmacm.EventAddrError:
		if c.again(t) && t.id.ResolveAddr(netip.AddrPort{}, c.dst) == nil {
			return
		}
		c.fail(t, timeResolveAddr, now, ev, "%v, error: %d")
	case rdmacm.EventRouteError:
		if c.again(t) && t.id.ResolveRoute() == nil {
			return
		}
		c.fail(t, timeResolveRoute, now, ev, "%v, error: %d")
	case rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		c.fail(t, timeConnect, now, ev, "event: %v, error: %d")
	}
}

// again counts a retry of resolution, and is false when there have been enough.
func (c *cmtimeClient) again(t *timedConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.retries--
	return t.retries >= 0
}

func (c *cmtimeClient) fail(t *timedConn, step int, now int64, ev rdmacm.Event, format string) {
	c.inv.cmComplain(ev.Status, ev.Err, format, ev.Type, ev.Status)
	c.answered(t, step, now, true)
}

// answered ends a connection's step.
func (c *cmtimeClient) answered(t *timedConn, step int, now int64, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := &t.times[step]
	if v.start == 0 || v.end != 0 {
		// Not asked for: the server has disconnected. That will not be said again.
		t.failed = true
		return
	}
	v.end = now
	t.failed = t.failed || failed
	c.waiting--
	if c.waiting == 0 {
		c.changed.Broadcast()
	}
}

// noTime is the smallest time of a step that no connection has done, in microseconds.
const noTime = 999999999

// printTimes prints the table.
func printTimes(w io.Writer, steps *[timeSteps]interval, conns []timedConn, bound bool) {
	fmt.Fprintf(w, "step              total ms     max ms     min us  us / conn\n")
	for s, name := range timeStepNames {
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

// printRate prints our own line: how many connections a second were made, by the connect step and by
// all up to it.
func (c *cmtimeClient) printRate() {
	made := 0
	for i := range c.conns {
		if _, ok := c.conns[i].times[timeConnect].took(); ok && !c.conns[i].failed {
			made++
		}
	}
	all := interval{c.steps[timeCreateID].start, c.steps[timeConnect].end}
	c.inv.printf("rate         : %.0f connections/s (connect), %.0f connections/s (all steps up to connect)\n",
		perSecond(made, c.steps[timeConnect]), perSecond(made, all))
}

// serveCmtime is the older form's server. It serves until it is interrupted.
func serveCmtime(inv *invocation, f *cmtimeFlags) int {
	newChannel, done, ok := inv.cmOpen(f.device)
	if !ok {
		return exitError
	}
	defer done()
	s := &cmtimeServer{inv: inv, ch: newChannel(), ids: map[*rdmacm.ID]struct{}{}}
	defer s.close()
	addresses := cmFlags{bind: f.bind, port: f.port}
	addr, _, err := addresses.addresses(inv.ctx)
	if e, ok := errors.AsType[*cmLookupError](err); ok {
		inv.cmComplain(e.code, err, "getrdmaaddr error: %s", e.text())
		return cmExit(e.code)
	} else if err != nil {
		inv.explain(err)
		return exitError
	}
	err = s.listen(addr)
	if err == nil {
		err = s.serve()
	}
	if inv.ctx.Err() == nil {
		if f, ok := errors.AsType[cmFailed](err); ok {
			return cmExit(int(f))
		}
		return exitError
	}
	return statusInterrupted
}

// cmtimeServer answers requests, and is done with a connection when its peer is.
type cmtimeServer struct {
	inv *invocation
	ch  *rdmacm.EventChannel
	ids map[*rdmacm.ID]struct{}
}

func (s *cmtimeServer) listen(addr netip.AddrPort) error {
	l, err := rdmacm.NewID(s.ch, rdmacm.PortSpaceTCP)
	if err != nil {
		return s.inv.cmPerror("listen request failed", err)
	}
	s.ids[l] = struct{}{}
	if err := l.BindAddr(addr); err != nil {
		return s.inv.cmPerror("bind address failed", err)
	}
	if err := l.Listen(0); err != nil {
		return s.inv.cmPerror("failure trying to listen", err)
	}
	return nil
}

func (s *cmtimeServer) serve() error {
	for {
		ev, err := s.ch.Next(s.inv.ctx)
		if err != nil {
			return err
		}
		s.handle(ev)
	}
}

func (s *cmtimeServer) handle(ev rdmacm.Event) {
	switch ev.Type {
	case rdmacm.EventConnectRequest:
		s.ids[ev.ID] = struct{}{}
		s.accept(ev.ID)
	case rdmacm.EventDisconnected:
		_ = ev.ID.Disconnect() // the peer has
		s.drop(ev.ID)
	case rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		s.inv.cmComplain(ev.Status, ev.Err, "event: %v, error: %d", ev.Type, ev.Status)
		s.drop(ev.ID)
	}
}

func (s *cmtimeServer) accept(id *rdmacm.ID) {
	err := id.CreateQP(nil, cmtimeQP)
	if err != nil {
		s.inv.cmPerror("failure creating qp", err)
	} else if err = id.Accept(nil); err != nil {
		s.inv.cmPerror("failure accepting", err)
	}
	if err != nil {
		s.inv.printf("failing connection request\n")
		s.inv.explain(id.Reject(nil))
		s.drop(id)
	}
}

func (s *cmtimeServer) drop(id *rdmacm.ID) {
	s.inv.explain(id.Close())
	delete(s.ids, id)
}

func (s *cmtimeServer) close() {
	for id := range s.ids {
		s.drop(id)
	}
	s.inv.explain(s.ch.Close())
}
