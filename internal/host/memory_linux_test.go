//go:build !adverb_portable

package host

import (
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// shareMemory makes a Netdev that takes lanes, with a block.
func shareMemory(t *testing.T, addr netip.Addr) *member {
	t.Helper()
	m := &member{netdev: shareLoopback(t, addr)}
	m.netdev.ShareMemory()
	m.netdev.lanes.Patience = patience // the machine may be busy
	m.block = m.claim(t)
	t.Cleanup(func() { m.netdev.Close() })
	return m
}

func (m *member) qpn() uint32 { return m.block<<blockBits | 5 }

// TestNoLane: packets to a process that does not share memory, to nobody, and to an address that the process
// does not have, go by the network.
func TestNoLane(t *testing.T) {
	a, b := testAddr(64), testAddr(65)
	x := shareMemory(t, a)
	y := &member{netdev: shareLoopback(t, b)}
	y.block = y.claim(t)
	defer y.netdev.Close()
	if x.netdev.Lane(a, b, y.qpn()) != nil {
		t.Error("a lane to a process that shares no memory")
	}
	if x.netdev.Lane(a, testAddr(66), x.qpn()) != nil {
		t.Error("a lane to an address that the process does not have")
	}
	if y.netdev.Lane(b, a, x.qpn()) != nil {
		t.Error("a lane from a process that shares no memory")
	}
}

// TestRoomEndsWait: a sender that sleeps hears that a full lane has room again, and that its receiver ends.
func TestRoomEndsWait(t *testing.T) {
	a, b := testAddr(71), testAddr(72)
	x, y := shareMemory(t, a), shareMemory(t, b)
	l, err := x.netdev.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := x.netdev.Lane(a, b, y.qpn())
	if o == nil {
		t.Fatal("no lane")
	}
	in := y.netdev.Inbox(b).Lanes()[0]
	sleep := func() {
		for !o.AwaitRoom() {
			if err := l.Wait(-1); err != nil {
				t.Error(err)
				return
			}
		}
	}
	fill := func() (n int) {
		o.Lock()
		defer o.Unlock()
		for ; o.Reserve(4096) != nil; n++ {
			o.Commit(4096, 1)
		}
		o.Publish()
		return n
	}
	first := fill()
	filled, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		sleep()
		fill()
		close(filled)
		sleep()
	}()
	taken := 0
	for deadline := time.Now().Add(patience); taken < first; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d records after %v, want %d", taken, patience, first)
		}
		for ; taken < first && in.Next() != nil; taken++ {
		}
		in.Release()
	}
	<-filled
	y.netdev.Close()
	<-done
}
