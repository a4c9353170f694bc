package transport

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// bench moves packets between two QPs directly, without time and network.
type bench struct {
	*pair
	pkt     wire.Packet
	packets int
}

func newBench(t testing.TB, s setup) *bench {
	s.cap = verbs.QPCap{MaxSendWR: 256, MaxSendSGE: 2, MaxInlineData: 64}
	m := &bench{pair: newPair(t, s)}
	for _, e := range []*node{m.a, m.b} {
		e.sends = make([]sendDone, 0, 256)
		e.recvd = make([]recvDone, 0, 256)
	}
	return m
}

// settle moves packets until there are none, and polls.
func (m *bench) settle() {
	for moved := true; moved; {
		moved = m.move(m.a) || m.move(m.b)
	}
	for _, e := range [2]*node{m.a, m.b} {
		if n := len(e.sends); n > 0 {
			if s := e.sends[n-1].wc.Status; s != verbs.WCSuccess {
				m.t.Fatal(s)
			}
			e.polled(n)
		}
		e.sends, e.recvd = e.sends[:0], e.recvd[:0]
	}
}

func (m *bench) move(from *node) bool {
	sent := false
	from.qp.Turn()
	for {
		n := from.qp.Transmit(m.now, m.buf)
		from.collect()
		if n == 0 {
			return sent
		}
		sent = true
		m.packets++
		if err := m.pkt.Decode(m.buf[:n]); err != nil {
			m.t.Fatal(err)
		}
		if from.qp.cfg.Type == verbs.QPTypeUD {
			from.peer.qp.HandleDatagram(&m.pkt, &testGRH)
		} else {
			from.peer.qp.HandlePacket(m.now, &m.pkt, 0)
		}
		from.peer.collect()
	}
}

func benchOps(m *bench) map[string]verbs.SendWR {
	return map[string]verbs.SendWR{
		"SEND":                 sendWR(1, m.a.mem.sge(0, 3000), m.a.mem.sge(5000, 3000)),
		"SEND inline":          {ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline, InlineData: make([]byte, 64)},
		"WRITE":                writeWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 8000)),
		"WRITE with immediate": withImm(writeWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 8000)), 1),
		"READ":                 readWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 8000)),
		"FETCH_ADD":            addWR(1, m.b.mem.remote(0), 1, m.a.mem.sge(0, 8)),
		"CMP_SWAP":             casWR(1, m.b.mem.remote(0), 1, 1, m.a.mem.sge(0, 8)),
	}
}

// TestAllocs: from Post to the completion nothing is allocated, but for the state of a bound window: readers without
// a lock need it to be a value of its own.
func TestAllocs(t *testing.T) {
	const label = windowKey + 1
	for _, typ := range []verbs.QPType{verbs.QPTypeRC, verbs.QPTypeUC, verbs.QPTypeUD} {
		m := newBench(t, setup{typ: typ, turn: 128})
		sg := []verbs.SGE{m.b.mem.sge(1<<16, 8000)}
		ops := benchOps(m)
		switch typ {
		case verbs.QPTypeRC:
			ops["SEND_WITH_INV"] = sendInvWR(1, label, m.a.mem.sge(0, 8000))
			fallthrough
		case verbs.QPTypeUC:
			ops["BIND_MW"] = bindWR(1, label)
		case verbs.QPTypeUD:
			ops = map[string]verbs.SendWR{"SEND": udWR(1, m.b, m.a.mem.sge(0, 4096))}
		}
		for name, wr := range ops {
			if typ == verbs.QPTypeUC && (wr.Op == verbs.OpRDMARead || wr.Op >= verbs.OpAtomicCmpSwap && wr.Op <= verbs.OpAtomicFetchAdd) {
				continue
			}
			m.a.resolve(&wr)
			recvs := []verbs.RecvWR{{ID: 1, SGList: sg}}
			inv := invWR(2, label)
			m.a.resolve(&inv)
			bind := verbs.MWBind{Access: remoteAccess}
			if wr.Op == verbs.OpSendWithInv {
				theirs := bindWR(0, label)
				m.b.resolve(&theirs)
				bind = *theirs.Bind
			}
			one := func() {
				for range 5 {
					m.b.dropReceives()
					m.b.own.Post(recvs)
					if wr.Op == verbs.OpSendWithInv && mem.Bind(&bind, m.b.qp.cfg.QPN) != nil {
						t.Fatal("the peer's window cannot be bound")
					}
					if err := m.a.qp.Post(&wr); err != nil {
						t.Fatal(err)
					}
					if wr.Op == verbs.OpBindMW && m.a.qp.Post(&inv) != nil {
						t.Fatal("LOCAL_INV was not taken")
					}
					m.settle()
				}
			}
			want := 0.0
			if wr.Op == verbs.OpBindMW || wr.Op == verbs.OpSendWithInv {
				want = 5
			}
			if n := testing.AllocsPerRun(100, one); n != want {
				t.Errorf("%v, %s: %v allocations, want %v", typ, name, n, want)
			}
		}
	}
}

// BenchmarkWrite streams WRITEs of 4 KiB at an MTU of 4096, both ends included.
func BenchmarkWrite(b *testing.B) {
	benchmark(b, setup{mtu: verbs.MTU4096}, 4096, func(m *bench) verbs.SendWR {
		return writeWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 4096))
	})
}

// BenchmarkWriteLong streams WRITEs of 256 KiB.
func BenchmarkWriteLong(b *testing.B) {
	benchmark(b, setup{mtu: verbs.MTU4096}, 1<<18, func(m *bench) verbs.SendWR {
		return writeWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 1<<18))
	})
}

func BenchmarkReadLong(b *testing.B) {
	benchmark(b, setup{mtu: verbs.MTU4096}, 1<<18, func(m *bench) verbs.SendWR {
		return readWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 1<<18))
	})
}

func BenchmarkWrite64(b *testing.B) {
	benchmark(b, setup{}, 64, func(m *bench) verbs.SendWR { return writeWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 64)) })
}

func BenchmarkSend64(b *testing.B) {
	benchmark(b, setup{}, 64, func(m *bench) verbs.SendWR { return sendWR(1, m.a.mem.sge(0, 64)) })
}

func BenchmarkRead64(b *testing.B) {
	benchmark(b, setup{rd: 16}, 64, func(m *bench) verbs.SendWR { return readWR(1, m.b.mem.remote(0), m.a.mem.sge(0, 64)) })
}

func BenchmarkFetchAdd(b *testing.B) {
	benchmark(b, setup{rd: 16}, 8, func(m *bench) verbs.SendWR { return addWR(1, m.b.mem.remote(0), 1, m.a.mem.sge(0, 8)) })
}

// benchmark posts work requests in batches of 64, the last of which is signaled.
func benchmark(b *testing.B, s setup, size int, wr func(m *bench) verbs.SendWR) {
	m := newBench(b, s)
	w := wr(m)
	recvs := []verbs.RecvWR{{SGList: []verbs.SGE{m.b.mem.sge(0, 64)}}}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if w.Flags = 0; n%64 == 63 {
			w.Flags = verbs.SendSignaled
		}
		if w.Op == verbs.OpSend {
			m.b.own.Post(recvs)
		}
		if err := m.a.qp.Post(&w); err != nil {
			b.Fatal(err)
		}
		if n%64 == 63 {
			m.settle()
		}
	}
	b.ReportMetric(float64(m.packets)/b.Elapsed().Seconds(), "packets/s")
}
