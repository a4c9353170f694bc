package transport

import (
	"bytes"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// loan is a packet in flight that stands for several. A payload that is lent lies in the sender's memory until it is
// taken.
type loan struct {
	from    *node
	payload []byte // nil if the payload is in the packet
	packets int
	taken   bool // or recalled
}

// lend makes the memory of e an allocation, and has its QP lend payloads from there.
func (e *node) lend() {
	mr, err := e.pd.AllocMR(memSize, allAccess|verbs.AccessMWBind)
	if err != nil {
		e.t.Fatal(err)
	}
	copy(mr.Bytes(), e.mem.data)
	e.mem = &region{mr: mr, key: uint32(mr.RKey()), base: mr.Addr(), data: mr.Bytes()}
	e.qp.Lend(func(f *mem.File) bool { return f.Size == memSize })
}

// mustLend skips a test of loans where nothing is lent.
func mustLend(t *testing.T) {
	t.Helper()
	if !canLend {
		t.Skip("no process can map another's regions here: that is built for Linux")
	}
}

// loan returns the loan of l, or nil.
func (e *node) loan(l *Loan) *loan {
	switch {
	case l.Packets == 0:
		return nil
	case l.File == nil:
		return &loan{packets: int(l.Packets)}
	}
	return &loan{from: e, payload: e.mem.data[l.Off:][:l.Len], packets: int(l.Packets)}
}

// Taken implements Lent: a QP that has failed has recalled its loans.
func (l *loan) Taken() bool {
	was := l.taken
	l.taken = true
	return !was && l.from.qp.receives()
}

// runs returns for each packet that e has sent how many packets it stands for: 0 if for itself.
func (p *pair) runs(e *node) (n []int) {
	for _, s := range p.packets(e, 0) {
		if s.Opcode.HasPayload() {
			n = append(n, s.run)
		}
	}
	return n
}

// unreadable has both ends of p lend nothing, though their QPs may lend.
func unreadable(p *pair, _ *verbs.SendWR) {
	p.a.qp.Lend(func(*mem.File) bool { return false })
	p.b.qp.Lend(func(*mem.File) bool { return false })
}

// TestLend: a long payload in memory that the peer can read goes as few packets, which stand for many. Any other
// payload goes by packets with as much of it as the largest path MTU holds. The data and the PSNs are the same.
func TestLend(t *testing.T) {
	mustLend(t)
	const mtu, at = 1024, 4096
	few := func(n int) []int { return make([]int, n) }
	for _, tt := range []struct {
		name string
		n    int
		set  func(p *pair, wr *verbs.SendWR)
		want []int // of the packets with the data
	}{
		{"whole", 3 * mtu, nil, []int{3}},
		{"with a short end", 3*mtu + 1, nil, []int{4}},
		{"in parts", 100 * mtu, nil, []int{64, 36}},
		{"with a packet left over", 64*mtu + 5, nil, []int{64, 0}},
		{"one packet", mtu, nil, []int{1}},
		{"a short packet", lendLeast - 1, nil, few(1)},
		{"nothing", 0, nil, few(1)},
		{"across SGEs", 3 * mtu, func(p *pair, wr *verbs.SendWR) {
			wr.SGList = []verbs.SGE{p.a.mem.sge(at, mtu+1), p.a.mem.sge(at+mtu+1, 2*mtu-1)}
		}, []int{3}},
		{"from memory that the peer cannot read", 3 * mtu, unreadable, []int{3}},
		{"much of it", 10*mtu - 1, unreadable, []int{4, 4, 2}},
		{"much of it, with a packet left over", 9 * mtu, unreadable, []int{4, 4, 0}},
		{"little of it", mtu, unreadable, few(1)},
		{"by the network", 3 * mtu, func(p *pair, _ *verbs.SendWR) {
			p.a.qp.Lend(nil)
			p.b.qp.Lend(nil)
		}, few(3)},
	} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			p := newPair(t, setup{mtu: verbs.MTU1024, psnA: 0xfffffe, lends: true, turn: 128})
			wr := verbs.SendWR{ID: 1, Op: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.a.mem.sge(at, tt.n)}, Remote: p.b.mem.remote(at), Imm: 5}
			from, data := p.a, bytes.Clone(p.a.mem.data[at:][:tt.n])
			if op == verbs.OpRDMARead {
				if tt.name == "across SGEs" {
					continue // a response may be scattered
				}
				from, data = p.b, bytes.Clone(p.b.mem.data[at:][:tt.n])
			}
			p.b.postRecv(70, p.b.mem.sge(at, tt.n))
			if tt.set != nil {
				tt.set(p, &wr)
			}
			p.post(p.a, wr)
			p.run()
			p.a.wantSends(wc{1, verbs.WCSuccess})
			want := tt.want
			if op == verbs.OpRDMARead && tt.n > readChunk*mtu { // two requests
				want = []int{64, tt.n/mtu - 64}
				if tt.n%mtu != 0 {
					want[1] = 0
				}
			}
			if got := p.runs(from); !slices.Equal(got, want) {
				t.Errorf("%v, %s: packets stand for %v, want %v", op, tt.name, got, want)
			}
			to := p.a
			if from == p.a {
				to = p.b
			}
			if !bytes.Equal(to.mem.data[at:][:tt.n], data) {
				t.Errorf("%v, %s: the data differ", op, tt.name)
			}
			if last, want := p.b.qp.receiver.epsn, wire.PSN(0xfffffe).Add(max(1, (tt.n+mtu-1)/mtu)); last != want {
				t.Errorf("%v, %s: the PSN expected next is %v, want %v", op, tt.name, last, want)
			}
			switch op {
			case verbs.OpRDMAWrite, verbs.OpRDMARead:
				p.b.wantRecvs()
			default:
				p.b.wantRecvs(wc{70, verbs.WCSuccess})
				if n := int(p.b.recvd[0].wc.ByteLen); n != tt.n {
					t.Errorf("%v, %s: %d bytes received, want %d", op, tt.name, n, tt.n)
				}
			}
		}
	}
}

// TestLendNot: inline data, which lie in no region, are not lent. Neither are the payloads of a QP with a rate, since
// a run would take the time of one packet. A run of responses counts as so many packets of a turn.
func TestLendNot(t *testing.T) {
	const mtu, n = 256, 3 * 256
	inline := func(p *pair) verbs.SendWR {
		return withFlags(writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, n)), verbs.SendSignaled|verbs.SendInline)
	}
	write := func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, n)) }
	read := func(p *pair) verbs.SendWR { return readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, n)) }
	for name, tt := range map[string]struct {
		wr   func(p *pair) verbs.SendWR
		rate uint64
		turn int
		most int // the most packets that one with a lent payload stands for
	}{
		"inline data":            {wr: inline},
		"a WRITE with a rate":    {wr: write, rate: 100e6},
		"a READ with a rate":     {wr: read, rate: 100e6},
		"a READ in turns of two": {wr: read, turn: 2, most: 2},
	} {
		p := newPair(t, setup{mtu: verbs.MTU256, lends: true, turn: tt.turn, cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: n}})
		if tt.rate != 0 {
			paced(p.a, tt.rate)
			paced(p.b, tt.rate)
		}
		p.post(p.a, tt.wr(p))
		if p.run(); len(p.a.sends) != 1 || p.a.sends[0].wc.Status != verbs.WCSuccess {
			t.Errorf("%s: completions %v, want one success", name, p.a.sends)
		}
		for _, s := range p.log {
			if s.run > tt.most && (tt.most > 0 || len(s.Payload) == 0) {
				t.Errorf("%s: %v stands for %d packets, want %d at most", name, s.Opcode, s.run, tt.most)
			}
		}
	}
}

// TestLendWindow: a memory window's bytes are not lent but copied, since the window may end before they are read.
func TestLendWindow(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
	window := p.b.bindWindow(windowKey)
	p.post(p.a, readWR(1, window.remote(0), p.a.mem.sge(0, 3*1024)))
	p.run()
	p.a.wantSends(wc{1, verbs.WCSuccess})
	if got := p.runs(p.b); !slices.Equal(got, []int{3}) {
		t.Errorf("packets stand for %v, want one for 3", got)
	}
	if n := len(p.packets(p.b, 0)[0].Payload); n != 3*1024 {
		t.Errorf("the packet has %d bytes, want 3072", n)
	}
}

// TestLendHolds: the region stays while its file is offered to the peer. The region's Close waits for the offer, but
// not for the peer.
func TestLendHolds(t *testing.T) {
	mustLend(t)
	synctest.Test(t, func(t *testing.T) {
		for _, read := range []bool{false, true} {
			p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
			e, wr := p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*1024))
			if read {
				e, wr = p.b, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*1024))
			}
			var closed atomic.Bool
			held := false
			e.qp.Lend(func(*mem.File) bool {
				go func() {
					e.mem.mr.Close()
					closed.Store(true)
				}()
				synctest.Wait()
				held = !closed.Load()
				return true
			})
			p.post(p.a, wr)
			for p.transmit(); len(p.runs(e)) == 0; p.transmit() {
				p.step(Never - 1)
			}
			synctest.Wait()
			if !held || !closed.Load() {
				t.Errorf("READ %v: Close waits while the file is offered: %v, and ends then: %v; want both", read, held, closed.Load())
			}
		}
	})
}

// TestACKInPlaceOfRun: a run of packets whose memory cannot be read is not sent. The acknowledgement that goes in its
// place stands for itself.
func TestACKInPlaceOfRun(t *testing.T) {
	p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
	p.b.postRecv(1, p.b.mem.sge(0, 8))
	p.post(p.a, sendWR(1, p.a.mem.sge(0, 8)))
	p.transmit()
	mark, f := len(p.log), p.flight[0]
	p.flight, p.now = nil, f.at
	if p.receive(f.to, f.data, f.loan); !p.b.qp.DeferACK(0) {
		t.Fatal("the acknowledgement is not deferred, want it deferred")
	}
	unreadable := p.b.mem.sge(0, 3*1024)
	unreadable.LKey++
	p.post(p.b, sendWR(2, unreadable))
	p.transmit()
	sent := p.packets(p.b, mark)
	if len(sent) != 1 || sent[0].Opcode != wire.RCAcknowledge || sent[0].run != 0 {
		t.Fatalf("b sent %v, want an acknowledgement that stands for itself", sent)
	}
}

// TestLendLost: repeats go packet by packet, with the bytes that are in memory then.
func TestLendLost(t *testing.T) {
	mustLend(t)
	for _, selective := range []bool{false, true} {
		p := newPair(t, setup{mtu: verbs.MTU1024, lends: true, selective: selective})
		p.route = func(from *node, n int, _ *wire.Packet) []delay {
			if from == p.a && n == 0 {
				return nil
			}
			return []delay{testDelay}
		}
		p.post(p.a, writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 4*1024)), writeWR(2, p.b.mem.remote(8192), p.a.mem.sge(8192, 2*1024)),
			writeWR(3, p.b.mem.remote(10240), p.a.mem.sge(10240, 1024)))
		p.run()
		p.a.wantSends(wc{1, verbs.WCSuccess}, wc{2, verbs.WCSuccess}, wc{3, verbs.WCSuccess})
		if got := p.runs(p.a); !slices.Equal(got, []int{4, 2, 1, 0, 0, 0, 0, 0, 0, 0}) {
			t.Errorf("selective %v: packets stand for %v, want 4, 2 and 1, and then 7 with their data", selective, got)
		}
		if !bytes.Equal(p.b.mem.data[:11264][8192:], p.a.mem.data[:11264][8192:]) || !bytes.Equal(p.b.mem.data[:4096], p.a.mem.data[:4096]) {
			t.Errorf("selective %v: the data differ", selective)
		}
	}
}

// TestLendRecalled: a payload that was recalled while it was copied is discarded. The receive that its message took
// serves the next message.
func TestLendRecalled(t *testing.T) {
	mustLend(t)
	for name, wr := range map[string]func(*pair) verbs.SendWR{
		"SEND":  func(p *pair) verbs.SendWR { return sendWR(1, p.a.mem.sge(0, 3*1024)) },
		"WRITE": func(p *pair) verbs.SendWR { return writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*1024)) },
		"WRITE with immediate": func(p *pair) verbs.SendWR {
			return withImm(writeWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*1024)), 5)
		},
	} {
		p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
		p.b.postRecv(70, p.b.mem.sge(8192, 4*1024))
		p.post(p.a, wr(p))
		p.transmit()
		p.state(p.a, verbs.QPStateErr) // the QP's end recalls the loan
		p.run()
		if got := p.runs(p.a); !slices.Equal(got, []int{3}) {
			t.Errorf("%s: packets stand for %v, want one that stands for 3", name, got)
		}
		p.b.wantRecvs()
		p.b.wantState(verbs.QPStateRTS)
		p.b.wantEvents()
		if p.b.qp.receiver.epsn != 0 {
			t.Errorf("%s: the PSN expected next is %v, want 0", name, p.b.qp.receiver.epsn)
		}
		p.inject(p.b, req(wire.RCSendOnly, 0, 8))
		p.b.wantRecvs(wc{70, verbs.WCSuccess})
	}

	// A READ whose memory goes while it is copied fails as one whose memory went before.
	p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 3*1024)))
	for p.transmit(); len(p.runs(p.b)) == 0; p.transmit() {
		p.step(Never - 1)
	}
	p.flight[0].loan.taken = true
	p.flight[0].loan.payload = bytes.Clone(p.flight[0].loan.payload)
	p.b.deregister(p.b.mem)
	p.run()
	p.a.wantSends(wc{1, verbs.WCRemAccessErr})
}

// TestBadRuns: a packet that stands for more packets than it can is refused, or dropped.
func TestBadRuns(t *testing.T) {
	const mtu = 1024
	read := func(n int) wire.Packet {
		return wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly}, Payload: make([]byte, n)}
	}
	for _, tt := range []struct {
		name    string
		pkt     wire.Packet
		packets int
		cause   string // why the QP fails; empty if the packet is dropped
	}{
		{"too short", rdma(req(wire.RCRDMAWriteOnly, 0, 2*mtu), 0, 0, 2*mtu), 3, "2048 bytes for 3 packets"},
		{"too long", rdma(req(wire.RCRDMAWriteOnly, 0, 3*mtu+1), 0, 0, 3*mtu+1), 3, "and the path MTU here is 1024"},
		{"first and short", rdma(req(wire.RCRDMAWriteFirst, 0, 3*mtu-1), 0, 0, 8*mtu), 3, "1023 bytes at a path MTU of 1024"},
		{"more than announced", rdma(req(wire.RCRDMAWriteFirst, 0, 3*mtu), 0, 0, 2*mtu), 3, "2048 of 2048 are left"},
		{"an answer to nothing", read(2 * mtu), 2, ""},
		{"an acknowledgement", req(wire.RCAcknowledge, 0, 0), 2, ""},
		{"a request for data", rdma(req(wire.RCRDMAReadRequest, 0, 0), 0, 0, 8), 2, ""},
		{"no packets", rdma(req(wire.RCRDMAWriteOnly, 0, mtu), 0, 0, mtu), 0, ""},
		{"more packets than there can be", rdma(req(wire.RCRDMAWriteOnly, 0, mtu), 0, 0, mtu), maxWindow + 1, ""},
	} {
		p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
		tt.pkt.RETH.VA, tt.pkt.RETH.RKey = p.b.mem.base, p.b.mem.key
		p.b.qp.HandleRun(0, &tt.pkt, tt.packets, &loan{from: p.a})
		p.b.collect()
		err := p.b.qp.Failure()
		switch {
		case tt.cause == "" && (err != nil || p.b.qp.receiver.epsn != 0 || p.b.qp.Counters().Unexpected != 1):
			t.Errorf("%s: %v, psn %v is next, %d packets dropped; want one dropped and nothing else", tt.name, err, p.b.qp.receiver.epsn, p.b.qp.Counters().Unexpected)
		case tt.cause != "" && (err == nil || !strings.Contains(err.Error(), tt.cause)):
			t.Errorf("%s: failure %v, want one with %q", tt.name, err, tt.cause)
		}
	}

	// A response to more packets than were asked for.
	p := newPair(t, setup{mtu: verbs.MTU1024, lends: true})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 2*mtu)))
	p.transmit()
	pkt := read(2*mtu + 1)
	p.a.qp.HandleRun(0, &pkt, 3, &loan{from: p.b})
	p.a.wantSends(wc{1, verbs.WCBadRespErr})

	// A response to one READ that stands for the next one too, which would complete without its data.
	p = newPair(t, setup{mtu: verbs.MTU1024, lends: true, selective: true})
	p.post(p.a, readWR(1, p.b.mem.remote(0), p.a.mem.sge(0, 2*mtu)), readWR(2, p.b.mem.remote(0), p.a.mem.sge(4*mtu, mtu)))
	p.transmit()
	pkt = read(2 * mtu)
	p.a.qp.HandleRun(0, &pkt, 3, &loan{from: p.b})
	p.a.wantSends(wc{1, verbs.WCBadRespErr}, wc{2, verbs.WCFlushErr})

	// UC lends nothing.
	p = newPair(t, setup{typ: verbs.QPTypeUC})
	pkt = rdma(req(wire.UCRDMAWriteOnly, 0, 8), memBaseB, keyB, 8)
	if p.b.qp.HandleRun(0, &pkt, 1, &loan{from: p.a}); p.b.qp.receiver.epsn != 0 || p.b.qp.Counters().Unexpected != 1 {
		t.Errorf("UC: psn %v is next, %d packets dropped; want one dropped", p.b.qp.receiver.epsn, p.b.qp.Counters().Unexpected)
	}
}
