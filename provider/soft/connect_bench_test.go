package soft_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// BenchmarkConnect makes connections over loopback and takes them down, one after the other. It
// compares that with TCP in the same run: ×TCP is how many connections TCP makes in the time for
// one.
func BenchmarkConnect(b *testing.B) {
	l, err := rdmacm.Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		b.Skip(err)
	}
	defer l.Close()
	go func() {
		for {
			r, err := l.Accept(b.Context())
			if err != nil {
				return
			}
			c, err := r.Accept(b.Context(), &rdmacm.Config{QP: exchangeQP})
			if err != nil {
				continue // the dialer has closed already, and its DREQ overtook the RTU
			}
			go func() {
				<-c.Disconnected()
				c.Close()
			}()
		}
	}()
	n := 0
	for b.Loop() {
		c, err := rdmacm.Dial(b.Context(), l.Addr(), &rdmacm.Config{QP: exchangeQP})
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
		n++
	}
	each := b.Elapsed() / time.Duration(n)
	b.ReportMetric(float64(time.Second)/float64(each), "conn/s")
	if tcp := tcpConnect(b, min(n, 2000)); tcp > 0 {
		b.ReportMetric(float64(each)/float64(tcp), "×TCP")
	}
}

// tcpConnect returns how long a TCP connection takes to make and to close.
func tcpConnect(b *testing.B, n int) time.Duration {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				c.Read(make([]byte, 1)) // until the other end closes
				c.Close()
			}()
		}
	}()
	start := time.Now()
	for range n {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		c.(*net.TCPConn).CloseWrite()
		c.Read(make([]byte, 1))
		c.Close()
	}
	return time.Since(start) / time.Duration(n)
}

// exchangeQP describes the smallest QP that carries a message each way.
var exchangeQP = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}
