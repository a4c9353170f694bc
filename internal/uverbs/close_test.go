//go:build linux

package uverbs

import (
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestCloseWhilePosting: a program may end, or be killed, while its doorbell is answered.
func TestCloseWhilePosting(t *testing.T) {
	for range 20 {
		x, _, _, _ := two(t)
		rung, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			ring := sync.OnceFunc(func() { close(rung) })
			defer ring()
			for {
				x.sq.push(func(e []byte) { // unless it is full
					clear(e)
					le.PutUint32(e[12:], uint32(verbs.OpRDMAWrite))
				})
				if x.p.c.Doorbell(x.handle) != nil {
					return
				}
				ring()
			}
		}()
		<-rung
		if err := x.p.c.Close(); err != nil {
			t.Errorf("close: got %v", err)
		}
		<-ended
	}
}
