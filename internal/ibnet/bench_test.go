package ibnet

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/link"
)

// BenchmarkSend sends packets through a switch, one at a time.
func BenchmarkSend(b *testing.B) {
	_, devs := subnet(b, 2)
	x, y := open(b, devs[0]), open(b, devs[1])
	out := []link.Datagram{datagram(b, devs[0], devs[1], false)}
	in := make([]link.Datagram, 1)
	for b.Loop() {
		if err := x.Send(out); err != nil {
			b.Fatal(err)
		}
		if n, err := y.Recv(in); n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}
