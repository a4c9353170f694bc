package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/internal/crowd"
)

const (
	// acceptPause is how long a service waits when it can accept no connection for now.
	acceptPause = 100 * time.Millisecond

	// refreshPause is how long a client that is heard from is not counted as heard from again.
	refreshPause = 100 * time.Millisecond

	// refusalPause is how long a service that turns clients away says nothing of further ones.
	refusalPause = time.Second

	// maxLeaving is how many clients that are turned away may be told so at a time.
	maxLeaving = 16
)

var (
	errDisplaced = errors.New("ended, since a client of another host needs the place and this one was silent for longest")
	errIdle      = errors.New("ended, since nothing came for the time that --idle allows")
)

// service takes connections, and bounds the resources that strangers may hold. Its clients are a crowd: when there is
// no room, the host with the most loses the one that was silent for longest to a host with fewer.
type service struct {
	inv     *cli.Invocation
	ctx     context.Context // ends when all clients are to end
	end     func()
	limits  limits
	refuse  func(net.Conn) // tells a client that there is no room, or nil
	started time.Time
	leaving chan struct{}

	mu      sync.Mutex
	clients *crowd.Crowd[*client]
	refused int // clients, since the last one that was told of
	told    time.Time
}

// limits are the user's limits.
type limits struct {
	clients int           // at a time, half of them of one source
	idle    time.Duration // that a client may be silent; 0 is for ever
	drain   time.Duration // that clients may go on after SIGTERM
}

// drainTime is the drain of the limits, unless the user says otherwise. Kubernetes and systemd wait for longer.
const drainTime = 10 * time.Second

// flags returns the flags of the limits.
func (l *limits) flags() []cli.Flag {
	return []cli.Flag{
		{Long: "clients", Arg: "<num>", Ours: true, Check: clib.Within(1, maxClients),
			Help: fmt.Sprintf("serve up to <num> connections at a time, half of them of one host (default %d)", l.clients)},
		{Long: "idle", Arg: "<time>", Ours: true,
			Help: fmt.Sprintf("end connections over which nothing comes for <time>; 0 is for ever (default %s)", short(l.idle))},
		{Long: "drain", Arg: "<time>", Ours: true,
			Help: fmt.Sprintf("after SIGTERM let connections go on for <time>, and end with status 0 (default %v)", l.drain)},
	}
}

// maxClients bounds --clients.
const maxClients = 1 << 20

// short is a duration as people write it.
func short(d time.Duration) string {
	if d >= time.Hour {
		return strconv.Itoa(int(d/time.Hour)) + "h"
	}
	return strconv.Itoa(int(d/time.Minute)) + "m"
}

// set takes a flag, and reports whether it is one of the limits.
func (l *limits) set(name, arg string) (ok bool, err error) {
	switch name {
	case "clients":
		if l.clients, err = strconv.Atoi(arg); err != nil || l.clients < 1 || l.clients > maxClients {
			err = fmt.Errorf("--clients %q: give a number from 1 to %d", arg, maxClients)
		}
	case "idle":
		if l.idle, err = time.ParseDuration(arg); err != nil || l.idle < 0 {
			err = fmt.Errorf("--idle %q: give a time such as 90s or 2m, or 0", arg)
		}
	case "drain":
		if l.drain, err = time.ParseDuration(arg); err != nil || l.drain < 0 {
			err = fmt.Errorf("--drain %q: give a time such as 10s, or 0", arg)
		}
	default:
		return false, nil
	}
	return true, err
}

func newService(inv *cli.Invocation, l limits, refuse func(net.Conn)) *service {
	ctx, end := context.WithCancel(context.WithoutCancel(inv.Ctx))
	s := &service{inv: inv, ctx: ctx, end: end, limits: l, refuse: refuse, started: time.Now(), leaving: make(chan struct{}, maxLeaving),
		clients: crowd.New[*client](l.clients, (l.clients+1)/2)}
	context.AfterFunc(inv.Ctx, s.drain)
	return s
}

// client is a connection that a service has taken.
type client struct {
	net.Conn
	s    *service
	seat crowd.Seat[*client]

	// ctx ends when the connection is to end. Its cause says why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	closes func() bool // stops ctx from closing the connection

	last    atomic.Int64 // when something came, since the service began
	counted atomic.Int64 // when the crowd heard of that
	timer   *time.Timer  // or nil

	drains sync.WaitGroup // of a proxy: those that read bytes that nobody takes
}

// run takes connections until the user interrupts it, and has each served. serve closes nothing. After SIGTERM the clients
// have some time to go on.
func (s *service) run(l net.Listener, serve func(*client)) error {
	defer s.end()
	defer context.AfterFunc(s.inv.Ctx, func() { l.Close() })()
	var work sync.WaitGroup
	defer work.Wait()
	for said := false; ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			said = false
		case passes(err): // clients that end make room for others
			if !said {
				s.inv.Explain(fmt.Errorf("no connection can be taken for now: %w", err))
			}
			said = true
			select {
			case <-s.inv.Ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		default:
			l.Close()
			return err
		}
		if c := s.admit(conn); c != nil {
			work.Go(func() {
				defer c.end()
				serve(c)
			})
		}
	}
}

// drain waits for the clients to end, and ends those that stay.
func (s *service) drain() {
	defer s.end()
	if !s.inv.Terminated() {
		return
	}
	limit := time.NewTimer(s.limits.drain)
	defer limit.Stop()
	select {
	case <-limit.C:
		s.inv.Explain(fmt.Errorf("end the connections that are open: they were for %v after SIGTERM (--drain)", s.limits.drain))
	case <-s.inv.Again():
	case <-s.ctx.Done(): // all have ended
	}
}

// passes reports whether an error of Accept is of the moment: the caller has gone, or the process or the host has no
// room for more.
func passes(err error) bool {
	for _, errno := range [...]syscall.Errno{syscall.ECONNABORTED, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// sourceOf returns the address that a connection comes from. Those of unix sockets have none, and count as one host.
func sourceOf(conn net.Conn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// admit makes a client of a connection. It turns the connection away, and returns nil, if there is no room.
func (s *service) admit(conn net.Conn) *client {
	c := &client{Conn: conn, s: s}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	c.last.Store(int64(time.Since(s.started)))
	from := sourceOf(conn)
	s.mu.Lock()
	loser, ok := s.clients.Room(from)
	if loser != nil {
		loser.seat.Leave()
	}
	if ok {
		s.clients.Take(&c.seat, from, c)
	}
	s.mu.Unlock()
	if loser != nil {
		loser.cancel(errDisplaced)
	}
	if !ok {
		c.cancel(nil)
		s.turnAway(conn)
		return nil
	}
	c.closes = context.AfterFunc(c.ctx, func() { conn.Close() })
	if s.limits.idle > 0 {
		c.timer = time.AfterFunc(math.MaxInt64, c.look) // which needs the timer
		c.timer.Reset(s.limits.idle)
	}
	return c
}

// turnAway ends a connection for which there is no room.
func (s *service) turnAway(conn net.Conn) {
	s.mu.Lock()
	s.refused++
	n := s.refused
	if now := time.Now(); now.Sub(s.told) >= refusalPause {
		s.told, s.refused = now, 0
	} else {
		n = 0
	}
	s.mu.Unlock()
	if n > 0 {
		s.inv.Explain(fmt.Errorf("no room for %d more of %v's connections: half of --clients %d are of one host at most", n, sourceOf(conn), s.limits.clients))
	}
	select {
	case s.leaving <- struct{}{}:
		go func() {
			if s.refuse != nil {
				s.refuse(conn)
			}
			conn.Close()
			<-s.leaving
		}()
	default:
		if l, ok := conn.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0) // so that Close waits for nobody
		}
		conn.Close()
	}
}

// end gives a client's place back.
func (c *client) end() {
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.closes() { // not before the written bytes have gone: the process may end then
		c.Close()
	}
	c.cancel(nil)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.seat.Leave()
}

// heard takes note that something has come, or that the service itself is at work for the client.
func (c *client) heard() {
	now := int64(time.Since(c.s.started))
	c.last.Store(now)
	if now-c.counted.Load() < int64(refreshPause) {
		return
	}
	c.counted.Store(now)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.seat.Refresh()
}

// look ends a client that was silent for too long.
func (c *client) look() {
	if left := c.s.limits.idle - (time.Since(c.s.started) - time.Duration(c.last.Load())); left > 0 {
		c.timer.Reset(left)
		return
	}
	c.cancel(errIdle)
}

// why returns why the service has ended a connection, or err if it has not.
func (c *client) why(err error) error {
	if cause := context.Cause(c.ctx); cause != nil && c.s.ctx.Err() == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// noting reads bytes from a client, or to it, and takes note.
type noting struct {
	io.Reader
	c *client
}

func (n noting) Read(b []byte) (int, error) {
	k, err := n.Reader.Read(b)
	if k > 0 {
		n.c.heard()
	}
	return k, err
}
