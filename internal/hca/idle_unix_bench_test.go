//go:build unix

package hca_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// dialMany connects n QPs of the two sides by the connection manager, 16 at a time.
func dialMany(b *testing.B, x, y *side, n int, keepAlive time.Duration) {
	b.Helper()
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{y.dev}}).Listen(netip.AddrPortFrom(y.gid.Addr(), 0))
	x.must(err)
	b.Cleanup(func() { l.Close() })
	const atATime = 16
	var group sync.WaitGroup
	errs := make(chan error, 2*atATime)
	dialer := rdmacm.Dialer{Devices: []*verbs.Device{x.dev}}
	for range atATime {
		group.Go(func() {
			for range n / atATime {
				c, err := dialer.Dial(context.Background(), l.Addr(), &rdmacm.Config{PD: x.pd, QP: x.attr(1), KeepAlive: keepAlive})
				if err != nil {
					errs <- err
					return
				}
				b.Cleanup(func() { c.Close() })
			}
		})
		group.Go(func() {
			for range n / atATime {
				r, err := l.Accept(context.Background())
				if err == nil {
					var c *rdmacm.Conn
					if c, err = r.Accept(context.Background(), &rdmacm.Config{PD: y.pd, QP: y.attr(1), KeepAlive: keepAlive}); err == nil {
						b.Cleanup(func() { c.Close() })
					}
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		b.Fatal(err)
	default:
	}
}

// BenchmarkIdle is the CPU time of a process with both ends of 10,000 connections that do nothing: each operation is
// a second of it. It prints how long it took to connect them, by the connection manager.
func BenchmarkIdle(b *testing.B) {
	const n = 10000
	for _, carrier := range []string{"udp", "shm"} {
		for _, keepAlive := range []time.Duration{-1, rdmacm.DefaultKeepAlive} {
			b.Run(fmt.Sprintf("%s/keepalive=%v", carrier, max(0, keepAlive)), func(b *testing.B) {
				dx, dy := twoDevices(b, carrier)
				x, y := newSide(b, dx, 64), newSide(b, dy, 64)
				start := time.Now()
				dialMany(b, x, y, n, keepAlive)
				connected := time.Since(start)
				before := cpuTime()
				for b.Loop() {
					idle(time.Second)
				}
				b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "CPU-µs/s")
				b.ReportMetric(float64(connected.Microseconds())/n, "µs/connection")
			})
		}
	}
}

// idle does nothing for a while.
func idle(d time.Duration) { <-time.After(d) }

// cpuTime returns how much CPU time the process has had.
func cpuTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
