package transport

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// fragile is memory of a host whose second half can go, as if the program had unmapped it.
type fragile struct {
	*region
	t testing.TB
}

const fragileSize = 16 << 10

// registerFragile registers memory that the test will take away.
func (h *testHost) registerFragile() fragile {
	h.t.Helper()
	b, err := unix.Mmap(-1, 0, fragileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = unix.Munmap(b) })
	return fragile{h.registerBytes(0x7000_0000, b, allAccess), h.t}
}

// vanish takes the second half of the memory.
func (f fragile) vanish() {
	if err := unix.Mprotect(f.data[fragileSize/2:], unix.PROT_NONE); err != nil {
		f.t.Error(err)
	}
}

// TestMemoryFault: if the program has taken memory away since its registration, a work request with that memory fails
// with a completion, and a peer whose request has that target gets a NAK. The event at the memory's end says so.
// Messages begin in memory that is there. Nothing of the region is held afterwards.
func TestMemoryFault(t *testing.T) {
	const at, n = fragileSize/2 - 1500, 3000
	tests := []struct {
		name   string
		theirs bool // the memory is b's
		wr     func(p *pair, f fragile) verbs.SendWR
		recv   bool // b's receive is of that memory
		send   verbs.WCStatus
		events []verbs.EventType
	}{
		{name: "SEND", wr: func(p *pair, f fragile) verbs.SendWR { return sendWR(2, f.sge(at, n)) }, send: verbs.WCLocProtErr},
		{name: "WRITE", wr: func(p *pair, f fragile) verbs.SendWR { return writeWR(2, p.b.mem.remote(0), f.sge(at, n)) }, send: verbs.WCLocProtErr},
		{name: "READ", wr: func(p *pair, f fragile) verbs.SendWR { return readWR(2, p.b.mem.remote(0), f.sge(at, n)) }, send: verbs.WCLocProtErr},
		{name: "atomic", wr: func(p *pair, f fragile) verbs.SendWR {
			return addWR(2, p.b.mem.remote(0), 1, f.sge(fragileSize/2, 8))
		}, send: verbs.WCLocProtErr},
		{name: "receive", theirs: true, recv: true, wr: func(p *pair, _ fragile) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, n)) },
			send: verbs.WCRemOpErr},
		{name: "short receive", theirs: true, recv: true, wr: func(p *pair, _ fragile) verbs.SendWR { return sendWR(2, p.a.mem.sge(0, 1000), p.a.mem.sge(0, 1000)) },
			send: verbs.WCRemOpErr},
		{name: "target of a WRITE", theirs: true, wr: func(p *pair, f fragile) verbs.SendWR { return writeWR(2, f.remote(at), p.a.mem.sge(0, n)) },
			send: verbs.WCRemOpErr, events: []verbs.EventType{verbs.EventQPFatal}},
		{name: "target of a short WRITE", theirs: true, wr: func(p *pair, f fragile) verbs.SendWR {
			return writeWR(2, f.remote(fragileSize/2), p.a.mem.sge(0, 8))
		}, send: verbs.WCRemOpErr, events: []verbs.EventType{verbs.EventQPFatal}},
		{name: "source of a READ", theirs: true, wr: func(p *pair, f fragile) verbs.SendWR { return readWR(2, f.remote(at), p.a.mem.sge(0, n)) },
			send: verbs.WCRemOpErr, events: []verbs.EventType{verbs.EventQPFatal}},
		{name: "word of FETCH_ADD", theirs: true, wr: func(p *pair, f fragile) verbs.SendWR {
			return addWR(2, f.remote(fragileSize/2), 1, p.a.mem.sge(0, 8))
		}, send: verbs.WCRemOpErr, events: []verbs.EventType{verbs.EventQPFatal}},
		{name: "word of CMP_SWAP", theirs: true, wr: func(p *pair, f fragile) verbs.SendWR {
			return casWR(2, f.remote(fragileSize/2), 0, 1, p.a.mem.sge(0, 8))
		}, send: verbs.WCRemOpErr, events: []verbs.EventType{verbs.EventQPFatal}},
	}
	for _, tt := range tests {
		for _, selective := range []bool{false, true} {
			name := tt.name
			if selective {
				name += ", selective"
			}
			t.Run(name, func(t *testing.T) {
				p := newPair(t, setup{selective: selective})
				owner := p.a
				if tt.theirs {
					owner = p.b
				}
				f := owner.registerFragile()
				p.b.postRecv(101, p.b.mem.sge(0, 64))
				to := p.b.mem.sge(0, n)
				if tt.recv {
					to = f.sge(at, n)
				}
				p.b.postRecv(102, to)
				p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
				p.run()
				f.vanish()
				p.post(p.a, tt.wr(p, f))
				p.run()
				p.a.wantState(verbs.QPStateErr)
				p.a.wantSends(wc{1, 0}, wc{2, tt.send})
				p.a.wantEvents()
				p.b.wantEvents(tt.events...)
				cause := p.a.sends[1].wc.Cause
				switch {
				case !tt.theirs:
					p.b.wantState(verbs.QPStateRTS)
				case tt.recv:
					p.b.wantState(verbs.QPStateErr)
					p.b.wantRecvs(wc{101, 0}, wc{102, verbs.WCLocProtErr})
					cause = p.b.recvd[1].wc.Cause
				default:
					p.b.wantState(verbs.QPStateErr)
					p.b.wantRecvs(wc{101, 0}, wc{102, verbs.WCFlushErr})
					cause = p.b.causes[0]
				}
				if !errors.Is(cause, mem.ErrFault) || !strings.Contains(cause.Error(), "close the MR before that") {
					t.Errorf("the cause is %v, want one of the kind mem.ErrFault, with the remedy", cause)
				}
				if want := uint64(bit(tt.theirs)); p.b.qp.Counters().RefusedOperation != want {
					t.Errorf("b counts %d operations refused, want %d", p.b.qp.Counters().RefusedOperation, want)
				}
				owner.wantUnused(tt.name, f.region)
			})
		}
	}
}

// TestMemoryFaultFast: a SEND of the fast path whose memory has gone fails as any other SEND, at either end.
func TestMemoryFaultFast(t *testing.T) {
	for _, theirs := range []bool{false, true} {
		p := newPair(t, setup{fast: true})
		f := [2]*node{p.a, p.b}[bit(theirs)].registerFragile()
		from, to := f.sge(fragileSize-64, 64), p.b.mem.sge(0, 64)
		want, recvd := verbs.WCLocProtErr, []wc(nil)
		if theirs {
			from, to = p.a.mem.sge(0, 64), from
			want, recvd = verbs.WCRemOpErr, []wc{{101, verbs.WCLocProtErr}}
		}
		p.b.postRecv(101, to)
		f.vanish()
		p.post(p.a, sendWR(1, from))
		p.run()
		p.a.wantSends(wc{1, want})
		p.b.wantRecvs(recvd...)
	}
}

// TestMemoryFaultUnreliable: an unreliable QP whose own memory has gone says so: as a sender in SQE, as a receiver in ERR.
func TestMemoryFaultUnreliable(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeUD} {
		t.Run(typ.String(), func(t *testing.T) {
			send := func(p *pair, id uint64, sg verbs.SGE) verbs.SendWR {
				if typ == verbs.QPTypeUD {
					return udWR(id, p.b, sg)
				}
				return ucWR(id, verbs.OpSend, verbs.RemoteAddr{}, sg)
			}
			p := newPair(t, setup{typ: typ})
			f := p.a.registerFragile()
			f.vanish()
			p.post(p.a, send(p, 1, f.sge(fragileSize/2-8, 16)))
			p.run()
			p.a.wantState(verbs.QPStateSQE)
			p.a.wantSends(wc{1, verbs.WCLocProtErr})

			p = newPair(t, setup{typ: typ})
			f = p.b.registerFragile()
			f.vanish()
			p.b.postRecv(101, f.sge(fragileSize/2-8, 100))
			p.post(p.a, send(p, 1, p.a.mem.sge(0, 16)))
			p.run()
			p.a.wantSends(wc{1, 0})
			p.b.wantState(verbs.QPStateErr)
			p.b.wantRecvs(wc{101, verbs.WCLocProtErr})
		})
	}
	p := newPair(t, setup{typ: verbs.QPTypeUC})
	f := p.b.registerFragile()
	f.vanish()
	p.post(p.a, ucWR(1, verbs.OpRDMAWrite, f.remote(fragileSize/2-8), p.a.mem.sge(0, 16)))
	p.run()
	p.a.wantSends(wc{1, 0})
	p.b.wantState(verbs.QPStateErr)
	p.b.wantEvents(verbs.EventQPFatal)
}

// TestMemoryFaultLent: if a lent payload's target has gone, the fault is the receiver's memory.
func TestMemoryFaultLent(t *testing.T) {
	for _, gather := range []int{1, 2} {
		p := newPair(t, setup{lends: true})
		f := p.b.registerFragile()
		f.vanish()
		const n = 8192
		sg := []verbs.SGE{f.sge(fragileSize/2-n/2, n)}
		if gather == 2 {
			sg = []verbs.SGE{f.sge(fragileSize/2-n/2, n/2), f.sge(fragileSize/2, n/2)}
		}
		p.b.postRecv(101, sg...)
		p.post(p.a, sendWR(1, p.a.mem.sge(0, n)))
		p.run()
		p.a.wantSends(wc{1, verbs.WCRemOpErr})
		p.b.wantRecvs(wc{101, verbs.WCLocProtErr})
		p.b.wantUnused("receive", f.region)
	}
}

// TestMemoryFaultOutOfOrder: a packet that comes before its turn, for memory that has gone, is refused in its turn.
// The packets at the ends of the message find memory.
func TestMemoryFaultOutOfOrder(t *testing.T) {
	p := newPair(t, setup{selective: true, mtu: verbs.MTU1024})
	f := p.b.registerFragile()
	f.vanish()
	if err := unix.Mprotect(f.data[fragileSize*3/4:], unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	p.post(p.a, writeWR(1, f.remote(fragileSize/2-2048), p.a.mem.sge(0, 7*1024)))
	p.loseNth(p.a, 1)
	p.run()
	p.a.wantSends(wc{1, verbs.WCRemOpErr})
	p.b.wantEvents(verbs.EventQPFatal)
	p.b.wantUnused("target", f.region)
}

// TestMemoryFaultRepeatedRead: a READ that comes again, for memory that has gone since, does not end the connection
// of this end: the peer may have the answer.
func TestMemoryFaultRepeatedRead(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU1024})
	f := p.b.registerFragile()
	p.post(p.a, readWR(1, f.remote(fragileSize/2), p.a.mem.sge(0, 2048)))
	p.run()
	request := p.packets(p.a, 0)[0]
	f.vanish()
	n := len(p.log)
	p.inject(p.b, request.Packet)
	p.run()
	got := p.packets(p.b, n)
	if len(got) != 1 || got[0].AETH.Syndrome != wire.SyndromeNAK(wire.NAKRemoteOperationalError) {
		t.Errorf("answered with %+v, want a NAK of a remote operational error", got)
	}
	p.b.wantState(verbs.QPStateRTS)
	p.b.wantEvents()
}

// TestMemoryFaultCarriedOut: an atomic that the device has executed itself, and whose result finds no memory, fails.
func TestMemoryFaultCarriedOut(t *testing.T) {
	p := newPair(t, setup{})
	wr := addWR(1, p.b.mem.remote(0), 1, p.a.mem.sge(0, 8))
	p.a.qp.Complete(&wr, 8, mem.ErrFault)
	p.a.collect()
	p.a.wantSends(wc{1, verbs.WCLocProtErr})
	p.a.wantState(verbs.QPStateErr)
}
