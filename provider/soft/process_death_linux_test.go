//go:build !adverb_portable

package soft_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// envMortal makes the test binary a program that connects, by a device, to an address: "device address".
// It prints a line when it is connected, and another when the connection has ended. With "device listen
// address" it accepts connections there, and prints the address with its port first.
const envMortal = "ADVERB_TEST_MORTAL"

func init() {
	if s := os.Getenv(envMortal); s != "" {
		if err := mortal(s); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func mortal(args string) error {
	var device, to string
	if _, err := fmt.Sscan(args, &device, &to); err != nil {
		return err
	}
	dev, err := verbs.Open(device)
	if err != nil {
		return err
	}
	if at, ok := strings.CutPrefix(args, device+" listen "); ok {
		return mortalServer(dev, at)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(ctx, netip.MustParseAddrPort(to), &rdmacm.Config{KeepAlive: -1})
	if err != nil {
		return err
	}
	fmt.Println("connected", c.LocalAddr())
	go func() {
		<-c.Disconnected()
		fmt.Println("ended:", c.Cause())
	}()
	io.Copy(io.Discard, os.Stdin) // until the test ends
	return nil
}

func mortalServer(dev *verbs.Device, at string) error {
	addr, err := netip.ParseAddr(at)
	if err != nil {
		return err
	}
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(addr, 0))
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		r, err := l.Accept(context.Background())
		if err != nil {
			return err
		}
		if _, err := r.Accept(context.Background(), &rdmacm.Config{KeepAlive: -1}); err != nil {
			return err
		}
	}
}

// life is a mortal, with its connection as the test's process has it.
type life struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
	conn  *rdmacm.Conn
}

// bear starts a mortal and accepts its connection.
func bear(t *testing.T, l *rdmacm.Listener, device string, c *rdmacm.Config) *life {
	t.Helper()
	m := startMortal(t, device+" "+l.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if m.conn, err = r.Accept(ctx, c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	if !m.lines.Scan() || !strings.HasPrefix(m.lines.Text(), "connected") {
		t.Fatalf("a mortal: got line %q, want that it is connected", m.lines.Text())
	}
	return m
}

// startMortal starts a mortal.
func startMortal(t *testing.T, args string) *life {
	t.Helper()
	m := &life{cmd: exec.Command(os.Args[0])}
	m.cmd.Env = append(os.Environ(), envMortal+"="+args)
	m.cmd.Stderr = os.Stderr
	in, err := m.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		m.cmd.Process.Kill()
		m.cmd.Wait()
	})
	m.lines = bufio.NewScanner(out)
	return m
}

// serveAt starts a mortal that accepts connections, and returns where.
func serveAt(t *testing.T, lo, addr string) (*life, netip.AddrPort) {
	t.Helper()
	m := startMortal(t, lo+"@"+addr+" listen "+addr)
	m.lines.Scan()
	at, err := netip.ParseAddrPort(m.lines.Text())
	if err != nil {
		t.Fatalf("a mortal that listens: got line %q, want its address: %v", m.lines.Text(), err)
	}
	return m, at
}

// awaitHeir waits until one of other processes has taken the mortal's will, which can take long on a busy
// machine. Before that nobody can speak for the mortal.
func (m *life) awaitHeir(t *testing.T, heirs ...int) {
	t.Helper()
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		for will := range wills(t, m.cmd.Process.Pid, "rw-s") {
			for _, pid := range heirs {
				if wills(t, pid, "r--s")[will] {
					return
				}
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("no process has become an heir within %v", patience)
		}
	}
}

// wills returns the inodes of those wills that a process has mapped: its own to write, others' to read.
func wills(t *testing.T, pid int, mode string) map[string]bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	inodes := map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && f[1] == mode && strings.HasPrefix(f[5], "/memfd:adverb-will") {
			inodes[f[4]] = true
		}
	}
	return inodes
}

// ended waits for the end of the connection as the test's process has it.
func (m *life) ended(t *testing.T) error {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case <-m.conn.Disconnected():
	case <-limit.C:
		t.Fatalf("a peer was killed, and nobody has told within %v", patience)
	}
	return m.conn.Cause()
}

// TestKilledPeer kills processes, as kill -9 does, whose peer only waits and asks for no sign of life.
// Others at the address of the dead tell it: another process or, at the same address, the peer itself.
// Connections of those that live are not hurt.
func TestKilledPeer(t *testing.T) {
	lo := loopback(t)
	for _, c := range []struct{ name, server, clients string }{
		{"told by a third", loopAddr(101), loopAddr(102)},
		{"told by oneself", loopAddr(103), loopAddr(103)},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listenAt(t, lo, c.server)
			silent := &rdmacm.Config{KeepAlive: -1}
			survivor := bear(t, l, lo+"@"+c.clients, silent)
			for range 3 {
				dead := bear(t, l, lo+"@"+c.clients, silent)
				dead.awaitHeir(t, survivor.cmd.Process.Pid, os.Getpid())
				dead.cmd.Process.Kill()
				if err := dead.ended(t); !errors.Is(err, rdmacm.ErrDisconnected) {
					t.Errorf("a killed peer: got cause %v, want %v", err, rdmacm.ErrDisconnected)
				}
			}
			alive(t, survivor)
		})
	}
}

// TestKilledServer kills a server, as kill -9 does. Another process at its address tells all its
// clients, which only wait and ask for no sign of life. The other process's own client is not hurt.
func TestKilledServer(t *testing.T) {
	lo := loopback(t)
	addr := loopAddr(106)
	other, otherAt := serveAt(t, lo, addr)
	dead, at := serveAt(t, lo, addr)
	dev, err := verbs.Open(lo + "@" + loopAddr(107))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	dial := func(m *life, to netip.AddrPort) *life {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{dev}}).Dial(ctx, to, &rdmacm.Config{KeepAlive: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return &life{cmd: m.cmd, conn: c}
	}
	survivor := dial(other, otherAt)
	var clients []*life
	for range 10 {
		clients = append(clients, dial(dead, at))
	}
	dead.awaitHeir(t, other.cmd.Process.Pid)
	dead.cmd.Process.Kill()
	for _, c := range clients {
		if err := c.ended(t); !errors.Is(err, rdmacm.ErrDisconnected) {
			t.Errorf("a client of a killed server: got cause %v, want %v", err, rdmacm.ErrDisconnected)
		}
	}
	alive(t, survivor)
}

// TestKilledAlone kills a process that shares its address with nobody. Keep-alive ends the connection.
func TestKilledAlone(t *testing.T) {
	lo := loopback(t)
	l := listenAt(t, lo, loopAddr(104))
	dead := bear(t, l, lo+"@"+loopAddr(105), &rdmacm.Config{KeepAlive: 500 * time.Millisecond})
	dead.cmd.Process.Kill()
	if err := dead.ended(t); !errors.Is(err, rdmacm.ErrTimeout) || !errors.Is(err, verbs.WCRetryExceeded) {
		t.Errorf("a killed peer: got cause %v, want %v", err, rdmacm.ErrTimeout)
	}
}

func listenAt(t *testing.T, lo, addr string) *rdmacm.Listener {
	t.Helper()
	dev, err := verbs.Open(lo + "@" + addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(addr), 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// alive fails the test unless a connection works.
func alive(t *testing.T, m *life) {
	t.Helper()
	if err := m.conn.Cause(); err != nil {
		t.Fatalf("the connection of a survivor has ended: %v", err)
	}
	if _, err := m.conn.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wcs [1]verbs.WC
	if _, err := m.conn.SendCQ().Wait(ctx, wcs[:]); err != nil {
		t.Fatal(err)
	}
	if err := wcs[0].Err(); err != nil {
		t.Errorf("a survivor: %v", err)
	}
}
