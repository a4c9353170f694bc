//go:build !adverb_portable

package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// receivesAll waits until a member has received the n datagrams that were sent to it, in any order.
func (m *member) receivesAll(t *testing.T, n int) {
	t.Helper()
	missing := map[string]bool{}
	for i := range n {
		missing[fmt.Sprintf("%06x %04d", m.block<<blockBits|5, i)] = true
	}
	for end := time.After(patience); len(missing) > 0; {
		select {
		case got := <-m.got:
			delete(missing, got)
		case <-end:
			t.Fatalf("%d of %d datagrams do not arrive at block %d, want all", len(missing), n, m.block)
		}
	}
}

// attract has all that comes to the address delivered to the socket of index i.
func attract(t *testing.T, l *Link, i uint32) {
	t.Helper()
	if err := l.Steer(program(nil, 0, i)); err != nil {
		t.Fatal(err)
	}
}

// Datagrams for others that have come to the socket of a process are not lost when the process ends. The other process takes
// few messages at a time, and the two have not met before.
func TestDepart(t *testing.T) {
	const n = 400
	addr := testAddr(79)
	stays := join(t, addr)
	persist(t, stays, stays, 9000)
	leaves := open(t, addr)
	l := leaves.link.(*Link)
	l.leaveTime = patience // a busy machine may take longer than a process that ends wants to wait
	for i := range n {
		attract(t, l, 1) // each time, since the other may have renewed the program
		stays.send(stays.block, i)
	}
	l.Depart()
	leaves.leave()
	if l.passed.Load() < n/2 {
		t.Errorf("%d datagrams were passed on, want most of %d: the others have not come to the socket", l.passed.Load(), n)
	}
	stays.receivesAll(t, n)
	stays.leave()
}

// No datagram comes to the socket of a process that has left but has not ended yet: nobody would read it.
func TestDepartCloses(t *testing.T) {
	const n = 50
	addr := testAddr(86)
	stays, leaves := join(t, addr), open(t, addr)
	leaves.link.(*Link).Depart()
	for i := range n {
		attract(t, stays.link.(*Link), 1) // each time, since the program may have been renewed
		stays.send(stays.block, i)
	}
	stays.receivesAll(t, n)
	leaves.leave()
	stays.leave()
}

// A process that ends no longer stands in for all at the address: a datagram for QP1 that belongs to nobody goes to
// the process that stands in now.
func TestDepartQP1(t *testing.T) {
	addr := testAddr(80)
	stays, leaves := join(t, addr), open(t, addr)
	leaves.netdev.ServeGSI(true)
	l := leaves.link.(*Link)
	attract(t, l, 1)
	stays.link.Send([]link.Datagram{{Src: stays.link.Source(0), Dst: stays.link.Addr(), Payload: mad(wire.CMREQ, service(), 1)}})
	l.part() // as Depart begins
	stays.netdev.ServeGSI(true)
	l.Depart()
	leaves.leave()
	select {
	case got := <-stays.got:
		if got != "000001 \x01\x07\x02\x03" {
			t.Errorf("received %q, want the message to QP1", got)
		}
	case <-time.After(patience):
		t.Error("the message to QP1 does not arrive")
	}
	stays.leave()
}

// A process that ends waits until others have taken the datagrams that it has passed on, and no longer.
func TestDrain(t *testing.T) {
	addr := testAddr(82)
	stays, leaves := join(t, addr), open(t, addr)
	l, o := leaves.link.(*Link), leaves.netdev.owners.Load()
	for i := range 100 {
		l.pass(blockName(stays.block), &link.Datagram{Src: l.Source(0), Dst: l.Addr(), Payload: packet(stays.block, i)})
	}
	began := time.Now()
	o.drain(patience)
	if took, n := time.Since(began), o.waiting(); took >= patience || n > 0 {
		t.Errorf("%d messages are held after %v, want that the wait ends when there are none", n, took)
	}
	stays.receivesAll(t, 100)
	leaves.leave()
	stays.leave()
}

// A process whose messages nobody takes does not wait for that.
func TestDepartSilent(t *testing.T) {
	addr := testAddr(81)
	stopped, end := silence(t, addr)
	defer end()
	leaves := open(t, addr)
	l := leaves.link.(*Link)
	d := link.Datagram{Src: l.Source(0), Dst: l.Addr(), Payload: packet(stopped, 1)}
	for range 100 {
		l.pass(blockName(stopped), &d)
	}
	o := leaves.netdev.owners.Load()
	o.drain(time.Millisecond)
	if n := o.waiting(); n != 100 {
		t.Errorf("%d messages are still held when who leaves has waited long enough, want all 100", n)
	}
	leaves.leave()
}

// waiting returns how many messages are held.
func (o *owners) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}
