package soft_test

import (
	"io"
	"net"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// BenchmarkIWARPWrite compares WRITEs of 1 MiB over iWARP, with CRCs and without, with Go's TCP over the same
// loopback. Each goes on until the peer has all.
func BenchmarkIWARPWrite(b *testing.B) {
	const size, depth = 1 << 20, 8
	b.Run("tcp", func(b *testing.B) {
		l, err := net.Listen("tcp", loopAddr(47)+":0")
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		b.SetBytes(size)
		n := int64(b.N) * size
		got := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{io.LimitReader(c, n)}, make([]byte, size))
			}
			got <- err
		}()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, size)
		b.ResetTimer()
		for range b.N {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		if err := <-got; err != nil {
			b.Fatal(err)
		}
	})
	for _, crc := range []string{"0", "1"} {
		b.Run("iwarp crc="+crc, func(b *testing.B) {
			b.Setenv("ADVERB_IWARP_CRC", crc)
			x, _, mx, my := iwarpPair(b, size, nil)
			b.SetBytes(size)
			b.ResetTimer()
			var wcs [depth]verbs.WC
			under := 0
			wait := func() {
				n, err := x.QP().SendCQ().Wait(b.Context(), wcs[:])
				if err != nil || wcs[0].Err() != nil {
					b.Fatal(err, wcs[0].Err())
				}
				under -= n
			}
			for range b.N {
				for under >= depth {
					wait()
				}
				if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mx.SGE(0, size)}, Remote: my.Remote(0)}}); err != nil {
					b.Fatal(err)
				}
				under++
			}
			// The answer to a READ says that the peer has all.
			if _, err := x.QP().PostSend([]verbs.SendWR{{Op: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mx.SGE(0, 8)}, Remote: my.Remote(0)}}); err != nil {
				b.Fatal(err)
			}
			for under++; under > 0; {
				wait()
			}
		})
	}
}
