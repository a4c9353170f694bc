//go:build !adverb_portable

package host

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// patience is how long a test waits for something that usually takes some hundred milliseconds. The machine
// may be busy.
const patience = handovertest.Patience

// member is a process as other processes see it: a Netdev with a block and a link. Several
// members in one process cannot tell that they are not several processes.
type member struct {
	netdev *Netdev
	block  uint32
	link   link.Link
	got    chan string
	done   sync.WaitGroup
}

// testAddr returns a loopback address that another test process is not likely to use.
func testAddr(i byte) netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, 128 | byte(pid>>8)&127, byte(pid), i})
}

func shareLoopback(t testing.TB, addr netip.Addr) *Netdev {
	t.Helper()
	u, err := udp.NetdevForAddr("lo", addr)
	if err != nil {
		t.Skipf("no loopback interface: %v", err)
	}
	return Share(u)
}

// join makes a member that receives.
func join(t testing.TB, addr netip.Addr) *member {
	t.Helper()
	m := open(t, addr)
	m.done.Go(m.receive)
	return m
}

// open makes a member that does not receive yet.
func open(t testing.TB, addr netip.Addr) *member {
	t.Helper()
	m := &member{netdev: shareLoopback(t, addr), got: make(chan string, 1<<16)}
	m.netdev.pool = newOutletPool() // as a process has its own
	m.block = m.claim(t)
	l, err := m.netdev.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	m.link = l
	return m
}

// claim claims the first block that is free.
func (m *member) claim(t testing.TB) uint32 {
	t.Helper()
	for b := uint32(1); b < controlBlock; b++ {
		ok, err := m.netdev.Claim(b)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return b
		}
	}
	t.Fatal("no block is free")
	return 0
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
				m.got <- fmt.Sprintf("%06x %.4s", p.DestQP, p.Payload) // the payload of garbage may be shorter
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

// send sends a datagram to a block at the member's own address.
func (m *member) send(block uint32, n int) {
	m.link.Send([]link.Datagram{{Src: m.link.Source(uint32(n)), Dst: m.link.Addr(), Payload: packet(block, n)}})
}

// packet returns a datagram to a QP of a block.
func packet(block uint32, n int) []byte {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: block<<blockBits | 5}, Payload: fmt.Appendf(nil, "%04d", n)}
	return p.AppendTo(nil)
}

func (m *member) want(t testing.TB, block uint32, n int) {
	t.Helper()
	want := fmt.Sprintf("%06x %04d", block<<blockBits|5, n)
	select {
	case got := <-m.got:
		if got != want {
			t.Errorf("member of block %d received %q, want %q", block, got, want)
		}
	case <-time.After(patience):
		t.Errorf("member of block %d did not receive %q", block, want)
	}
}

// passed returns how many datagrams have strayed and were passed on.
func passed(ms []*member) (n uint64) {
	for _, m := range ms {
		n += m.link.(*Link).passed.Load()
	}
	return n
}

func TestMembersShareAddress(t *testing.T) {
	addr := testAddr(1)
	var ms []*member
	for range 12 {
		ms = append(ms, join(t, addr))
	}
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(0)
	settle(t, ms, everyone)

	// The third leaves. The last takes the number of the third's socket, and strays are passed on.
	ms[2].leave()
	ms = append(ms[:2], ms[3:]...)
	everyone(100)
	settle(t, ms, everyone)

	ms = append(ms, join(t, addr))
	everyone(200)
	settle(t, ms, everyone)
	t.Logf("%d datagrams strayed and were passed on", passed(ms))
	for _, m := range ms {
		m.leave()
	}
}

// A process with many blocks gets the datagrams for all of them.
func TestManyBlocks(t *testing.T) {
	addr := testAddr(2)
	ms := []*member{join(t, addr), join(t, addr)}
	var blocks []uint32
	for range 40 {
		blocks = append(blocks, ms[0].claim(t))
	}
	everyone := func(n int) {
		t.Helper()
		for i, b := range blocks {
			ms[i%2].send(b, n)
			ms[0].want(t, b, n)
		}
	}
	everyone(0)
	settle(t, ms, everyone)
	for _, m := range ms {
		m.leave()
	}
}

// Processes find each other even if they are more than firstProbes.
func TestManyMembers(t *testing.T) {
	addr := testAddr(3)
	var ms []*member
	for range 2*firstProbes + 5 {
		ms = append(ms, join(t, addr))
	}
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(0)
	settle(t, ms, everyone)
	t.Logf("%d datagrams strayed and were passed on", passed(ms))
	for _, m := range ms {
		m.leave()
	}
}

// silence takes the place of a process that is stopped. It has a block and a socket, and reads from
// neither the mailbox nor the socket.
func silence(t *testing.T, addr netip.Addr) (block uint32, end func()) {
	t.Helper()
	u, err := udp.NetdevForAddr("lo", addr)
	if err != nil {
		t.Fatal(err)
	}
	l, err := u.OpenShared(addr)
	if err != nil {
		t.Fatal(err)
	}
	block = 3000
	box, err := openMailbox(blockName(block))
	for ; err == errTaken; box, err = openMailbox(blockName(block)) { // another test has it
		block++
	}
	if err != nil {
		t.Fatal(err)
	}
	return block, func() {
		l.Close()
		box.close()
		u.Close()
	}
}

// A process that is stopped costs the others nothing, whether they knew it before or not, and even
// if it never goes on.
func TestSilentMember(t *testing.T) {
	addr := testAddr(4)
	ms := []*member{join(t, addr), join(t, addr)}
	exchange(t, ms, 0)
	stopped, end := silence(t, addr)
	for range 3 { // these come after it: they have higher indexes, and do not know it
		ms = append(ms, join(t, addr))
	}
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(100)
	settle(t, ms, everyone)

	// Datagrams that are sent to the process all the time are dropped soon, and do not pile up.
	began := time.Now()
	for i := range 2000 {
		ms[i%len(ms)].send(stopped, i)
	}
	everyone(200)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("2000 datagrams to a process that is stopped held up the others for %v, want 5s at most", took)
	}
	for i, m := range ms {
		o := m.netdev.owners.Load()
		o.mu.Lock()
		if o.held > maxHeld || o.outlets > maxOutlets {
			t.Errorf("member %d holds %d messages and %d outlets, want at most %d and %d", i, o.held, o.outlets, maxHeld, maxOutlets)
		}
		o.mu.Unlock()
	}
	// Another member ends, and the last takes the number of its socket. What strays to the stopped
	// one now is noticed by nobody.
	ms[0].leave()
	ms = ms[1:]
	for i, m := range ms {
		for _, to := range ms {
			for flow := range 4 {
				persist(t, m, to, 1000+10*i+flow)
			}
		}
	}
	drained(ms)
	end()
	everyone(300)
	settle(t, ms, everyone)
	for _, m := range ms {
		m.leave()
	}
}

// persist makes m send the same datagram, from the same port, until it arrives.
func persist(t *testing.T, m, to *member, n int) {
	t.Helper()
	want := fmt.Sprintf("%06x %04d", to.block<<blockBits|5, n)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	timeout := time.After(patience)
	m.send(to.block, n)
	for {
		select {
		case got := <-to.got:
			if got == want {
				return
			}
		case <-again.C:
			m.send(to.block, n)
		case <-timeout:
			t.Fatalf("member of block %d still does not receive %q", to.block, want)
		}
	}
}

// Closing gives everything back, even in the middle of others' traffic.
func TestClose(t *testing.T) {
	addr := testAddr(5)
	stay := []*member{join(t, addr), join(t, addr)}
	exchange(t, stay, 0)
	before := open(t, addr) // the first use of something may take resources for good
	before.link.Close()
	before.netdev.Close()
	// A goroutine for each message about the interfaces comes and goes: some more is none that 20 members left.
	goroutines, files := runtime.NumGoroutine()+8, handovertest.OpenFiles(t)
	for i := range 20 {
		m := join(t, addr)
		var traffic sync.WaitGroup
		stop := make(chan struct{})
		for _, s := range stay {
			traffic.Go(func() {
				for j := 0; ; j++ {
					select {
					case <-stop:
						return
					default:
						s.send(m.block, i)
						s.send(4000-uint32(j%10), i) // nobody's
					}
				}
			})
		}
		received := drainUntil(m, 7000+i, func(n int) { m.send(m.block, n) })
		if i%2 == 0 {
			m.netdev.Close() // as package hca does
			m.link.Close()
		} else {
			m.link.Close()
			m.netdev.Close()
		}
		m.done.Wait()
		close(stop)
		traffic.Wait()
		if !received {
			t.Fatal("nothing is received in the middle of others' traffic")
		}
		drained(stay)
		if err := m.link.Close(); err != link.ErrClosed {
			t.Errorf("second Close: %v, want %v", err, link.ErrClosed)
		}
		if _, err := m.link.Recv(make([]link.Datagram, 1)); err != link.ErrClosed {
			t.Errorf("Recv after Close: %v, want %v", err, link.ErrClosed)
		}
		if ok, err := m.netdev.Claim(2999); ok || err != link.ErrClosed {
			t.Errorf("Claim after Close: %v, %v; want %v", ok, err, link.ErrClosed)
		}
	}
	settled := func() bool {
		return runtime.NumGoroutine() <= goroutines && handovertest.OpenFiles(t) <= files+2*2 // and the outlets of the members that stay
	}
	for deadline := time.Now().Add(10 * time.Second); !settled(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines and %d open files after 20 members have left, want at most %d and %d",
				runtime.NumGoroutine(), handovertest.OpenFiles(t), goroutines, files+2*2)
			break
		}
	}
	exchange(t, drained(stay), 5000)
	for _, m := range stay {
		m.leave()
	}
}

// drained discards the datagrams that members have received.
func drained(ms []*member) []*member {
	for _, m := range ms {
		for len(m.got) > 0 {
			<-m.got
		}
	}
	return ms
}

// The kernel may join the datagrams of one source to a train, even if they are for several processes.
func TestMixedTrain(t *testing.T) {
	addr := testAddr(6)
	a, b := open(t, addr), join(t, addr)
	one := packet(a.block, 1)
	train := append(append(append([]byte(nil), one...), packet(b.block, 2)...), packet(a.block, 3)...)
	mixed := link.Datagram{Src: a.link.Source(0), Dst: a.link.Addr(), Payload: train, SegmentSize: len(one)}
	other := link.Datagram{Src: a.link.Source(0), Dst: a.link.Addr(), Payload: packet(b.block, 4)}
	whole := link.Datagram{Src: a.link.Source(0), Dst: a.link.Addr(), Payload: append(append([]byte(nil), one...), one...), SegmentSize: len(one)}
	later := link.Datagram{Src: a.link.Source(0), Dst: a.link.Addr(), Payload: packet(a.block, 5)}
	l := a.link.(*Link)
	batch := []link.Datagram{other, whole, mixed, later}
	if n := l.sort(batch); n != 1 || batch[0].Segments() != 2 {
		t.Errorf("%d datagrams are kept, the first of %d segments; want the train before the mixed one alone", n, batch[0].Segments())
	}
	b.want(t, b.block, 4)
	clear(train) // the link must have kept copies
	a.done.Go(a.receive)
	a.want(t, a.block, 1)
	a.want(t, a.block, 3)
	a.want(t, a.block, 5) // it must not overtake those two
	b.want(t, b.block, 2)
	a.leave()
	b.leave()
}

func TestOpenTwice(t *testing.T) {
	addr := testAddr(7)
	m := open(t, addr)
	if l, err := m.netdev.Open(addr); err == nil {
		l.Close()
		t.Error("an address was opened twice on one Netdev")
	}
	m.leave()
}

// exchange makes each member send to each member, including itself.
func exchange(t testing.TB, ms []*member, n int) {
	t.Helper()
	for i, m := range ms {
		for _, to := range ms {
			m.send(to.block, n+i)
			to.want(t, to.block, n+i)
		}
	}
}

// settle waits until the program knows everyone, so that nothing strays any more.
func settle(t testing.TB, ms []*member, everyone func(int)) {
	t.Helper()
	const least = 3 // rounds, of which one alone may take as long on a busy machine
	deadline := time.Now().Add(10 * time.Second)
	for round := 0; round < least || time.Now().Before(deadline); round++ {
		before := passed(ms)
		everyone(1000)
		if passed(ms) == before {
			return
		}
	}
	t.Errorf("datagrams still stray: %d have been passed on, want no more", passed(ms))
}
