package lab

import (
	"context"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/verbs"
)

// The kernel counts IPv4 identifications for each pair of hosts, and further while it is silent. The
// ICRC covers them and our end does not see them, so it has to guess well: each packet that it drops
// for its identification is repeated or, on UC, lost.

// quietTimeout is a code: 4.3 s. Nothing that is only late is repeated by then.
const quietTimeout = 20

// exchange has both ends send a message of so many bytes, and the other end get it.
func (p *verbsPair) exchange(t *testing.T, id uint64, size int) {
	t.Helper()
	for i, way := range [][2]verbsEnd{{p.kernel, p.us}, {p.us, p.kernel}} {
		from, to := way[0], way[1]
		src, data := filled(from, size, byte(id)+byte(i))
		dst := to.mem(size+verbs.GRHSize, everything)
		to.recv(verbs.RecvWR{ID: id, SGList: []verbs.SGE{dst.sge(0, dst.size())}})
		from.send(verbs.SendWR{ID: id, Op: verbs.OpSend, Flags: signaled, SGList: []verbs.SGE{src.sge(0, size)}})
		done(t, from, id, verbs.WCSend)
		if wc := done(t, to, id, verbs.WCRecv); int(wc.ByteLen) == size+verbs.GRHSize {
			same(t, "a datagram", dst.get(verbs.GRHSize, size), data)
			continue
		}
		same(t, "a message", dst.get(0, size), data)
	}
}

// noDrops fails the test if our device refused a packet.
func (p *verbsPair) noDrops(t *testing.T) {
	t.Helper()
	if d := p.us.drops(); d != (hca.Drops{}) {
		t.Errorf("our device has dropped %+v, want nothing", d)
	}
}

// After a silence of any length the first message arrives at once. Each type of QP has a guest of its own, since nobody else may
// send meanwhile.
func TestVerbsIdle(t *testing.T) {
	needLab(t)
	for _, typ := range []struct {
		name string
		typ  verbs.QPType
		size int
	}{
		{"RC", verbs.QPTypeRC, 3000},
		{"UC", verbs.QPTypeUC, 3000},
		{"UD", verbs.QPTypeUD, 1000},
	} {
		t.Run(typ.name, func(t *testing.T) {
			t.Parallel() // it waits
			l := ownLab(t.Context(), t, Config{MTU: 1500})
			for _, pause := range []time.Duration{8 * time.Second, 20 * time.Second, time.Minute} {
				s := scenario{family: "Verbs", program: typ.name + " idle", server: "both", mtu: l.MTU(), variant: pause.String(), on: l,
					patience: 2 * time.Minute, check: packetRules{noRepeats: true}}
				s.pair(t, pairOptions{typ: typ.typ, timeout: quietTimeout}, func(_ context.Context, t *testing.T, p *verbsPair) {
					p.exchange(t, 1, typ.size)
					silence(pause)
					p.exchange(t, 2, typ.size)
					p.noDrops(t)
				})
			}
		})
	}
}

// silence is when nobody sends.
func silence(d time.Duration) { time.Sleep(d) }

// A QP that sends little is not harmed by another one of the kernel that sends much.
func TestVerbsBulkBesideSparse(t *testing.T) {
	needLab(t)
	for _, typ := range []struct {
		name string
		typ  verbs.QPType
	}{{"RC", verbs.QPTypeRC}, {"UC", verbs.QPTypeUC}} {
		s := scenario{family: "Verbs", program: typ.name + " beside bulk", server: "both", mtu: 1500, variant: "10 × 4 MiB",
			patience: 3 * time.Minute, check: packetRules{noRepeats: true}}
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			sparse := connectVerbs(ctx, t, l, s, pairOptions{typ: typ.typ, timeout: quietTimeout})
			bulk := connectVerbs(ctx, t, l, s, pairOptions{timeout: quietTimeout, beside: sparse})
			const size = 4 << 20 // 4,096 packets
			src, data := filled(bulk.kernel, size, 9)
			dst := bulk.us.mem(size, everything)
			for i := range uint64(10) {
				sparse.exchange(t, i, 100)
				bulk.kernel.send(verbs.SendWR{ID: i, Op: verbs.OpRDMAWrite, Flags: signaled, Remote: dst.remote(0), SGList: []verbs.SGE{src.sge(0, size)}})
				done(t, bulk.kernel, i, verbs.WCRDMAWrite)
			}
			same(t, "what was written", dst.get(0, size), data)
			sparse.noDrops(t)
		})
	}
}

// A hundred connections, and two hundred, send at once, each five messages of five packets. An emulated guest
// with so many packets to work off may acknowledge late, so the timeout is that of the scenarios above.
func TestCmatoseMany(t *testing.T) {
	needLab(t)
	for _, server := range []string{"kernel", "adverb"} {
		for _, options := range []string{"-c 100 -C 5 -S 5000 -a 20", "-c 200 -C 5 -S 5000 -a 20"} {
			s := scenario{family: "Connection manager", program: "cmatose", server: server, mtu: 1500, variant: options,
				patience: 2 * time.Minute, check: packetRules{noRepeats: true}}
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runCmatose(ctx, t, l, s) })
		}
	}
}
