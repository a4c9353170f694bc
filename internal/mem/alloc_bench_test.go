package mem

import (
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// BenchmarkAllocMR allocates a region and closes it: the cost to a server that opens and closes connections.
func BenchmarkAllocMR(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 2 << 20} {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			p := newPD(b)
			for b.Loop() {
				r, err := p.register(verbs.MRAttr{Length: size, Access: verbs.AccessLocalWrite}, false)
				if err != nil {
					b.Fatal(err)
				}
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
