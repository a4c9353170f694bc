package ucma

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// bytesIn returns how many events the program's descriptor tells of.
func (p *program) bytesIn() int {
	p.t.Helper()
	n, err := unix.IoctlGetInt(int(p.poll.Fd()), unix.TIOCINQ)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// TestPipe: the descriptor has a byte for each event that the program has not read, also when the program steals some.
func TestPipe(t *testing.T) {
	a, b := two(t)
	_, at := b.listener(uapi.PSTCP, 0)
	want := func(n int) {
		t.Helper()
		if got := a.bytesIn(); got != n {
			t.Errorf("got %d bytes, want %d", got, n)
		}
	}
	var ids []uint32
	resolve := func() {
		id, _ := a.create(uapi.PSTCP)
		a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, DstAddr: in6(at)}, nil)
		ids = append(ids, id)
		eventually(t, "the event is there", func() bool {
			a.m.mu.Lock()
			defer a.m.mu.Unlock()
			return len(a.f.queue) > 0 && a.f.queue[len(a.f.queue)-1].of.number == id
		})
	}
	want(0)
	for i := range 3 {
		resolve()
		want(i + 1)
	}
	a.next(rdmacm.EventAddrResolved)
	want(2)
	a.destroy(ids[1])
	want(1)
	if _, err := unix.Read(int(a.poll.Fd()), make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	want(0)
	a.next(rdmacm.EventAddrResolved)
	want(0)
	resolve()
	want(1)
	a.f.Close()
	if n, err := unix.Read(int(a.poll.Fd()), make([]byte, 9)); n != 0 || err != nil {
		t.Errorf("after the end: got %d bytes and error %v, want the end of the file", n, err)
	}
}
