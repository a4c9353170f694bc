//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/tables"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// asNobody runs f on a thread of another user. The sockets and messages that f makes are that
// user's.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	usertest.Thread(t, usertest.Nobody, f)
}

// garbage returns a message that is random, or that was right and has been changed.
func garbage(r *rand.Rand, m *member) []byte {
	randomBytes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	switch r.IntN(4) {
	case 0:
		return randomBytes(r.IntN(200))
	case 1:
		return append([]byte{byte(1 + r.IntN(4)), messageVersion}, randomBytes(r.IntN(3*maxMessage/2))...)
	}
	out := message{
		kind: kind(1 + r.IntN(4)), from: r.Uint32N(numBlocks), nonce: r.Uint64(),
		addr: m.link.Addr().Addr(), source: m.link.Source(r.Uint32()), class: byte(r.Uint32()), label: r.Uint32() & flowLabelMask,
		payload: randomBytes(r.IntN(300)), index: r.IntN(1 << 16), blocks: []uint32{r.Uint32N(numBlocks), m.block},
	}
	b := out.appendTo(nil)
	if r.IntN(2) == 0 {
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	}
	return b
}

// sendTo sends messages to a mailbox from a new socket. It sends a file descriptor with each.
func sendTo(t *testing.T, block uint32, msgs [][]byte) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Close(fd)
	for _, b := range msgs {
		if err := unix.Sendmsg(fd, b, unix.UnixRights(fd), &unix.SockaddrUnix{Name: blockName(block).String()}, 0); err != nil { // this blocks while there is no room
			t.Errorf("send %d bytes to the mailbox of block %d: %v", len(b), block, err)
			return
		}
	}
}

// bounded fails the test if a member holds more than the limits allow.
func (m *member) bounded(t *testing.T) {
	t.Helper()
	o, l := m.netdev.owners.Load(), m.link.(*Link)
	o.mu.Lock()
	defer o.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	held, outlets := 0, 0
	for _, w := range o.byName {
		held += len(w.held)
		if w.out != nil {
			outlets++
		}
	}
	if held != o.held || outlets != o.outlets || held > maxHeld || outlets > maxOutlets {
		t.Errorf("%d messages held, counted %d, want at most %d; %d outlets, counted %d, want at most %d", held, o.held, maxHeld, outlets, o.outlets, maxOutlets)
	}
	if len(o.byName) > numBlocks+maxOutlets || len(o.byNonce) > o.outlets {
		t.Errorf("%d names of others and %d questions are remembered, want no more than there are blocks and outlets, %d, and %d", len(o.byName), len(o.byNonce), numBlocks+maxOutlets, o.outlets)
	}
	if waiting := len(l.inbox) - l.taken; waiting > injectedDatagrams || cap(l.inbox) > 4*injectedDatagrams || waiting != int(l.inboxLen.Load()) {
		t.Errorf("%d datagrams injected, counted %d, room for %d; want at most %d, and 4 times the room", waiting, l.inboxLen.Load(), cap(l.inbox), injectedDatagrams)
	}
	l.steering.mu.Lock()
	defer l.steering.mu.Unlock()
	if len(l.steering.answers) > maxProbes {
		t.Errorf("%d answers, want at most %d", len(l.steering.answers), maxProbes)
	}
}

// cost returns how many bytes of the heap are in use after a collection, and how much CPU time the process has had.
func cost(t *testing.T) (heap uint64, cpu time.Duration) {
	t.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC() // again: pools keep memory for one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// wantCost fails the test if n messages have cost more than is known to be bounded: the names of blocks, messages
// that are held, and more than ten times the CPU time that a message takes.
func wantCost(t *testing.T, heap uint64, cpu time.Duration, n int) {
	t.Helper()
	const most = 4 << 20
	heap2, cpu2 := cost(t)
	if heap2 > heap+most {
		t.Errorf("the heap grew from %d to %d bytes, want no more than %d", heap, heap2, most)
	}
	if spent := cpu2 - cpu; spent > time.Duration(n)*maxCPU {
		t.Errorf("%d messages cost %v of CPU time, want %v each at most", n, spent, maxCPU)
	}
}

const maxCPU = 200 * time.Microsecond

// Nothing that comes to a mailbox does any harm.
func TestHostileMessages(t *testing.T) {
	addr := testAddr(10)
	ms := []*member{join(t, addr), join(t, addr), join(t, addr)}
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(0)
	settle(t, ms, everyone)
	files := handovertest.OpenFiles(t)
	r := rand.New(rand.NewPCG(linktest.Seed(t), 1))
	var msgs [][]byte
	for range 5000 {
		msgs = append(msgs, garbage(r, ms[0]))
	}
	heap, cpu := cost(t)
	sendTo(t, ms[0].block, msgs)
	ms[0].bounded(t)
	wantCost(t, heap, cpu, len(msgs))
	if n := handovertest.OpenFiles(t); n > files+maxOutlets {
		t.Errorf("%d open files, want at most %d: %d before", n, files+maxOutlets, files)
	}
	// Another message to the same mailbox comes behind all of them.
	last := message{kind: datagramMessage, from: ms[1].block, addr: addr, source: ms[1].link.Source(0)}
	if !drainUntil(ms[0], 9000, func(n int) {
		last.payload = packet(ms[0].block, n)
		sendTo(t, ms[0].block, [][]byte{last.appendTo(nil)})
	}) {
		t.Fatal("nothing is received any more")
	}
	drained(ms)
	everyone(100)
	settle(t, ms, everyone)

	// Messages of another user are not even looked at, neither datagrams nor proofs.
	forged := message{kind: datagramMessage, from: 2000, addr: addr, source: ms[1].link.Source(0), payload: packet(ms[0].block, 6666)}
	asNobody(t, func() { sendTo(t, ms[0].block, append(msgs[:200:200], forged.appendTo(nil))) })
	everyone(200) // the forged datagram would come first
	for _, m := range ms {
		m.leave()
	}
}

// drainUntil sends a datagram to a member, and discards everything that the member receives before
// it. If the datagram seems to be lost, it sends another, and waits for that twice as long: on a busy machine
// the first may just be slow.
func drainUntil(m *member, n int, send func(n int)) bool {
	timeout := time.After(patience)
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		send(n)
		want := fmt.Sprintf("%06x %04d", m.block<<blockBits|5, n)
		again := time.After(wait)
		for lost := false; !lost; {
			select {
			case got := <-m.got:
				if got == want {
					return true
				}
			case <-again:
				lost = true
			case <-timeout:
				return false
			}
		}
		n++
	}
}

// passOn passes a datagram on to another member, behind all that has been passed on to it before.
func (m *member) passOn(to *member, n int) {
	msg := message{
		kind: datagramMessage, from: m.block, addr: m.link.Addr().Addr(), source: m.link.Source(0),
		payload: packet(to.block, n),
	}
	m.netdev.owners.Load().pass(blockName(to.block), msg.appendTo(nil))
}

// Nothing that comes to the UDP port does any harm either.
func TestHostileDatagrams(t *testing.T) {
	addr := testAddr(11)
	ms := []*member{join(t, addr), join(t, addr), join(t, addr)}
	everyone := func(n int) { exchange(t, ms, n) }
	everyone(0)
	settle(t, ms, everyone)
	r := rand.New(rand.NewPCG(linktest.Seed(t), 2))
	attack := func() {
		u, err := udp.NetdevForAddr("lo", testAddr(12))
		if err != nil {
			t.Error(err)
			return
		}
		defer u.Close()
		l, err := u.Open(testAddr(12))
		if err != nil {
			t.Error(err)
			return
		}
		defer l.Close()
		for i := range 20000 {
			l.Send([]link.Datagram{{Src: l.Source(uint32(i)), Dst: ms[0].link.Addr(), Payload: hostileDatagram(r)}})
		}
	}
	began := time.Now()
	heap, cpu := cost(t)
	attack()
	asNobody(t, attack)
	// The attack comes from the members' own address too. A datagram that looks like a probe is answered then.
	for i := range 5000 {
		ms[0].link.Send([]link.Datagram{{Src: ms[0].link.Source(uint32(i)), Dst: ms[0].link.Addr(), Payload: hostileDatagram(r)}})
	}
	for i, m := range ms {
		if !drainUntil(m, 9000, func(n int) { m.send(m.block, n) }) {
			t.Fatal("nothing is received any more")
		}
		m.bounded(t)
		m.netdev.owners.Load().mu.Lock()
		t.Logf("member %d: %d strayed, %d passed on, %d owners asked for", i, m.link.(*Link).strayed.Load(), m.link.(*Link).passed.Load(),
			len(m.netdev.owners.Load().byName))
		m.netdev.owners.Load().mu.Unlock()
	}
	// Datagrams that the members have passed on to one another may still be under way.
	for _, from := range ms {
		for _, to := range ms {
			if from != to && !drainUntil(to, 9000, func(n int) { from.passOn(to, n) }) {
				t.Fatalf("nothing is received of what block %d passes on to %d", from.block, to.block)
			}
		}
	}
	drained(ms)
	everyone(100)
	settle(t, ms, everyone)
	t.Logf("took %v", time.Since(began))
	wantCost(t, heap, cpu, 45_000)
	for i, m := range ms {
		m.leave()
		if held := tables.Held(m.netdev, nil, []string{"Netdev", "boxes", "family"}); len(held) > 0 { // boxes are closed
			t.Errorf("member %d holds %s when it has left, want nothing", i, tables.String(held))
		}
	}
}

// hostileDatagram returns garbage, a datagram for any process, or something like a probe.
func hostileDatagram(r *rand.Rand) []byte {
	switch r.IntN(5) {
	case 4:
		return hostileMAD(r)
	case 0:
		b := make([]byte, r.IntN(100))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	case 1:
		return packet(r.Uint32N(numBlocks), r.IntN(5000))
	}
	payload := make([]byte, probePayload+r.IntN(2)*r.IntN(9))
	binary.BigEndian.PutUint64(payload, r.Uint64())
	binary.BigEndian.PutUint32(payload[8:], r.Uint32N(numBlocks+10))
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: controlBlock<<blockBits | r.Uint32N(1<<blockBits)}, Payload: payload}
	return p.AppendTo(nil)
}

// A process of another user claims many blocks, and sends datagrams for them. It receives nothing,
// and delays nobody.
func TestForeignBlocks(t *testing.T) {
	addr := testAddr(13)
	ms := []*member{join(t, addr), join(t, addr)}
	exchange(t, ms, 0)
	const first, last = 3400, 3800
	var boxes []*mailbox
	asNobody(t, func() {
		for b := uint32(first); b < last; b++ {
			box, err := openMailbox(blockName(b))
			if err == errTaken { // another test has it
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			boxes = append(boxes, box)
		}
	})
	claimed, others := false, 0
	var block uint32
	for ; !claimed && others < 5; others++ { // another test may have an alias of one
		block = boxes[others].name.block
		var err error
		if claimed, err = ms[0].netdev.Claim(block); err != nil {
			t.Fatal(err)
		}
	}
	if !claimed {
		t.Errorf("claims of %d blocks whose names a stranger has have all failed, want one of them not to", others)
	}
	if ok, err := ms[1].netdev.Claim(block); ok || err != nil {
		t.Errorf("a second claim of it: %v, %v; want false", ok, err)
	}
	var secret [16]byte
	copy(secret[:], "only for ours")
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly}, Payload: secret[:]}
	began := time.Now()
	for i := range uint32(10 * (last - first)) {
		if p.DestQP = (first + i%(last-first)) << blockBits; p.DestQP>>blockBits == block {
			continue // it is a member's too
		}
		ms[0].link.Send([]link.Datagram{{Src: ms[0].link.Source(i), Dst: ms[0].link.Addr(), Payload: p.AppendTo(nil)}})
		if i%50 == 0 {
			ms[0].bounded(t)
			ms[1].bounded(t)
		}
	}
	exchange(t, ms, 100)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the members were held up for %v, want 10s at most", took)
	}
	asked := 0
	buf := make([]byte, maxMessage)
	for _, box := range boxes {
		box.conn.Control(func(fd uintptr) {
			for {
				n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				if err != nil {
					return
				}
				if isQuestion(t, ms, buf[:n]) {
					asked++
				}
			}
		})
		box.close()
	}
	if asked == 0 {
		t.Error("the stranger was never asked who it is")
	}
	for _, m := range ms {
		m.leave()
	}
}

// isQuestion reports whether a stranger was sent the question who it is by a member, and fails the test if a member
// has sent anything else. Other tests' processes may answer one that had the name before, and has ended.
func isQuestion(t *testing.T, ms []*member, b []byte) bool {
	t.Helper()
	var m message
	err := m.decode(b)
	switch {
	case err == nil && !slices.ContainsFunc(ms, func(o *member) bool { return o.block == m.from }):
		return false
	case err != nil || m.kind != whoMessage:
		t.Errorf("a stranger was sent %x, want the question who it is", b)
		return false
	}
	return true
}

// A process of another user cannot share an address.
func TestForeignAddress(t *testing.T) {
	addr := testAddr(14)
	m := open(t, addr)
	asNobody(t, func() {
		n := shareLoopback(t, addr)
		defer n.Close()
		l, err := n.Open(addr)
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("open: %v, want EADDRINUSE", err)
		}
		if err == nil {
			l.Close()
		} else {
			t.Log(err)
		}
	})
	m.leave()
}
