//go:build !adverb_portable

package host

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// member is what a process is to the others: a Netdev with a block and a link. Several in one
// process look the same to each other as several processes.
type member struct {
	netdev *Netdev
	block  uint32
	link   link.Link
	got    chan string
	done   sync.WaitGroup
}

func join(t *testing.T, addr string) *member {
	t.Helper()
	u, err := udp.NetdevForAddr("lo", netip.MustParseAddr(addr))
	if err != nil {
		t.Skipf("no loopback interface: %v", err)
	}
	m := &member{netdev: Share(u), got: make(chan string, 1<<16)}
	for m.block = 1; ; m.block++ {
		ok, err := m.netdev.Claim(m.block)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			break
		}
	}
	if m.link, err = m.netdev.Open(netip.MustParseAddr(addr)); err != nil {
		t.Fatal(err)
	}
	m.done.Go(m.receive)
	return m
}

func (m *member) receive() {
	batch := make([]link.Datagram, 64)
	for {
		n, err := m.link.Recv(batch)
		if err != nil {
			return
		}
		for _, d := range batch[:n] {
			var p wire.Packet
			if p.Decode(d.Payload) == nil {
				m.got <- fmt.Sprintf("%06x %s", p.DestQP, p.Payload[:4])
			}
		}
		if n == 0 {
			if m.link.Wait(-1) != nil {
				return
			}
		}
	}
}

func (m *member) leave() {
	m.link.Close()
	m.done.Wait()
	m.netdev.Close()
}

// send sends a datagram to a block of its own address.
func (m *member) send(block uint32, n int) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: block<<blockBits | 5}, Payload: []byte(fmt.Sprintf("%04d", n))}
	m.link.Send([]link.Datagram{{Src: m.link.Source(uint32(n)), Dst: m.link.Addr(), Payload: p.AppendTo(nil)}})
}

func (m *member) want(t *testing.T, block uint32, n int) {
	t.Helper()
	want := fmt.Sprintf("%06x %04d", block<<blockBits|5, n)
	select {
	case got := <-m.got:
		if got != want {
			t.Errorf("member of block %d received %q, want %q", block, got, want)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("member of block %d did not receive %q", block, want)
	}
}

// passed counts what strayed and was handed on.
func passed(ms []*member) (n uint64) {
	for _, m := range ms {
		n += m.link.(*Link).passed.Load()
	}
	return n
}

func TestMembersShareAddress(t *testing.T) {
	const addr = "127.0.104.1"
	var ms []*member
	for range 12 {
		ms = append(ms, join(t, addr))
	}
	everyone := func(n int) {
		t.Helper()
		for i, m := range ms {
			for _, to := range ms {
				m.send(to.block, n+i)
				to.want(t, to.block, n+i)
			}
		}
	}
	everyone(0)
	settle(t, ms, everyone)

	// The third leaves: the last takes its socket's number, and what strays for it is passed on.
	ms[2].leave()
	ms = append(ms[:2], ms[3:]...)
	everyone(100)
	settle(t, ms, everyone)

	ms = append(ms, join(t, addr))
	everyone(200)
	settle(t, ms, everyone)
	for _, m := range ms {
		m.leave()
	}
}

// settle waits until the program is right for everyone: nothing strays any more.
func settle(t *testing.T, ms []*member, everyone func(int)) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		before := passed(ms)
		everyone(1000)
		if passed(ms) == before {
			return
		}
	}
	t.Errorf("datagrams still stray: %d", passed(ms))
}
