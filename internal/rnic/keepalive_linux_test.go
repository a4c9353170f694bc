package rnic

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// traced is a connection with something around it, that shows what it has inside.
type traced struct{ wrapped }

func (t traced) NetConn() net.Conn { return t.Conn }

// TestKeepAlive asks the system for TCP's options, for periods that were set before and after the
// connection was made, with a trace around the connection too. A QP without a period leaves TCP's
// keep-alive alone, and 0 turns it off.
func TestKeepAlive(t *testing.T) {
	options := func(c syscall.Conn) (on, idle, interval, count int) {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			for _, o := range []struct {
				level, name int
				to          *int
			}{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, &on}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, &idle},
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, &interval}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, &count}} {
				if *o.to, err = unix.GetsockoptInt(int(fd), o.level, o.name); err != nil {
					t.Error(err)
				}
			}
		})
		return on, idle, interval, count
	}
	check := func(when string, c syscall.Conn, idle, interval, count int) {
		t.Helper()
		if on, i, v, n := options(c); on != 1 || i != idle || v != interval || n != count {
			t.Errorf("%s: keep-alive %d after %d s, each %d s, %d times; want 1, %d, %d, %d", when, on, i, v, n, idle, interval, count)
		}
	}
	for _, wrap := range []bool{false, true} {
		x, y := ends(t)
		a, b := tcpPair(t)
		socket, other := descriptor(t, a), descriptor(t, b)
		if wrap {
			a = traced{wrapped{a}}
		}
		_, idle, interval, count := options(other)
		x.must(x.qp.SetKeepAlive(1500 * time.Millisecond))
		tx, ty := agree(t, deep, deep, nil)
		x.attach(a, tx)
		y.attach(b, ty)
		check("before the connection", socket, 2, 1, 5)
		if got := userTimeout(t, socket); got != 7*time.Second { // 1.5 s are 2 for TCP
			t.Errorf("what was sent may lack its acknowledgement for %v, want 7s", got)
		}
		if got := userTimeout(t, other); got != 0 {
			t.Errorf("a QP without a period has a timeout of %v, want the system's", got)
		}
		check("never", other, idle, interval, count)
		x.must(x.qp.SetKeepAlive(7 * time.Second))
		check("during the connection", socket, 7, 1, 5)
		x.must(x.qp.SetKeepAlive(0))
		if on, _, _, _ := options(socket); on != 0 {
			t.Error("a period of 0 has not turned keep-alive off")
		}
		if got := userTimeout(t, socket); got != 0 {
			t.Errorf("after a period of 0: a timeout of %v, want the system's", got)
		}
	}
}

// userTimeout asks the system how long data may stay unacknowledged.
func userTimeout(t *testing.T, c syscall.Conn) time.Duration {
	t.Helper()
	ms := 0
	onSocket(t, c, func(fd int) (err error) {
		ms, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		return err
	})
	return time.Duration(ms) * time.Millisecond
}

// descriptor returns another descriptor of a connection's socket: the device takes the connection's own.
func descriptor(t *testing.T, c net.Conn) *os.File {
	t.Helper()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func onSocket(t *testing.T, c syscall.Conn, do func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// A peer that vanishes with bytes to acknowledge is noticed after the period and the time of the questions, and not
// by the system's patience of a quarter of an hour. Its socket here has a filter that drops all packets.
func TestVanishedWithData(t *testing.T) {
	if testing.Short() {
		t.Skip("TCP counts in seconds")
	}
	x, y := ends(t)
	a, b := tcpPair(t)
	peer := descriptor(t, b)
	tx, ty := agree(t, deep, deep, nil)
	x.attach(a, tx)
	y.attach(b, ty)
	src, dst := x.mr(4096), y.mr(4096)
	x.write(src, dst) // both are there
	x.must(x.qp.SetKeepAlive(time.Millisecond))
	onSocket(t, peer, func(fd int) error {
		drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	})
	begun := time.Now()
	x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.SGE(0, src.Len())}, Remote: dst.Remote(0)})
	x.done() // the stream has taken it
	if ev := x.event(); ev.Type != verbs.EventQPFatal || !errors.Is(ev.Cause, verbs.WCRetryExceeded) || !errors.Is(ev.Cause, syscall.ETIMEDOUT) {
		t.Errorf("got %v with cause %v, want EventQPFatal, of %v and %v", ev.Type, ev.Cause, verbs.WCRetryExceeded, syscall.ETIMEDOUT)
	}
	if took, want := time.Since(begun), (idleTime{time.Millisecond, true}).userTimeout(); took < want-time.Second {
		t.Errorf("the peer was given up after %v, want %v", took, want)
	}
}
