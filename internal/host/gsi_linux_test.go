//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/handover/handovertest"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// mad returns a datagram to QP1 with a CM message. id is the service ID of a REQ or SIDR_REQ, or
// the receiver's communication ID of any other message. The number tells the message from others.
func mad(attr wire.CMAttr, id, number uint64) []byte {
	h := wire.NewCMHeader(attr, number)
	b := h.AppendTo(nil)
	switch attr {
	case wire.CMREQ:
		b = (&wire.REQ{ServiceID: id}).AppendTo(b)
	case wire.CMSIDRREQ:
		b = (&wire.SIDRREQ{ServiceID: id}).AppendTo(b)
	case wire.CMREP:
		b = (&wire.REP{RemoteCommID: uint32(id)}).AppendTo(b)
	case wire.CMDREQ:
		b = (&wire.DREQ{RemoteCommID: uint32(id)}).AppendTo(b)
	case wire.CMREJ:
		b = (&wire.REJ{RemoteCommID: uint32(id), Reason: 4}).AppendTo(b)
	default:
		panic(attr)
	}
	return toQP1(b)
}

func toQP1(mad []byte) []byte {
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: wire.GSIQPN},
		DETH: wire.DETH{QKey: wire.GSIQKey, SrcQP: wire.GSIQPN}, Payload: mad,
	}
	return p.AppendTo(nil)
}

// gsiTeam is several members that do not receive by themselves. The test receives for all of them.
type gsiTeam struct {
	t  *testing.T
	ms []*member
	in []link.Datagram
}

const nobodys = -1

func newGSITeam(t *testing.T, addr byte, n int) *gsiTeam {
	t.Helper()
	g := &gsiTeam{t: t, in: make([]link.Datagram, 16)}
	for range n {
		g.ms = append(g.ms, open(t, testAddr(addr)))
	}
	return g
}

// service returns a service ID that no other test uses.
func service() uint64 { return rand.Uint64() }

func (g *gsiTeam) claim(i int, service uint64) (release func()) {
	g.t.Helper()
	release, ok, err := g.ms[i].netdev.ClaimService(g.ms[i].link.Addr().Addr(), service)
	if !ok || err != nil {
		g.t.Fatalf("claim: %v, %v; want true", ok, err)
	}
	return release
}

// poll returns which member has received a datagram for QP1, if any has.
func (g *gsiTeam) poll() (who int, d link.Datagram) {
	g.t.Helper()
	for i, m := range g.ms {
		n, err := m.link.Recv(g.in)
		if err != nil {
			g.t.Fatal(err)
		}
		for _, d := range g.in[:n] {
			if qpn, ok := destQP(d.Payload); ok && qpn == wire.GSIQPN {
				return i, d
			}
		}
	}
	return nobodys, d
}

// arrive makes a datagram arrive at a member's socket. It returns which member gets it in the end,
// or nobodys if it is dropped at once.
func (g *gsiTeam) arrive(at int, payload []byte) int {
	g.t.Helper()
	l := g.ms[at].link.(*Link)
	from := l.Source(0)
	d := link.Datagram{Src: from, Dst: l.Addr(), Payload: payload, TrafficClass: 5, FlowLabel: 0xabcde}
	dropped := l.strayed.Load()
	if l.sort([]link.Datagram{d}) == 1 {
		return at
	}
	if l.strayed.Load() != dropped {
		return nobodys
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if who, got := g.poll(); who >= 0 {
			if string(got.Payload) != string(payload) || got.Src != from || got.Dst != l.Addr() || got.TrafficClass != 5 || got.FlowLabel != d.FlowLabel {
				g.t.Errorf("member %d receives %+v, want %+v", who, got, d)
			}
			return who
		}
	}
	g.t.Errorf("what comes to member %d is neither received nor dropped", at)
	return nobodys
}

// goes fails the test unless a datagram goes to a certain member, wherever it arrives.
func (g *gsiTeam) goes(what string, payload []byte, to ...int) {
	g.t.Helper()
	for at := range g.ms {
		ok := false
		who := g.arrive(at, payload)
		for _, i := range to {
			ok = ok || who == i
		}
		if !ok {
			g.t.Errorf("%s arrives at member %d and goes to %d, want %v", what, at, who, to)
		}
	}
}

func (g *gsiTeam) leave() {
	for _, m := range g.ms {
		m.leave()
	}
}

// freeBlock returns a block that has no owner, and is not likely to get one soon.
func freeBlock(t *testing.T) uint32 {
	t.Helper()
	for {
		block := 1 + rand.Uint32N(controlBlock-1)
		box, err := openMailbox(blockName(block))
		if err == nil {
			box.close()
			return block
		}
		if err != errTaken {
			t.Fatal(err)
		}
	}
}

func commID(m *member) uint64 { return uint64(m.block<<20 | 0xabcde) }

// A message to QP1 goes to the process that it names or, if it names none, to one with a QP1.
func TestQP1(t *testing.T) {
	g := newGSITeam(t, 40, 4)
	defer g.leave()
	s0, s1, none := service(), service(), service()
	for i := range 2 {
		g.ms[i].netdev.ServeGSI(true)
	}
	release := g.claim(0, s0)
	g.claim(1, s1)
	for range 2 { // the owner is looked for first, and known then
		g.goes("a REQ", mad(wire.CMREQ, s0, 1), 0)
		g.goes("a REQ", mad(wire.CMREQ, s1, 2), 1)
		g.goes("a SIDR_REQ", mad(wire.CMSIDRREQ, s1, 3), 1)
		for i := range 2 {
			g.goes("a REP", mad(wire.CMREP, commID(g.ms[i]), 4), i)
			g.goes("a DREQ", mad(wire.CMDREQ, commID(g.ms[i]), 5), i)
		}
	}
	// A datagram that belongs to nobody goes to a process with a QP1, but never from one such process to
	// another. The same holds for a datagram that belongs to a process without a QP1.
	other := uint64(freeBlock(t))
	short := toQP1(make([]byte, 100))
	subnet := wire.NewCMHeader(0x11, 7)
	subnet.MgmtClass = 1
	for what, b := range map[string][]byte{
		"a REQ for no service": mad(wire.CMREQ, none, 6), "a REP for no block": mad(wire.CMREP, other<<20|5, 6),
		"a REP for the first block": mad(wire.CMREP, 5, 6), "a REP for the last block": mad(wire.CMREP, controlBlock<<20|5, 6),
		"a short MAD": short, "another MAD": toQP1(subnet.AppendTo(make([]byte, 0, wire.MADSize))[:wire.MADSize]),
		"no message": toQP1(nil),
	} {
		g.goes(what, b, 0, 1)
		for i := range 2 {
			if who := g.arrive(i, b); who != i {
				t.Errorf("%s arrives at member %d, which has a QP1, and goes to %d; want %[2]d", what, i, who)
			}
		}
	}
	// Once released, the service belongs to nobody. A process that claims it is found at once.
	release()
	release()
	for range 3 {
		g.goes("a REQ for a released service", mad(wire.CMREQ, s0, 8), 0, 1)
		release = g.claim(1, s0)
		g.goes("a REQ for another's service now", mad(wire.CMREQ, s0, 8), 1)
		release()
	}
	// A datagram for QP0 is not passed on. It is dropped where it arrives, when the QP is looked for.
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly}}
	for i := range g.ms {
		if who := g.arrive(i, p.AppendTo(nil)); who != i {
			t.Errorf("a datagram for QP0 is passed on from %d to %d, want it dropped", i, who)
		}
	}
	// A datagram for a group is not passed on: all members have received it already.
	l := g.ms[2].link.(*Link)
	if !l.isOurs(&link.Datagram{Dst: netip.AddrPortFrom(testAddr(41), link.Port)}, mad(wire.CMREQ, s1, 9)) {
		t.Error("what was sent to a group is passed on")
	}
	// If no process has a QP1, nobody gets it.
	for i := range 2 {
		g.ms[i].netdev.ServeGSI(false)
	}
	g.arrive(2, mad(wire.CMREQ, none, 10)) // so that it finds out that the socket is closed
	g.goes("a REQ without any QP1", mad(wire.CMREQ, none, 11), nobodys)
}

// A datagram that has been passed on is not passed on again.
func TestQP1NoLoop(t *testing.T) {
	g := newGSITeam(t, 42, 2)
	defer g.leave()
	s := service()
	g.ms[0].netdev.ServeGSI(true)
	g.ms[1].netdev.ServeGSI(true)
	g.claim(1, s)
	b := mad(wire.CMREQ, s, 1)
	m := message{kind: datagramMessage, from: g.ms[1].block, addr: testAddr(42), source: g.ms[1].link.Source(0), payload: b}
	sendTo(t, g.ms[0].block, [][]byte{m.appendTo(nil)})
	for end := time.Now().Add(patience); ; {
		if who, _ := g.poll(); who == 0 {
			break
		} else if who > 0 || time.Now().After(end) {
			t.Fatalf("member %d received what was passed on to 0, want 0", who)
		}
	}
}

// A service belongs to one process at a time, until it is released, and at one address.
func TestClaimServiceTwice(t *testing.T) {
	g := newGSITeam(t, 43, 2)
	s, addr := service(), testAddr(43)
	release := g.claim(0, s)
	for i, m := range g.ms {
		if _, ok, err := m.netdev.ClaimService(addr, s); ok || err != nil && !errors.Is(err, verbs.ErrBusy) || i > 0 && err == nil {
			t.Errorf("member %d claims a service again: %v, %v; want false and, of another member's, %v", i, ok, err, verbs.ErrBusy)
		}
	}
	elsewhere, ok, err := g.ms[1].netdev.ClaimService(testAddr(44), s)
	if !ok || err != nil {
		t.Errorf("claim at another address: %v, %v; want true", ok, err)
	}
	elsewhere()
	release()
	release = g.claim(1, s)
	files := handovertest.OpenFiles(t)
	for range 100 {
		g.claim(0, service())()
	}
	if n := handovertest.OpenFiles(t); n > files+2 {
		t.Errorf("%d files after claims and releases, want %d as before, or 2 more", n, files)
	}
	// A process that has ended owns nothing.
	g.ms[1].leave()
	g.claim(0, s)
	release() // has no effect: another process owns it by now
	if _, ok, err := g.ms[1].netdev.ClaimService(addr, s); ok || !errors.Is(err, link.ErrClosed) {
		t.Errorf("claim after the end: %v, %v; want %v", ok, err, link.ErrClosed)
	}
	g.ms[0].leave()
}

// When the process that stands in for all ends, another takes over. One that comes back in between
// finds the place taken or free.
func TestQP1Successor(t *testing.T) {
	g := newGSITeam(t, 45, 3)
	none := service()
	g.ms[0].netdev.ServeGSI(true)
	g.ms[1].netdev.ServeGSI(true)
	if who := g.arrive(2, mad(wire.CMREQ, none, 1)); who != 0 {
		t.Errorf("goes to %d, want 0, who was the first", who)
	}
	first := g.ms[0]
	g.ms = g.ms[1:]
	first.leave()
	began := time.Now()
	who := nobodys
	for n := uint64(2); who != 0 && time.Since(began) < patience; n++ {
		if who = g.arrive(1, mad(wire.CMREQ, none, n)); who == nobodys {
			g.poll() // receives, so that probes are answered
		}
	}
	t.Logf("the next took over after %v", time.Since(began))
	if who != 0 {
		t.Errorf("it goes to member %d after the end of the first, want 0", who)
	}
	g.leave()
}

// A process of another user keeps the names that it has bound, but receives no datagram that is
// passed on, and keeps nobody from the blocks and services of the names.
func TestQP1Stranger(t *testing.T) {
	addr := testAddr(46)
	s, free := service(), service()
	block := freeBlock(t)
	names := []boxName{serviceName(addr, s), gsiName(addr), blockName(block)}
	var boxes []*mailbox
	asNobody(t, func() {
		for _, n := range names {
			box, err := openMailbox(n)
			if err != nil {
				t.Error(err)
				return
			}
			boxes = append(boxes, box)
		}
	})
	if t.Failed() {
		return
	}
	g := newGSITeam(t, 46, 2)
	defer g.leave()
	g.ms[0].netdev.ServeGSI(true)
	g.claim(0, s)
	g.claim(0, free)
	l := g.ms[1].link.(*Link)
	for i := range 50 {
		for _, b := range [][]byte{
			mad(wire.CMREP, uint64(block)<<20|1, 2), mad(wire.CMREQ, s+1, 3),
		} {
			l.sort([]link.Datagram{{Src: l.Source(uint32(i)), Dst: l.Addr(), Payload: b}})
		}
		g.ms[1].bounded(t)
	}
	g.goes("a REQ for a service of this user", mad(wire.CMREQ, free, 4), 0)
	g.goes("a REQ for a service whose name the stranger has", mad(wire.CMREQ, s, 5), 0)
	for i, box := range boxes {
		asked := false
		buf := make([]byte, maxMessage)
		box.conn.Control(func(fd uintptr) {
			for {
				n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
				if err != nil {
					return
				}
				asked = isQuestion(t, g.ms, buf[:n]) || asked
			}
		})
		if want := i > 0; asked != want {
			t.Errorf("%v was asked who it is: %v, want %v", names[i], asked, want)
		}
		box.close()
	}
}

// A flood of messages that name services and blocks without an owner costs little time and no memory.
func TestQP1Flood(t *testing.T) {
	g := newGSITeam(t, 47, 2)
	defer g.leave()
	g.ms[0].netdev.ServeGSI(true)
	s := service()
	g.claim(0, s)
	l := g.ms[1].link.(*Link)
	g.goes("a REQ", mad(wire.CMREQ, s, 1), 0)
	r := rand.New(rand.NewPCG(linktest.Seed(t), 3))
	for i := range 20000 {
		l.sort([]link.Datagram{{Src: l.Source(uint32(i)), Dst: l.Addr(), Payload: hostileMAD(r)}})
		if i%500 == 0 {
			g.ms[0].bounded(t)
			g.ms[1].bounded(t)
			g.poll()
		}
	}
	for who := 0; who >= 0; {
		who, _ = g.poll()
	}
	o := g.ms[1].netdev.owners.Load()
	o.mu.Lock()
	if len(o.byName) > numBlocks+maxOutlets || len(o.byNonce) != o.outlets {
		t.Errorf("%d owners, %d asked, %d outlets; want at most %d owners, and as many asked as there are outlets", len(o.byName), len(o.byNonce), o.outlets, numBlocks+maxOutlets)
	}
	for name, w := range o.byName {
		if name != w.name || name.kind == serviceBox && w.out == nil {
			t.Errorf("%v is remembered though nobody has it, want it forgotten", name)
		}
	}
	o.mu.Unlock()
}

// hostileMAD returns garbage, or a message for any process.
func hostileMAD(r *rand.Rand) []byte {
	switch r.IntN(4) {
	case 0:
		return toQP1(make([]byte, r.IntN(300)))
	case 1:
		return mad(wire.CMREP, uint64(r.Uint32()), 666)
	case 2:
		b := mad(wire.CMREQ, r.Uint64(), 666)
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		binary.BigEndian.PutUint32(b[destQPOffset:], wire.GSIQPN)
		return b
	}
	return mad(wire.CMSIDRREQ, r.Uint64(), 666)
}

// A message to QP1 that comes through the network finds its process, at whichever socket it
// arrives.
func TestQP1Network(t *testing.T) {
	addr := testAddr(48)
	ms := []*member{join(t, addr), join(t, addr), join(t, addr)}
	exchange(t, ms, 0)
	ms[1].netdev.ServeGSI(true)
	ms[2].netdev.ServeGSI(true)
	s := service()
	if _, ok, err := ms[1].netdev.ClaimService(addr, s); !ok || err != nil {
		t.Fatalf("claim: %v, %v; want true", ok, err)
	}
	for i, m := range ms {
		for flow := range uint32(8) {
			m.link.Send([]link.Datagram{{Src: m.link.Source(flow), Dst: m.link.Addr(), Payload: mad(wire.CMREQ, s, 1)}})
			m.link.Send([]link.Datagram{{Src: m.link.Source(flow), Dst: m.link.Addr(), Payload: mad(wire.CMREP, commID(ms[2]), 2)}})
			for _, to := range ms[1:] {
				select {
				case got := <-to.got:
					if got != "000001 \x01\x07\x02\x03" {
						t.Errorf("member received %q, want the message to QP1", got)
					}
				case <-time.After(patience):
					t.Fatalf("what member %d sends to QP1 does not arrive", i)
				}
			}
		}
	}
	if len(ms[0].got) > 0 {
		t.Errorf("who has no QP1 receives %q, want nothing", <-ms[0].got)
	}
	for _, m := range ms {
		m.leave()
	}
}

// The kernel delivers datagrams for QP1 to the process that stands in for all, even after other processes have
// come. Those may end soon, and the datagrams in their sockets would be lost then.
func TestQP1Steered(t *testing.T) {
	addr := testAddr(49)
	ms := []*member{join(t, addr), join(t, addr)}
	ms[0].netdev.ServeGSI(true)
	for range 3 {
		ms = append(ms, join(t, addr))
		ms[len(ms)-1].netdev.ServeGSI(true)
		exchange(t, ms, 0)
		end := time.Now().Add(patience)
		for direct := 0; direct < 20; direct++ {
			before := passed(ms)
			from := ms[len(ms)-1].link
			from.Send([]link.Datagram{{Src: from.Source(0), Dst: from.Addr(), Payload: mad(wire.CMREQ, service(), 1)}})
			// Until the program is up to date, it may arrive at any of them, which keeps it.
			var at int
			select {
			case <-ms[0].got:
			case <-ms[1].got:
				at = 1
			case <-ms[len(ms)-2].got:
				at = len(ms) - 2
			case <-ms[len(ms)-1].got:
				at = len(ms) - 1
			case <-time.After(patience):
				t.Fatal("nobody receives what is for QP1")
			}
			if at != 0 || passed(ms) != before {
				direct = -1
			}
			if time.Now().After(end) {
				t.Fatalf("among %d members, what is for QP1 still arrives at another", len(ms))
			}
		}
	}
	for _, m := range ms {
		m.leave()
	}
}

// A peer may take back a REQ that nobody has answered. It does not know which process has the REQ,
// so all get the message.
func TestQP1Cancel(t *testing.T) {
	addr := testAddr(50)
	ms := []*member{join(t, addr), join(t, addr), join(t, addr)}
	for _, m := range ms {
		m.netdev.ServeGSI(true)
	}
	exchange(t, ms, 0)
	heard := make([]bool, len(ms))
	send := time.NewTicker(20 * time.Millisecond) // repeated until the processes know each other
	defer send.Stop()
	for deadline := time.After(patience); slices.Contains(heard, false); {
		select {
		case <-send.C:
			from := ms[0].link
			from.Send([]link.Datagram{{Src: from.Source(0), Dst: from.Addr(), Payload: mad(wire.CMREJ, 0, 1)}})
		case <-ms[0].got:
			heard[0] = true
		case <-ms[1].got:
			heard[1] = true
		case <-ms[2].got:
			heard[2] = true
		case <-deadline:
			t.Fatalf("members that have heard of it: %v, want all", heard)
		}
	}
	// Of a flood of such messages only a few are passed on.
	l := ms[1].link.(*Link)
	strayed, d := l.strayed.Load(), link.Datagram{Src: l.Source(0), Dst: l.Addr(), Payload: mad(wire.CMREJ, 0, 2)}
	ms[1].leave()
	for range 10 * maxCancels {
		l.passMAD(&d)
	}
	if n := l.strayed.Load() - strayed; n < 8*maxCancels {
		t.Errorf("of %d, %d were dropped; want at least %d", 10*maxCancels, n, 8*maxCancels)
	}
	ms[0].leave()
	ms[2].leave()
}
