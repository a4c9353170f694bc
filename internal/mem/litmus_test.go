package mem

import (
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/litmus"
	"github.com/adverb-rdma/adverb/verbs"
)

// write writes for longer than Close takes. A test sees the last word.
func write(s Span) {
	for i := range s.Bytes() {
		s.Bytes()[len(s.Bytes())-1-i] = 1
	}
}

// TestLitmusOpenVersusClose: once Close has returned, nobody changes the memory any more.
func TestLitmusOpenVersusClose(t *testing.T) {
	p := newPD(t)
	buf := make([]byte, 4096)
	var r *Region
	litmus.Race(t, 10, func() { r = region(t, p, verbs.MRAttr{Buf: buf, Access: everything}) }, func() {
		if s, err := p.Open(r.RKey(), 1, r.Addr(), 4096, verbs.AccessRemoteWrite); err == nil {
			write(s)
			s.Release()
		}
	}, func() {
		r.Close()
		buf[0] = 2
	}, func() string {
		if buf[0] != 2 {
			return "the memory was written after Close"
		}
		return ""
	})
}

// TestLitmusKeeperVersusClose: nor does who keeps the memory by a lock.
func TestLitmusKeeperVersusClose(t *testing.T) {
	p := newPD(t)
	buf := make([]byte, 4096)
	var r *Region
	var lock sync.Mutex
	k := NewKeeper(&lock)
	open := func() {
		lock.Lock()
		defer lock.Unlock()
		if s, err := k.Open(p, r.RKey(), 1, r.Addr(), 4096, verbs.AccessRemoteWrite); err == nil {
			write(s)
			s.Release()
		}
	}
	litmus.Race(t, 30, func() {
		r = region(t, p, verbs.MRAttr{Buf: buf, Access: everything})
		for range keepFrom {
			open()
		}
		if k.region != r {
			t.Fatal("the region is not kept")
		}
	}, open, func() {
		r.Close()
		buf[0] = 2
	}, func() string {
		if buf[0] != 2 {
			return "the memory was written after Close"
		}
		return ""
	})
}
