package rnic

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// traced is a connection with something around it, that shows what it has inside.
type traced struct{ wrapped }

func (t traced) NetConn() net.Conn { return t.Conn }

// TestKeepAlive asks the system what TCP does for periods that were set before and after the connection was
// made, through what traces it too. A QP without a period leaves it alone, and 0 turns it off.
func TestKeepAlive(t *testing.T) {
	options := func(c *net.TCPConn) (on, idle, interval, count int) {
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
	check := func(when string, c *net.TCPConn, idle, interval, count int) {
		t.Helper()
		if on, i, v, n := options(c); on != 1 || i != idle || v != interval || n != count {
			t.Errorf("%s: keep-alive %d after %d s, each %d s, %d times; want 1, %d, %d, %d", when, on, i, v, n, idle, interval, count)
		}
	}
	for _, wrap := range []bool{false, true} {
		x, y := ends(t)
		a, b := tcpPair(t)
		socket := a.(*net.TCPConn)
		if wrap {
			a = traced{wrapped{a}}
		}
		_, idle, interval, count := options(b.(*net.TCPConn))
		x.must(x.qp.SetKeepAlive(1500 * time.Millisecond))
		tx, ty := agree(t, deep, deep, nil)
		x.attach(a, tx)
		y.attach(b, ty)
		check("before the connection", socket, 2, 1, 5)
		check("never", b.(*net.TCPConn), idle, interval, count)
		x.must(x.qp.SetKeepAlive(7 * time.Second))
		check("during the connection", socket, 7, 1, 5)
		x.must(x.qp.SetKeepAlive(0))
		if on, _, _, _ := options(socket); on != 0 {
			t.Error("a period of 0 has not turned keep-alive off")
		}
	}
}
