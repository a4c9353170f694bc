// Package streams has the commands that move streams of bytes by package rsocket: proxy, rcopy, rstream and riostream.
package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rsocket"
)

// Proxy is the command proxy.
var Proxy = &cli.Command{
	Name:  "proxy",
	Short: "Carry TCP or Unix connections over RDMA, and back",
	Flags: append([]cli.Flag{cm.PSKFlag}, proxyLimits.flags()...),
	Forms: []cli.Form{{Args: "<listen> <connect>", Does: "take connections at one address, and pass each on to the other"}},
	More: "An address is tcp:HOST:PORT, unix:PATH or rdma:HOST:PORT, where RDMA is the rsocket protocol.\n" +
		"A program that knows nothing of RDMA gets it by a proxy at each end:\n" +
		"  PROG tcp:127.0.0.1:6379 rdma:192.0.2.1:7471    on the client's host\n" +
		"  PROG rdma::7471 tcp:127.0.0.1:6379             on the server's\n" +
		"A socket that a killed program has left at PATH is replaced.\n",
	Usage: cli.UsageLine,
	Run:   runProxy,
}

// proxyLimits are the limits of a proxy unless the user says otherwise.
var proxyLimits = limits{clients: 2048, idle: time.Hour, drain: drainTime}

// dialTime is how long the other address of a proxy may take to answer.
const dialTime = 20 * time.Second

// resetTime is how long one whose peer takes no more may go on sending, until it reads the answer and closes.
var resetTime = 5 * time.Second // tests have less

func runProxy(inv *cli.Invocation) int {
	inv.Endless = true
	var cfg rsocket.Config
	var refused error
	limits := proxyLimits
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		var err error
		if name == "psk" {
			cfg.Security, err = cm.ReadPSK(arg)
		} else {
			var ok bool
			if ok, err = limits.set(name, arg); !ok {
				cli.Undeclared(name)
			}
		}
		refused = cmp.Or(err, refused)
		return true
	})
	if !ok {
		return code
	}
	if len(operands) != 2 {
		inv.Errorf("%s: %q: two addresses are needed\n", inv.Prog, operands)
		inv.PrintUsage()
		return cli.ExitUsage
	}
	if refused != nil {
		return inv.Fail(refused, "")
	}
	err := proxy(inv.LockOutput(), limits, cfg, operands[0], operands[1])
	return inv.Finish(err, func(err error) int { return inv.Fail(err, "") })
}

// split cuts an address into its kind and the rest.
func split(address string) (kind, rest string, err error) {
	kind, rest, ok := strings.Cut(address, ":")
	switch {
	case ok && (kind == "tcp" || kind == "rdma"):
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return "", "", fmt.Errorf("%s: %w", address, err)
		}
		return kind, rest, nil
	case ok && kind == "unix" && rest != "":
		return kind, rest, nil
	}
	return "", "", fmt.Errorf("%q is no address: write tcp:HOST:PORT, unix:PATH or rdma:HOST:PORT", address)
}

func listen(ctx context.Context, cfg rsocket.Config, address string) (net.Listener, error) {
	kind, rest, err := split(address)
	switch {
	case err != nil:
		return nil, err
	case kind == "rdma":
		return (&rsocket.ListenConfig{Config: cfg}).Listen(ctx, "rsocket", rest)
	}
	l, err := new(net.ListenConfig).Listen(ctx, kind, rest)
	if kind == "unix" && errors.Is(err, syscall.EADDRINUSE) {
		return listenAgain(ctx, rest, err)
	}
	return l, err
}

// listenAgain listens at the path of a socket that a killed program has left behind. refused is why nobody can listen
// there as it is.
func listenAgain(ctx context.Context, path string, refused error) (net.Listener, error) {
	before, err := os.Lstat(path)
	if err != nil || before.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("%w: it is no socket", refused)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		conn.Close()
		return nil, fmt.Errorf("%w: a program listens there", refused)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: whether a program listens there is not known: %w", refused, err)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
		return nil, fmt.Errorf("%w: another program has just taken it", refused)
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("%w: nobody listens there: %w", refused, err)
	}
	return new(net.ListenConfig).Listen(ctx, "unix", path)
}

func dial(ctx context.Context, cfg rsocket.Config, address string) (net.Conn, error) {
	kind, rest, err := split(address)
	switch {
	case err != nil:
		return nil, err
	case kind == "rdma":
		return (&rsocket.Dialer{Config: cfg}).DialContext(ctx, "rsocket", rest)
	}
	return new(net.Dialer).DialContext(ctx, kind, rest)
}

// proxy passes connections on until the user interrupts it.
func proxy(inv *cli.Invocation, limits limits, cfg rsocket.Config, from, to string) error {
	if _, _, err := split(to); err != nil {
		return err
	}
	l, err := listen(inv.Ctx, cfg, from)
	if err != nil {
		return err
	}
	inv.Printf("listening on %s\n", l.Addr())
	return newService(inv, limits, nil).run(l, func(c *client) {
		if err := c.pass(cfg, to); err != nil && c.s.ctx.Err() == nil {
			inv.Explain(fmt.Errorf("connection of %v: %w", c.RemoteAddr(), err))
		}
	})
}

// pass passes a connection on.
func (c *client) pass(cfg rsocket.Config, to string) error {
	ctx, cancel := context.WithTimeout(c.ctx, dialTime)
	other, err := dial(ctx, cfg, to)
	cancel()
	if err != nil {
		return c.why(err)
	}
	defer other.Close()
	defer context.AfterFunc(c.ctx, func() { other.Close() })()
	done := make(chan error, 1)
	go func() { done <- c.half(c.Conn, other) }()
	err = errors.Join(c.half(other, c.Conn), <-done)
	limit := time.Now().Add(resetTime)
	_, _ = c.SetReadDeadline(limit), other.SetReadDeadline(limit)
	c.drains.Wait()
	return c.why(err)
}

// half copies one direction to its end, and passes the end on. After an error it closes both, since the other
// direction would wait for ever. There are two exceptions. An end that takes no more may have answered before, as
// HTTP servers refuse requests that are too large: the answer still passes, and then its own end. And an end that has
// closed with bytes unread has reset the connection behind its answer.
func (c *client) half(dst, src net.Conn) error {
	_, err := io.Copy(dst, noting{src, c})
	stuck := err != nil && takesNoMore(err)
	reset := !stuck && errors.Is(err, syscall.ECONNRESET)
	if err == nil || reset {
		if w, ok := dst.(interface{ CloseWrite() error }); ok {
			err = cmp.Or(err, w.CloseWrite())
		}
	}
	switch {
	case err == nil:
	case stuck:
		c.drains.Go(func() { io.Copy(io.Discard, src) }) // who sends may read the answer only afterwards
	case reset:
		_ = dst.SetReadDeadline(time.Now().Add(resetTime))
	default:
		dst.Close()
		src.Close()
	}
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) { // the other direction has said why
		return nil
	}
	return err
}

// takesNoMore reports whether an error of io.Copy is that its writer has failed.
func takesNoMore(err error) bool {
	var innermost *net.OpError
	for e := err; errors.As(e, &innermost); e = innermost.Err {
	}
	return errors.Is(err, syscall.EPIPE) || innermost != nil && (innermost.Op == "write" || innermost.Op == "readfrom")
}
