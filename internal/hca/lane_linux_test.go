//go:build !adverb_portable

package hca

import (
	"bytes"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/shm"
	"github.com/adverb-rdma/adverb/internal/transport"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// lanePair is two connected devices with lanes to each other, on a network that loses everything until it
// is told otherwise. Nobody wakes them for packets in a lane: they are polled.
type lanePair struct {
	net     *sim.Network
	x, y    *end
	inboxes map[netip.Addr]*shm.Inbox
	outs    map[netip.Addr]*shm.Out // by where they lead
	asked   int
	headers map[netip.Addr][]byte // of the lanes in outs: receivers can write to them
	shares  bool                  // QPs share the lanes, as those of two processes do
	wc      [1]verbs.WC

	onAsk    func()             // unless nil: somebody asks for access
	onSay    func()             // unless nil: an owner answers
	onAnswer func(*shm.Granted) // unless nil: changes the grant

	mu      sync.Mutex
	answers []func() // of receivers that have mapped a file, or are asked for access
}

// laneHeadAt is where a lane's header says up to where the receiver has read.
const laneHeadAt = 128

func newLanePair(t testing.TB, o options, mw ...link.Middleware) *lanePair {
	t.Helper()
	p := &lanePair{net: sim.New(sim.Config{Loss: 1}), inboxes: map[netip.Addr]*shm.Inbox{}, outs: map[netip.Addr]*shm.Out{}, headers: map[netip.Addr][]byte{}}
	var devices [2]*verbs.Device
	for i := range devices {
		p.inboxes[simAddr(i+1)] = new(shm.Inbox)
		d, err := Open(p.net.Netdev("sim", simAddr(i+1), simAddr6(i+1)), Config{
			Middleware: mw,
			Driven:     o.driven,
			Ways: Ways{
				Inbox: func(at netip.Addr) *shm.Inbox { return p.inboxes[at] },
				Lane: func(from, to netip.Addr, _ uint32) *shm.Out {
					p.asked++
					return p.lane(t, from, to)
				},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		devices[i] = verbs.NewDevice(d)
	}
	p.x, p.y = connect(t, devices[0], devices[1], o)
	return p
}

func (p *lanePair) lane(t testing.TB, from, to netip.Addr) *shm.Out {
	if o := p.outs[to]; p.shares && o != nil {
		o.Use(1)
		return o
	}
	o, fd, err := shm.NewOut()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	header, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(header) })
	p.headers[to] = header
	in, err := p.inboxes[to].Add(fd, shm.Bell{}, from, 8, func() {}, func(g shm.Granted, revoked bool) error {
		if p.onSay != nil {
			p.onSay()
		}
		p.queue(func() {
			if p.onAnswer != nil {
				p.onAnswer(&g)
			}
			if revoked {
				o.Revoked(g.Slot, g.Gen)
			} else {
				o.Answered(g)
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Connect(shm.Bell{}, func() {}, func(f shm.File, withdrawn bool) error {
		if withdrawn {
			in.Withdrawn(f.ID)
			return nil
		}
		p.queue(func() { o.Mapped(f.ID) })
		return in.Map(f)
	}, func(a shm.Ask) error {
		if p.onAsk != nil {
			p.onAsk()
		}
		p.queue(func() { in.Asked(a) })
		return nil
	})
	t.Cleanup(o.Close)
	o.Use(1)
	p.outs[to] = o
	return o
}

func (p *lanePair) queue(answer func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = append(p.answers, answer)
}

// answer has both ends take and answer the messages by the lanes' sockets.
func (p *lanePair) answer() {
	for {
		p.mu.Lock()
		answers := p.answers
		p.answers = nil
		p.mu.Unlock()
		if len(answers) == 0 {
			return
		}
		for _, f := range answers {
			f()
		}
	}
}

// drain has e work off the packets in the lanes. Its engine's goroutine may be at work already.
func (p *lanePair) drain(e *end) {
	e.t.Helper()
	eng := e.impl().out.eng
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		eng.poll()
		eng.rx.Lock()
		waiting := eng.near.inbox.Waiting()
		eng.rx.Unlock()
		if !waiting {
			return
		}
		if time.Now().After(limit) {
			e.t.Fatal("the lanes do not get empty")
		}
	}
}

// next polls both ends until e has a completion.
func (p *lanePair) next(e *end) verbs.WC {
	e.t.Helper()
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		n, err := e.cq.Poll(p.wc[:])
		e.must(err)
		if n > 0 {
			return p.wc[0]
		}
		for _, other := range [...]*end{p.x, p.y} {
			if other != e {
				other.impl().out.eng.poll()
			}
		}
		if time.Now().After(limit) {
			e.t.Fatal("no completion")
		}
	}
}

// want waits for a success.
func (p *lanePair) want(e *end) verbs.WC {
	e.t.Helper()
	wc := p.next(e)
	e.must(wc.Err())
	return wc
}

// TestLanes: with a lane each way, connected QPs need no network, which here loses all.
func TestLanes(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC} {
		t.Run(typ.String(), func(t *testing.T) {
			p := newLanePair(t, options{typ: typ})
			const size = 100_000
			mine, theirs := p.x.mr(size), p.y.mr(size)
			for i := range mine.Bytes() {
				mine.Bytes()[i] = byte(i * 7)
			}
			p.y.recv(verbs.RecvWR{SGList: []verbs.SGE{theirs.SGE(0, size)}})
			p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mine.SGE(0, size)}})
			if wc := p.want(p.y); wc.ByteLen != size || !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
				t.Errorf("the SEND has brought %d bytes, or other ones, want the %d that were sent", wc.ByteLen, size)
			}
			p.want(p.x)
			clear(theirs.Bytes())
			p.y.recv(verbs.RecvWR{})
			p.x.send(verbs.SendWR{Op: verbs.OpRDMAWriteWithImm, Flags: signaled, Imm: 42, SGList: []verbs.SGE{mine.SGE(0, size)}, Remote: theirs.Remote(0)})
			if wc := p.want(p.y); wc.Imm != 42 || !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
				t.Errorf("the WRITE has brought immediate data %d, or other bytes, want 42 and the same bytes", wc.Imm)
			}
			p.want(p.x)
			if typ == verbs.QPTypeRC {
				clear(mine.Bytes())
				p.x.send(verbs.SendWR{Op: verbs.OpRDMARead, Flags: signaled, SGList: []verbs.SGE{mine.SGE(0, size)}, Remote: theirs.Remote(0)})
				if p.want(p.x); !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
					t.Error("the READ has brought other bytes")
				}
			}
			if n := p.net.Stats().Lost; n != 0 {
				t.Errorf("%d packets went by the network, want none", n)
			}
		})
	}
}

// TestLaneBreaks: a lane whose receiver has written nonsense is given up, and the QP goes on by the network.
func TestLaneBreaks(t *testing.T) {
	p := newLanePair(t, options{timeout: 13})
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.want(p.x)
	if c := p.x.impl().Carrier(); c != verbs.CarrierSHM {
		t.Errorf("the carrier is %q while the lane is whole, want %q", c, verbs.CarrierSHM)
	}
	p.net.SetFaults(sim.Faults{})
	for _, o := range p.outs {
		o.Hangup()
	}
	if c := p.x.impl().Carrier(); c != verbs.CarrierUDP {
		t.Errorf("the carrier is %q once the lane is broken, want %q", c, verbs.CarrierUDP)
	}
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.want(p.x)
	if p.x.impl().lane.out != nil {
		t.Error("the QP keeps a broken lane")
	}
}

// TestLaneBreaksFull: a packet that finds a lane full, and broken, goes by the network at once, though no timer is due.
func TestLaneBreaksFull(t *testing.T) {
	p := newLanePair(t, options{typ: verbs.QPTypeUC, driven: true})
	p.net.SetFaults(sim.Faults{})
	p.fill(simAddr(2))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&p.headers[simAddr(2)][laneHeadAt])), 1<<63) // up to where nobody has written
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	if c := p.x.impl().Carrier(); c != verbs.CarrierUDP {
		t.Errorf("the carrier is %q, want %q, as the lane is broken", c, verbs.CarrierUDP)
	}
	n := 0
	for range 100 {
		var err error
		if n, err = p.x.cq.Poll(p.wc[:]); n > 0 || err != nil {
			p.x.must(err)
			break
		}
	}
	if n != 1 || p.wc[0].Status != verbs.WCSuccess {
		t.Errorf("%d completions after 100 polls, %v; want 1, a success", n, p.wc[0].Err())
	}
}

// TestLaneStopped: a receiver that reads nothing is a network that loses everything, and the retries end.
func TestLaneStopped(t *testing.T) {
	p := newLanePair(t, options{timeout: 8})
	p.y.impl().out.eng.rx.Lock() // it stands still
	defer p.y.impl().out.eng.rx.Unlock()
	big := p.x.mr(4 << 20)
	p.x.send(verbs.SendWR{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{big.SGE(0, 4<<20)}})
	p.wantRetryExceeded()
}

// wantRetryExceeded waits for the failure of x's work request. Nobody polls y.
func (p *lanePair) wantRetryExceeded() {
	t := p.x.t
	t.Helper()
	var wc [1]verbs.WC
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		n, err := p.x.cq.Poll(wc[:])
		p.x.must(err)
		if n > 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the work request does not end")
		}
	}
	if wc[0].Status != verbs.WCRetryExceeded {
		t.Errorf("the work request ended with %v, want %v", wc[0].Status, verbs.WCRetryExceeded)
	}
}

// TestLaneStoppedBefore: so it is if the lane was full before, by the packets of others.
func TestLaneStoppedBefore(t *testing.T) {
	p := newLanePair(t, options{timeout: 8})
	p.y.impl().out.eng.rx.Lock() // it stands still
	defer p.y.impl().out.eng.rx.Unlock()
	p.fill(simAddr(2))
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.wantRetryExceeded()
	if n := p.x.impl().count("shm_lost_pkts"); n == 0 {
		t.Error("0 packets are counted as lost by the lane, want all that were sent")
	}
}

// fill fills the lane to an address with records that the receiver drops.
func (p *lanePair) fill(to netip.Addr) {
	o := p.outs[to]
	o.Lock()
	defer o.Unlock()
	for o.Reserve(transport.MaxDatagram) != nil {
		o.Commit(transport.MaxDatagram, 1)
	}
	o.Publish()
}

// TestLaneOfAnother: a packet by a lane counts only if it is for the QP in all that a packet of the network
// has to be right in, but the ICRC.
func TestLaneOfAnother(t *testing.T) {
	p := newLanePair(t, options{untimed: true})
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.want(p.x)
	rcvd := func() uint64 {
		c, err := p.y.qp.Counters()
		p.y.must(err)
		return c.Value("shm_rcvd_pkts")
	}
	before := rcvd()
	put := func(o *shm.Out, change func(*wire.BTH)) {
		packet := wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, MigReq: true, AckReq: true, PKey: wire.DefaultPKey,
			DestQP: uint32(p.y.qp.QPN()), PSN: firstPSN + 1}}
		change(&packet.BTH)
		o.Lock()
		o.Commit(copy(o.Reserve(transport.MaxDatagram), packet.AppendTo(nil)), 1)
		o.Publish()
		o.Unlock()
		p.drain(p.y)
	}
	peer, pkeys := p.outs[simAddr(2)], impl(p.y.dev).port.query().BadPKeyCntr
	put(p.lane(t, simAddr(9), simAddr(2)), func(*wire.BTH) {})
	put(peer, func(b *wire.BTH) { b.PKey = 0x1234 })
	put(peer, func(b *wire.BTH) { b.DestQP ^= 1 })
	put(peer, func(b *wire.BTH) { b.Opcode = 0x1f })
	put(peer, func(b *wire.BTH) { b.Opcode = wire.Secured })
	if n := rcvd(); n != before {
		t.Errorf("%d packets were taken, want none", n-before)
	}
	if n := impl(p.y.dev).port.query().BadPKeyCntr; n != pkeys+1 {
		t.Errorf("bad_pkey_cntr %d, want %d", n, pkeys+1)
	}
	put(peer, func(*wire.BTH) {})
	if n := rcvd(); n != before+1 {
		t.Errorf("%d packets of the peer were taken, want 1", n-before)
	}
}

// TestLaneShown: packets that middleware wants to see go by the network.
func TestLaneShown(t *testing.T) {
	p := newLanePair(t, options{}, func(l link.Link) link.Link { return l })
	p.net.SetFaults(sim.Faults{})
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.want(p.x)
	if p.asked != 0 {
		t.Errorf("lanes were asked for %d times, want never", p.asked)
	}
}

// TestLaneAllocs: a message by a lane, and its acknowledgement, cost no memory.
func TestLaneAllocs(t *testing.T) {
	p := newLanePair(t, options{})
	mr := p.x.mr(64)
	send := []verbs.SendWR{{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, 64)}}}
	theirs := p.y.mr(64)
	recv := []verbs.RecvWR{{SGList: []verbs.SGE{theirs.SGE(0, 64)}}}
	round := func() {
		p.y.recv(recv...)
		p.x.send(send...)
		p.want(p.y)
		p.want(p.x)
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 && !raceEnabled {
		t.Errorf("%v allocations for a SEND, want none", n)
	}
}

// BenchmarkLaneSend is half a round trip of SENDs by lanes, with both ends polled by one goroutine: what the processor
// does for one, without the way from core to core. Each answer acknowledges its message.
func BenchmarkLaneSend(b *testing.B) {
	p := newLanePair(b, options{})
	ends := [2]*end{p.x, p.y}
	var recv [2][]verbs.RecvWR
	var send [2][]verbs.SendWR
	for i, e := range ends {
		mr := e.mr(64)
		recv[i] = []verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(0, 64)}}}
		send[i] = []verbs.SendWR{{Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{mr.SGE(0, 64)}}}
		for range 2 {
			e.recv(recv[i]...)
		}
	}
	wcs := make([]verbs.WC, 2)
	poll := func(e *end) { // until the message has come
		for {
			n, err := e.cq.Poll(wcs)
			for i := range n {
				if wcs[i].Status != verbs.WCSuccess {
					b.Fatal(wcs[i].Err())
				}
				if wcs[i].Op == verbs.WCRecv {
					return
				}
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		for i, e := range ends {
			if _, err := e.qp.PostSend(send[i]); err != nil {
				b.Fatal(err)
			}
			poll(ends[1-i])
			if _, err := ends[1-i].qp.PostRecv(recv[1-i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/oneway")
}

// TestLaneShared: the packets that QPs have put into one lane in turn reach their peers, and each QP goes on afterwards.
func TestLaneShared(t *testing.T) {
	p := newLanePair(t, options{})
	p.shares = true
	froms, tos := []*end{p.x}, []*end{p.y}
	for range 2 {
		x, y := connect(t, p.x.dev, p.y.dev, options{})
		froms, tos = append(froms, x), append(tos, y)
	}
	if p.asked != 6 || len(p.outs) != 2 {
		t.Fatalf("%d lanes were asked for, and there are %d; want 6 and 2", p.asked, len(p.outs))
	}
	eng := p.y.impl().out.eng
	for round := range 3 {
		for i, y := range tos {
			y.recv(verbs.RecvWR{ID: uint64(i)}, verbs.RecvWR{ID: uint64(i)})
		}
		eng.rx.Lock() // so that all is in the lane at once
		for range 2 {
			for i, x := range froms {
				x.send(verbs.SendWR{ID: uint64(i), Op: verbs.OpSendWithImm, Imm: uint32(i), Flags: signaled})
			}
		}
		eng.rx.Unlock()
		for i := range froms {
			for range 2 {
				if wc := p.want(tos[i]); wc.Imm != uint32(i) || wc.ID != uint64(i) {
					t.Errorf("round %d: QP %d has received %+v, want its own", round, i, wc)
				}
				if wc := p.want(froms[i]); wc.ID != uint64(i) {
					t.Errorf("round %d: QP %d has completed %+v, want its own", round, i, wc)
				}
			}
		}
	}
}

// TestLaneSecured: a QP with keys uses no lane, and takes nothing by one.
func TestLaneSecured(t *testing.T) {
	p := newLanePair(t, options{})
	p.net.SetFaults(sim.Faults{})
	asked := p.asked
	a, b := newEnd(t, p.x.dev, options{}), newEnd(t, p.y.dev, options{})
	a.secure(b)
	a.join(b, options{mtu: verbs.MTU1024})
	b.join(a, options{mtu: verbs.MTU1024})
	a.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.want(a)
	if p.asked != asked {
		t.Errorf("a QP with keys has asked for %d lanes, want none", p.asked-asked)
	}
	// The peer's process sends to it by a lane all the same, with the PSN that is due.
	packet := wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, MigReq: true, AckReq: true, PKey: wire.DefaultPKey,
		DestQP: uint32(b.qp.QPN()), PSN: firstPSN + 1}}
	o := p.outs[simAddr(2)]
	o.Lock()
	o.Commit(copy(o.Reserve(transport.MaxDatagram), packet.AppendTo(nil)), 1)
	o.Publish()
	o.Unlock()
	p.drain(b)
	c, err := b.qp.Counters()
	b.must(err)
	if c.Value("sec_plain_pkts") != 1 || c.Value("shm_rcvd_pkts") != 0 {
		t.Errorf("%d packets were dropped for being plain, want 1; %d were taken, want none", c.Value("sec_plain_pkts"), c.Value("shm_rcvd_pkts"))
	}
}

// TestFullLaneSleeps: nobody spins for a full lane. Others go on meanwhile, and what has waited goes on once
// there is room.
func TestFullLaneSleeps(t *testing.T) {
	p := newLanePair(t, options{timeout: 20})
	p.y.impl().out.eng.rx.Lock() // it stands still
	p.fill(simAddr(2))
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	e := p.x.impl().out.eng
	until := func(what string, f func() bool) {
		t.Helper()
		for limit := time.Now().Add(patience); !f(); runtime.Gosched() {
			if time.Now().After(limit) {
				p.y.impl().out.eng.rx.Unlock()
				t.Fatalf("not after %v: %s, want it by then", patience, what)
			}
		}
	}
	lost := func() bool { // the test has stood still for longer than the lane's patience
		q := p.x.impl()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.traffic.lostNear > 0
	}
	until("the engine sleeps while a lane is full", func() bool {
		at := e.sleepUntil.Load()
		return at != 0 && at <= int64(e.dev.now()+lanePatience) && e.near.full.n.Load() == 1 || lost()
	})
	p.y.impl().out.eng.rx.Unlock()
	p.want(p.x)
}

// TestLaneRoom: who waits for room in a lane goes on as soon as there is room, and not when its patience ends.
func TestLaneRoom(t *testing.T) {
	p := newLanePair(t, options{timeout: 20})
	p.y.impl().out.eng.rx.Lock() // the test reads in its place
	defer p.y.impl().out.eng.rx.Unlock()
	e := p.x.impl().out.eng
	in := p.inboxes[simAddr(2)].Lanes()[0]
	for range 100 {
		p.fill(simAddr(2))
		p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite})
		e.near.full.mu.Lock()
		waits := slices.Clone(e.near.full.qps)
		e.near.full.mu.Unlock()
		for in.Next() != nil {
		}
		in.Release()
		if len(waits) != 1 {
			continue // the test has stood still
		}
		polls := 0
		for ; e.near.full.n.Load() != 0 && e.dev.now() < waits[0].until; e.poll() {
			if e.rx.TryLock() { // else the engine's goroutine is at it, and a poll does nothing
				polls++
				e.rx.Unlock()
			}
		}
		switch {
		case e.dev.now() < waits[0].until:
			return
		case polls > 1000:
			t.Fatal("there is room, and the QP waits")
		}
	}
	t.Skip("the test stands still again and again")
}

// TestLaneSenderEnds: packets that a sender has written before its end are taken, and then the lane is given back.
func TestLaneSenderEnds(t *testing.T) {
	p := newLanePair(t, options{})
	inbox := p.inboxes[simAddr(2)]
	p.y.impl().out.eng.rx.Lock()
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	inbox.Lanes()[0].Leave()
	p.y.impl().out.eng.rx.Unlock()
	p.want(p.x)
	for limit := time.Now().Add(patience); len(inbox.Lanes()) > 0; p.y.impl().out.eng.poll() {
		if time.Now().After(limit) {
			t.Fatal("the lane stays though its sender has ended")
		}
	}
	inbox = p.inboxes[simAddr(1)]
	if p.x.must(p.x.hca().Close()); len(inbox.Lanes()) != 0 {
		t.Errorf("%d lanes to a device that was closed, want none", len(inbox.Lanes()))
	}
}

// TestLaneCommEst: the first message by a lane, which may come before the connection manager's last, tells that
// the peer is there.
func TestLaneCommEst(t *testing.T) {
	p := newLanePair(t, options{})
	told := make(chan bool, 1)
	p.y.must(p.y.qp.NotifyCommEst(func() { told <- true }))
	p.x.send(verbs.SendWR{Op: verbs.OpRDMAWrite, Flags: signaled})
	p.want(p.x)
	<-told
}

// TestNewLane: what comes by a lane that is added while the engine looks whether there are lanes is taken as of now,
// not of the device's start.
func TestNewLane(t *testing.T) {
	p := newLanePair(t, options{})
	e, inbox := p.y.impl().out.eng, p.inboxes[simAddr(2)]
	e.rx.Lock()
	defer e.rx.Unlock()
	for range 100 {
		for _, in := range inbox.Lanes() {
			inbox.Drop(in)
		}
		e.near.busy = false
		o, fd, err := shm.NewOut()
		p.y.must(err)
		o.Reserve(8)
		o.Commit(8, 1) // which is no packet
		o.Publish()
		added := make(chan error)
		begin := e.dev.now()
		go func() {
			_, err := inbox.Add(fd, shm.Bell{}, simAddr(1), 8, func() {}, nil)
			added <- err
		}()
		n, now, limit := 0, time.Duration(0), begin+patience
		for k := 1; n == 0; k++ {
			if n, now = e.serveNear(false); k%(1<<16) == 0 && e.dev.now() > limit {
				t.Fatal("nothing comes by the lane")
			}
		}
		p.y.must(<-added)
		unix.Close(fd)
		o.Close()
		if n != 1 || now < begin {
			t.Fatalf("%d packets came %v after the device's start, want 1, %v after it or later", n, now, begin)
		}
	}
}

// TestLooksFar: who finds the lanes empty looks no further, but each farPolls-th time at the clock, and then at the
// network if nobody has for long or something came from there lately.
func TestLooksFar(t *testing.T) {
	p := newLanePair(t, options{})
	e := p.y.impl().out.eng
	for _, tt := range []struct {
		name        string
		busy        bool
		looked, far time.Duration // ago
		idle        int           // looks that go no further, of farPolls
	}{
		{"nothing has come by lanes", false, 0, time.Hour, 0},
		{"somebody has just looked", true, -time.Hour, time.Hour, farPolls},
		{"nobody has looked for long", true, farTime, time.Hour, farPolls - 1},
		{"something came from the network", true, -time.Hour, 0, farPolls - 1},
	} {
		e.rx.Lock()
		now := e.dev.now()
		e.near.skips, e.near.busy, e.near.looked, e.near.far = 0, tt.busy, now-tt.looked, now-tt.far
		n := 0
		for n < farPolls && e.idle() {
			n++
		}
		e.rx.Unlock()
		if n != tt.idle {
			t.Errorf("%s: %d looks go no further, want %d", tt.name, n, tt.idle)
		}
	}
}
