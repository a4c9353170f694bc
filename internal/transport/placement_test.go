package transport

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

func flushWR(id uint64, to verbs.RemoteAddr, n uint32, p verbs.FlushPlacement) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: verbs.OpFlush, Flags: verbs.SendSignaled, Remote: to, Flush: verbs.Flush{Length: n, Placement: p}}
}

func atomicWriteWR(id uint64, to verbs.RemoteAddr, value uint64) verbs.SendWR {
	b := binary.NativeEndian.AppendUint64(nil, value)
	return verbs.SendWR{ID: id, Op: verbs.OpAtomicWrite, Flags: verbs.SendSignaled | verbs.SendInline, Remote: to, InlineData: b}
}

// TestPlacementPackets: what FLUSH and ATOMIC WRITE are on the wire, and their answers.
func TestPlacementPackets(t *testing.T) {
	p := newPair(t, setup{psnA: 100})
	at := p.b.mem.remote(64)
	whole := flushWR(3, verbs.RemoteAddr{RKey: at.RKey}, 0, verbs.FlushGlobal)
	whole.Flush.Selectivity = verbs.FlushMR
	p.post(p.a, flushWR(1, at, 300, verbs.FlushGlobal), atomicWriteWR(2, at, 0x1122334455667788), whole)
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0})
	for i, op := range []verbs.WCOpcode{verbs.WCFlush, verbs.WCAtomicWrite, verbs.WCFlush} {
		if got := p.a.sends[i].wc; got.Op != op || got.ByteLen != 0 {
			t.Errorf("completion %d: %v with %d bytes, want %v with none", i, got.Op, got.ByteLen, op)
		}
	}
	if got := nativeWord(p.b.mem.data[64:]); got != 0x1122334455667788 {
		t.Errorf("the word is %#x, want that of the ATOMIC WRITE", got)
	}
	sent := p.packets(p.a, 0)
	rkey := uint32(at.RKey)
	type request struct {
		op   wire.Opcode
		feth wire.FETH
		reth wire.RETH
		n    int
	}
	want := []request{
		{wire.RCFlush, wire.FETH{Placement: wire.FlushGlobal}, wire.RETH{VA: at.VA, RKey: rkey, Length: 300}, 0},
		{wire.RCAtomicWrite, wire.FETH{}, wire.RETH{VA: at.VA, RKey: rkey, Length: 8}, 8},
		{wire.RCFlush, wire.FETH{Placement: wire.FlushGlobal, Selectivity: wire.FlushMR}, wire.RETH{RKey: rkey}, 0},
	}
	for i, w := range want {
		s := sent[i]
		if s.Opcode != wire.RCFlush {
			s.FETH = wire.FETH{}
		}
		if got := (request{s.Opcode, s.FETH, s.RETH, len(s.Payload)}); got != w || s.PSN != wire.PSN(100+i) || !s.AckReq {
			t.Errorf("packet %d: %+v, PSN %v, asks for an ACK: %v; want %+v, PSN %d, true", i, got, s.PSN, s.AckReq, w, 100+i)
		}
	}
	answers := p.packets(p.b, 0)
	if len(answers) != 3 {
		t.Fatalf("%d answers, want 3", len(answers))
	}
	for i, s := range answers {
		if s.Opcode != wire.RCRDMAReadResponseOnly || len(s.Payload) != 0 || s.PSN != wire.PSN(100+i) || s.AETH.Syndrome.Kind() != wire.KindACK {
			t.Errorf("answer %d: %v, PSN %v, %d bytes, %v; want the response to a READ of no bytes", i, s.Opcode, s.PSN, len(s.Payload), s.AETH)
		}
	}
	if w := p.b.qp.Work(); w.Flushes != 2 || w.AtomicWrites != 1 || w.Reads != 0 || w.WriteBytes != 0 {
		t.Errorf("work %+v, want 2 FLUSHes and an ATOMIC WRITE", w)
	}
}

// TestPlacementRefused: requests that a responder refuses, with the NAK and the cause.
func TestPlacementRefused(t *testing.T) {
	const all = remoteAccess
	flush := func(placement, selectivity uint8, va uint64, key, length uint32) wire.Packet {
		q := rdma(req(wire.RCFlush, 0, 0), va, key, length)
		q.FETH = wire.FETH{Placement: placement, Selectivity: selectivity}
		return q
	}
	write := func(va uint64, n int, length uint32) wire.Packet {
		return rdma(req(wire.RCAtomicWrite, 0, n), va, keyB, length)
	}
	for name, c := range map[string]struct {
		access verbs.Access
		packet wire.Packet
		nak    wire.NAKCode
		cause  error
	}{
		"flush: no placement":          {all, flush(0, 0, memBaseB, keyB, 8), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"flush: unknown placement":     {all, flush(5, 0, memBaseB, keyB, 8), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"flush: unknown selectivity":   {all, flush(1, 2, memBaseB, keyB, 8), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"flush: too long":              {all, flush(1, 0, memBaseB, keyB, 1<<31+1), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"flush: not allowed by the QP": {all &^ verbs.AccessFlushGlobal, flush(1, 0, memBaseB, keyB, 8), wire.NAKInvalidRequest, verbs.ErrQPAccess},
		"flush: half allowed":          {all &^ verbs.AccessFlushPersistent, flush(3, 0, memBaseB, keyB, 8), wire.NAKInvalidRequest, verbs.ErrQPAccess},
		"flush: no storage behind it":  {all, flush(2, 0, memBaseB, keyB, 8), wire.NAKRemoteAccessError, nil},
		"flush: bad key":               {all, flush(1, 0, memBaseB, keyB^0x500, 8), wire.NAKRemoteAccessError, nil},
		"flush: bad key, whole":        {all, flush(1, 1, memBaseB, keyB^0x500, 0), wire.NAKRemoteAccessError, nil},
		"flush: beyond the region":     {all, flush(1, 0, memBaseB+memSize-4, keyB, 8), wire.NAKRemoteAccessError, nil},
		"write: not allowed by the QP": {all &^ verbs.AccessRemoteWrite, write(memBaseB, 8, 8), wire.NAKInvalidRequest, verbs.ErrQPAccess},
		"write: not aligned":           {all, write(memBaseB+4, 8, 8), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"write: short":                 {all, write(memBaseB, 4, 8), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"write: long":                  {all, write(memBaseB, 16, 16), wire.NAKInvalidRequest, verbs.ErrMalformed},
		"write: beyond the region":     {all, write(memBaseB+memSize, 8, 8), wire.NAKRemoteAccessError, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, setup{access: c.access})
			before := slices.Clone(p.b.mem.data)
			p.inject(p.b, c.packet)
			p.transmit()
			sent := p.packets(p.b, 0)
			if len(sent) != 1 || sent[0].AETH.Syndrome != wire.SyndromeNAK(c.nak) {
				t.Fatalf("answers %v, want the NAK %v", sent, c.nak)
			}
			p.b.wantState(verbs.QPStateErr)
			if c.cause != nil && !errors.Is(p.b.causes[0], c.cause) {
				t.Errorf("cause %v, want one that is %v", p.b.causes[0], c.cause)
			}
			if !slices.Equal(before, p.b.mem.data) {
				t.Error("the memory has changed, want it as before")
			}
		})
	}
}

// TestDuplicatePlacement: a repeated ATOMIC WRITE or FLUSH is answered again, and not executed.
func TestDuplicatePlacement(t *testing.T) {
	p := newPair(t, setup{})
	at := p.b.mem.remote(0)
	lost := 0
	p.route = func(from *node, _ int, q *wire.Packet) []delay {
		if from == p.b && q.Opcode == wire.RCRDMAReadResponseOnly && lost < 2 {
			lost++
			binary.NativeEndian.PutUint64(p.b.mem.data, 77) // by the program, after the write
			return nil
		}
		return []delay{testDelay}
	}
	p.post(p.a, atomicWriteWR(1, at, 5), flushWR(2, at, 8, verbs.FlushGlobal))
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if got := nativeWord(p.b.mem.data); got != 77 {
		t.Errorf("the word is %d, want 77: a repeated ATOMIC WRITE changes nothing", got)
	}
	if w := p.b.qp.Work(); w.Flushes != 1 || w.AtomicWrites != 1 || lost != 2 {
		t.Errorf("%d FLUSHes and %d ATOMIC WRITEs are executed, and %d answers lost; want 1, 1 and 2", w.Flushes, w.AtomicWrites, lost)
	}
}

// TestFlushToStorage: the requests behind a FLUSH to storage wait until it is done, whoever the peer is.
func TestFlushToStorage(t *testing.T) {
	for _, selective := range []bool{false, true} {
		p := newPair(t, setup{selective: selective})
		p.b.storeInFile()
		p.b.disk = true
		at := p.b.mem.remote(0)
		clear(p.b.mem.data[:16])
		p.b.postRecv(9, p.b.mem.sge(64, 64))
		p.post(p.a, writeWR(1, at.Add(64), p.a.mem.sge(0, 64)), flushWR(2, at, 4096, verbs.FlushPersistent), atomicWriteWR(3, at, 1), sendWR(4, p.a.mem.sge(0, 8)))
		p.runUntil(p.now + 2*time.Millisecond)
		if len(p.b.flushings) != 1 || nativeWord(p.b.mem.data) != 0 || len(p.b.recvd) != 0 {
			t.Fatalf("selective %v: %d FLUSHes are under way, the word is %d, and %d messages have come; want 1, 0 and 0", selective,
				len(p.b.flushings), nativeWord(p.b.mem.data), len(p.b.recvd))
		}
		p.a.wantSends(wc{1, 0})
		p.b.stored()
		p.run()
		p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, 0}, wc{4, 0})
		p.b.wantRecvs(wc{9, 0})
		if w := p.b.qp.Work(); nativeWord(p.b.mem.data) != 1 || w.Flushes != 1 || w.AtomicWrites != 1 {
			t.Errorf("selective %v: the word is %d, work %+v; want 1, one FLUSH and one ATOMIC WRITE", selective, nativeWord(p.b.mem.data), w)
		}
		if n := p.b.qp.Counters().SentSequenceNAKs; !selective && n == 0 {
			t.Error("no NAK asks for the packets that were dropped behind the FLUSH, want one")
		}
		if n := p.a.qp.Counters().Retransmits; selective && n > 1 {
			t.Errorf("%d packets are sent again, want one probe at most: an adverb knows that its FLUSH has come", n)
		}
	}
}

// TestSlowStorage: between two adverbs a FLUSH to storage may take longer than all retries of the acknowledge timeout, also
// while the network loses packets.
func TestSlowStorage(t *testing.T) {
	p := newPair(t, setup{selective: true, timeout: 10}) // 4 ms, and 7 retries
	p.b.storeInFile()
	p.b.disk = true
	lost := 0
	p.route = func(from *node, _ int, q *wire.Packet) []delay {
		if lost++; lost%3 == 0 {
			return nil
		}
		return []delay{testDelay}
	}
	p.post(p.a, flushWR(1, p.b.mem.remote(0), 4096, verbs.FlushPersistent), writeWR(2, p.b.mem.remote(64), p.a.mem.sge(0, 64)))
	p.runUntil(p.now + time.Second)
	p.a.wantSends()
	p.a.wantState(verbs.QPStateRTS)
	p.b.stored()
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0})
	if w := p.b.qp.Work(); w.Flushes != 1 {
		t.Errorf("%d FLUSHes, want 1", w.Flushes)
	}

	// A peer that has gone meanwhile is found out.
	p.post(p.a, flushWR(3, p.b.mem.remote(0), 4096, verbs.FlushPersistent))
	p.runUntil(p.now + time.Second)
	p.route = func(*node, int, *wire.Packet) []delay { return nil }
	p.run()
	p.a.wantSends(wc{1, 0}, wc{2, 0}, wc{3, verbs.WCRetryExceeded})
}

// TestFlushEnds: a FLUSH to storage whose QP has gone to ERR or RESET changes nothing, and one that fails is refused.
func TestFlushEnds(t *testing.T) {
	begin := func() *pair {
		p := newPair(t, setup{})
		p.b.storeInFile()
		p.b.disk = true
		p.post(p.a, flushWR(1, p.b.mem.remote(0), 8, verbs.FlushPersistent|verbs.FlushGlobal))
		p.runUntil(p.now + ms)
		if len(p.b.flushings) != 1 {
			t.Fatalf("%d FLUSHes are under way, want 1", len(p.b.flushings))
		}
		return p
	}
	for _, to := range []verbs.QPState{verbs.QPStateErr, verbs.QPStateReset} {
		p := begin()
		p.state(p.b, to)
		n := len(p.log)
		p.b.stored()
		p.transmit()
		if got := p.packets(p.b, n); len(got) != 0 || p.b.qp.Work().Flushes != 0 || p.b.qp.State() != to {
			t.Errorf("in %v: answers %v, %d FLUSHes, state %v; want none, 0, and the same state", to, got, p.b.qp.Work().Flushes, p.b.qp.State())
		}
	}
	p := begin()
	first := p.b.flushings[0]
	p.b.stored()
	p.post(p.a, flushWR(2, p.b.mem.remote(0), 8, verbs.FlushPersistent))
	p.runUntil(p.now + ms)
	p.b.qp.Flushed(first, nil) // which is done already
	p.b.collect()
	p.runUntil(p.now + ms)
	if p.a.wantSends(wc{1, 0}); p.b.qp.Work().Flushes != 1 {
		t.Errorf("%d FLUSHes are executed, want 1: the second is under way", p.b.qp.Work().Flushes)
	}

	p = begin()
	f := p.b.flushings[0]
	p.b.flushings = nil
	f.Sync()
	p.b.qp.Flushed(f, errors.New("the disk is full"))
	p.b.collect()
	p.run()
	p.a.wantSends(wc{1, verbs.WCRemOpErr})
	p.b.wantState(verbs.QPStateErr)
}

// TestManyFlushes: Linux counts no FLUSH among the READs that a peer takes at a time.
func TestManyFlushes(t *testing.T) {
	p := newPair(t, setup{rd: 16, destRD: 2})
	for i := range uint64(12) {
		p.post(p.a, flushWR(i, p.b.mem.remote(0), 8, verbs.FlushGlobal))
	}
	p.run()
	if len(p.a.sends) != 12 || p.a.sends[11].wc.Status != verbs.WCSuccess {
		t.Errorf("%d completions, want 12 successes: %+v", len(p.a.sends), p.a.sends)
	}
}
