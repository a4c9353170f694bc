package hca_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/clock"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// loopback is the name of the loopback interface.
const loopback = "lo"

// processClock is the clock of all devices, as in package soft.
var processClock = sync.OnceValue(clock.New)

// openDevice opens a device as package soft does.
func openDevice(t testing.TB, n link.Netdev) *verbs.Device {
	t.Helper()
	p, err := hca.Open(n, hca.Config{Clock: processClock()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return verbs.NewDevice(p)
}

// udpDevice opens a device of its own on a loopback address.
func udpDevice(t testing.TB, addr string) *verbs.Device {
	t.Helper()
	netdev, err := udp.NetdevForAddr(loopback, netip.MustParseAddr(addr))
	if err != nil {
		t.Skipf("no loopback interface to test on: %v", err)
	}
	return openDevice(t, netdev)
}

// pair is two connected endpoints, over UDP or in memory.
func pair(b *testing.B, kind string) (x, y *rdmatest.Endpoint) {
	if kind == "udp" {
		return rdmatest.Connect(b, udpDevice(b, "127.0.101.1"), udpDevice(b, "127.0.101.2"))
	}
	n := sim.New(sim.Config{})
	return rdmatest.Connect(b, openDevice(b, n.Netdev("sim1", netip.MustParseAddr("10.0.0.1"))), openDevice(b, n.Netdev("sim2", netip.MustParseAddr("10.0.0.2"))))
}

// poll spins for a completion, as a benchmark's program does.
func poll(b *testing.B, e *rdmatest.Endpoint, wcs []verbs.WC) int {
	for {
		n, err := e.CQ.Poll(wcs)
		if err != nil {
			b.Fatal(err)
		}
		if n > 0 {
			if err := wcs[0].Err(); err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
}

// BenchmarkWrite is the bandwidth of WRITEs, 16 at a time, and over UDP its ratio to TCP's.
func BenchmarkWrite(b *testing.B) {
	for _, kind := range []string{"udp", "sim"} {
		for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", kind, size), func(b *testing.B) {
				x, y := pair(b, kind)
				src, dst := x.MR(size), y.MR(size)
				wrs := []verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{src.SGE(0, size)}, Remote: dst.Remote(0)}}
				wcs := make([]verbs.WC, 16)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				posted, done := 0, 0
				for b.Loop() {
					if posted-done == 16 {
						done += poll(b, x, wcs)
					}
					if _, err := x.QP.PostSend(wrs); err != nil {
						b.Fatal(err)
					}
					posted++
				}
				for done < posted {
					done += poll(b, x, wcs)
				}
				if kind == "udp" {
					rate := float64(posted*size) / b.Elapsed().Seconds()
					b.ReportMetric(rate/tcpRate(b, size, posted), "×TCP")
				}
			})
		}
	}
}

// BenchmarkRead is READs of one packet, one at a time, with both ends polled by one goroutine.
func BenchmarkRead(b *testing.B) { onePacket(b, verbs.OpRDMARead) }

// BenchmarkOneWrite is WRITEs of one packet, as BenchmarkRead is READs.
func BenchmarkOneWrite(b *testing.B) { onePacket(b, verbs.OpRDMAWrite) }

// onePacket is READs or WRITEs of one packet, over UDP and in memory.
func onePacket(b *testing.B, op verbs.Opcode) {
	for _, kind := range []string{"udp", "sim"} {
		b.Run(kind, func(b *testing.B) {
			x, y := pair(b, kind)
			mine, theirs := x.MR(64), y.MR(64)
			wrs := []verbs.SendWR{{Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, 64)}, Remote: theirs.Remote(0)}}
			oneByOne(b, x, y, wrs)
		})
	}
}

// oneByOne posts work requests at x and polls for the completion, with both ends polled by one goroutine.
func oneByOne(b *testing.B, x, y *rdmatest.Endpoint, wrs []verbs.SendWR) {
	wcs := make([]verbs.WC, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.QP.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		y.CQ.Poll(wcs) // lets the other end work
		poll(b, x, wcs)
	}
}

// tcpRate is what TCP over loopback moves, in bytes per second, by n writes of the given size: the
// peer that WRITEs are compared with, in the same run.
func tcpRate(b *testing.B, size, n int) float64 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	read := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 1<<20))
		}
		read <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	message := make([]byte, size)
	start := time.Now()
	for range n {
		if _, err := c.Write(message); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	if err := <-read; err != nil {
		b.Fatal(err)
	}
	return float64(n*size) / time.Since(start).Seconds()
}

// BenchmarkSendLatency is half a round trip of SENDs, with both ends polled by one goroutine.
func BenchmarkSendLatency(b *testing.B) {
	for _, kind := range []string{"udp", "sim"} {
		b.Run(kind, func(b *testing.B) {
			x, y := pair(b, kind)
			ends := [2]*rdmatest.Endpoint{x, y}
			var recv [2][]verbs.RecvWR
			var send [2][]verbs.SendWR
			for i, e := range ends {
				mr := e.MR(64)
				recv[i] = []verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 64)}}}
				send[i] = []verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 64)}}}
				e.Recv(recv[i]...)
			}
			wcs := make([]verbs.WC, 1)
			b.ReportAllocs()
			for b.Loop() {
				for i, e := range ends {
					if _, err := e.QP.PostSend(send[i]); err != nil {
						b.Fatal(err)
					}
					poll(b, ends[1-i], wcs) // the receive
					if _, err := ends[1-i].QP.PostRecv(recv[1-i]); err != nil {
						b.Fatal(err)
					}
					poll(b, e, wcs) // the send
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/oneway")
		})
	}
}

// BenchmarkPostPoll is the time to post a work request and to poll its completion, the
// network and the other end included, which are in memory.
func BenchmarkPostPoll(b *testing.B) {
	x, y := pair(b, "sim")
	dst := y.MR(64)
	wrs := []verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: make([]byte, 8), Remote: dst.Remote(0)}}
	oneByOne(b, x, y, wrs)
}
