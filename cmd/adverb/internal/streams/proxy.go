// Package streams has the commands that move streams of bytes by package rsocket: proxy and rcopy.
package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
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
	Flags: []cli.Flag{cm.PSKFlag},
	Forms: []cli.Form{{Args: "<listen> <connect>", Does: "take connections at one address, and pass each on to the other"}},
	More: "An address is tcp:HOST:PORT, unix:PATH or rdma:HOST:PORT, where RDMA is the rsocket protocol.\n" +
		"A program that knows nothing of RDMA gets it by a proxy at each end:\n" +
		"  PROG tcp:127.0.0.1:6379 rdma:192.0.2.1:7471    on the client's host\n" +
		"  PROG rdma::7471 tcp:127.0.0.1:6379             on the server's\n",
	Usage: cli.UsageLine,
	Run:   runProxy,
}

func runProxy(inv *cli.Invocation) int {
	inv.Endless = true
	var cfg rsocket.Config
	var refused error
	operands, code, ok := inv.Parse(cli.ExitUsage, func(name, arg string) bool {
		if name != "psk" {
			cli.Undeclared(name)
		}
		cfg.Security, refused = cm.ReadPSK(arg)
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
	err := proxy(inv.LockOutput(), cfg, operands[0], operands[1])
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
	return new(net.ListenConfig).Listen(ctx, kind, rest)
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
func proxy(inv *cli.Invocation, cfg rsocket.Config, from, to string) error {
	if _, _, err := split(to); err != nil {
		return err
	}
	l, err := listen(inv.Ctx, cfg, from)
	if err != nil {
		return err
	}
	inv.Printf("listening on %s\n", l.Addr())
	defer context.AfterFunc(inv.Ctx, func() { l.Close() })()
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := l.Accept()
		if passes(err) { // connections that end make room for others
			inv.Explain(err)
			select {
			case <-inv.Ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		if err != nil {
			l.Close()
			return err
		}
		conns.Go(func() {
			if err := pass(inv.Ctx, cfg, c, to); err != nil && inv.Ctx.Err() == nil {
				inv.Explain(fmt.Errorf("connection of %v: %w", c.RemoteAddr(), err))
			}
		})
	}
}

// acceptPause is how long the proxy waits when it can accept no connection for now.
const acceptPause = 100 * time.Millisecond

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

// pass passes one connection on. It closes c.
func pass(ctx context.Context, cfg rsocket.Config, c net.Conn, to string) error {
	defer c.Close()
	other, err := dial(ctx, cfg, to)
	if err != nil {
		return err
	}
	defer other.Close()
	defer context.AfterFunc(ctx, func() { c.Close(); other.Close() })()
	done := make(chan error, 1)
	go func() { done <- half(c, other) }()
	return errors.Join(half(other, c), <-done)
}

// half copies one direction to its end, and passes the end on. After an error it closes both, since the other
// direction would wait for ever. But one that takes no more may have answered before, as HTTP servers refuse what is too
// large: the answer still passes, and then its own end.
func half(dst, src net.Conn) error {
	_, err := io.Copy(dst, src)
	if err == nil {
		if w, ok := dst.(interface{ CloseWrite() error }); ok {
			err = w.CloseWrite()
		}
	}
	switch {
	case err == nil:
	case takesNoMore(err):
		go io.Copy(io.Discard, src) // until pass closes it: who sends may read the answer only afterwards
	default:
		dst.Close()
		src.Close()
	}
	if errors.Is(err, net.ErrClosed) { // the other direction has said why
		return nil
	}
	return err
}

// takesNoMore reports whether an error of io.Copy is that its writer has failed.
func takesNoMore(err error) bool {
	var innermost *net.OpError
	for e := err; errors.As(e, &innermost); e = innermost.Err {
	}
	return errors.Is(err, syscall.EPIPE) || innermost != nil && innermost.Op == "write"
}
