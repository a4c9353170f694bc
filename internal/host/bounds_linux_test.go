//go:build !adverb_portable

package host

import (
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
)

// A datagram for a QP of no process is counted as such where it has come: a wrong QPN is to be seen somewhere.
func TestNobodysQP(t *testing.T) {
	m := open(t, testAddr(87))
	defer m.leave()
	l := m.link.(*Link)
	nobodys := m.block
	for found := true; found; {
		nobodys++
		_, found = l.pass(blockName(nobodys), &link.Datagram{Src: l.Source(1), Dst: l.Addr(), Payload: packet(nobodys, 0)})
	}
	before := l.Stats()
	for i := range 5 {
		if l.sort([]link.Datagram{{Src: l.Source(1), Dst: l.Addr(), Payload: packet(nobodys, i)}}) != 0 {
			t.Fatal("the process keeps the datagram")
		}
	}
	if s := l.Stats(); s.NoQP-before.NoQP != 5 || s.ReceiveDrops != before.ReceiveDrops {
		t.Errorf("counted as nobody's: %d more, and as lost: %d; want 5 and none", s.NoQP-before.NoQP, s.ReceiveDrops-before.ReceiveDrops)
	}
}

// Datagrams that another process passes on wait in the inbox, injectedDatagrams at most.
func TestInboxBound(t *testing.T) {
	m := open(t, testAddr(50))
	defer m.leave()
	l := m.link.(*Link)
	for range injectedDatagrams + 10 {
		l.inject(link.Datagram{Src: l.Source(1), Dst: l.Addr(), Payload: []byte("x")})
	}
	if n := int(l.inboxLen.Load()); n != injectedDatagrams {
		t.Errorf("%d datagrams wait for Recv, want %d", n, injectedDatagrams)
	}
	if s := l.Stats(); s.ReceiveDrops != 10 || s.NoQP != 0 {
		t.Errorf("%d datagrams are counted as lost, and %d as nobody's; want 10 and none", s.ReceiveDrops, s.NoQP)
	}
	batch := make([]link.Datagram, injectedDatagrams+10)
	if n := l.takeInjected(batch); n != injectedDatagrams {
		t.Errorf("Recv gets %d datagrams, want %d", n, injectedDatagrams)
	}
}

// Messages for processes that have not proved who they are are held: heldPerOwner for each, and maxHeld
// for all.
func TestHeldBound(t *testing.T) {
	const boxes = 3
	ot := newOutletTest(t, boxes)
	o := ot.devices[0]
	held := 0
	for i := range boxes {
		sent := 0
		for range heldPerOwner + 10 {
			if ok, _ := o.pass(ot.boxes[i].name, []byte("message")); ok {
				sent++
			}
		}
		held += sent
		if want := min(heldPerOwner, maxHeld-i*heldPerOwner); sent != want {
			t.Errorf("%d messages are held for mailbox %d, want %d", sent, i, want)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if held != maxHeld || o.held != maxHeld {
		t.Errorf("%d messages are held, and %d counted, want %d", held, o.held, maxHeld)
	}
}

// The network may name any number of services. In a while maxLookups of them are looked up.
func TestLookupBound(t *testing.T) {
	o := newOwners(1, newOutletPool())
	t.Cleanup(o.close)
	o.lookupsSince = time.Now().Add(time.Hour) // so that the while does not end
	looked := 0
	for i := range uint64(2 * maxLookups) {
		if _, mayExist := o.pass(serviceName(testAddr(51), i), []byte("message")); !mayExist {
			looked++
		}
	}
	if looked != maxLookups {
		t.Errorf("%d services were looked up, want %d", looked, maxLookups)
	}
	if n := len(o.byName); n != 0 {
		t.Errorf("%d names of services that nobody serves are remembered, want none", n)
	}
}
