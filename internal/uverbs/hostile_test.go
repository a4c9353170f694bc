//go:build linux

package uverbs

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// FuzzProgram has a program give commands of any content, and write anything into its queues. The device must stay whole:
// what is not refused may fail, and the other program, whose QP is connected to one of the hostile program's, still works.
func FuzzProgram(f *testing.F) {
	f.Add(uint64(1), []byte{9, 26, 24, 18, 28})
	f.Add(uint64(2), []byte("\x1a\x1c\x1c\x0b\x13\x20\x21\x23"))
	f.Fuzz(func(t *testing.T, seed uint64, commands []byte) {
		x, y, xcq, ycq := two(t)
		p := x.p
		r := rand.New(rand.NewPCG(seed, 0))
		for range 8 { // one that succeeds may need a handle of one before
			for _, n := range commands {
				p.hostile(r, n, x, xcq)
			}
		}
		// The neighbour's own QPs work on.
		a, b := y.p.qp(verbs.QPTypeRC, ycq, ycq, 0), y.p.qp(verbs.QPTypeRC, ycq, ycq, 0)
		a.init(verbs.AccessRemoteWrite)
		b.init(verbs.AccessRemoteWrite)
		a.connect(b)
		b.connect(a)
		a.post(send{id: 1 << 40, op: verbs.OpRDMAWrite, flags: verbs.SendInline | verbs.SendSignaled, inline: []byte("still here"), remote: arenaBase, rkey: y.p.mr.RKey})
		for {
			if w := ycq.wait(); w.WRID == 1<<40 {
				if w.Status != 0 {
					t.Errorf("the neighbour's WRITE: got %v", verbs.WCStatus(w.Status))
				}
				return
			}
		}
	})
}

// hostile does something that no library would do.
func (p *program) hostile(r *rand.Rand, n byte, x *userQP, cq *userCQ) {
	random := func(b []byte) []byte {
		for i := range b {
			b[i] = byte(r.Uint32() >> (8 * (r.Uint32() % 4)))
		}
		return b
	}
	switch n % 4 {
	case 0: // the heads and the elements of queues
		for _, m := range []*mapped{x.sq, x.rq, cq.ring} {
			random(m.b[r.IntN(len(m.b)):][:1])
			binary.NativeEndian.PutUint32(m.b[uapi.QueueProducer:], r.Uint32())
			binary.NativeEndian.PutUint32(m.b[uapi.QueueConsumer:], r.Uint32())
		}
	case 1:
		random(x.sq.place(r.Uint32N(x.sq.mask + 1)))
		random(x.rq.place(r.Uint32N(x.rq.mask + 1)))
	}
	_ = p.c.Doorbell(x.handle)
	in := random(make([]byte, r.IntN(160)))
	for i := 0; i+4 <= len(in); i += 4 { // handles and counts are small numbers
		if r.IntN(3) > 0 {
			binary.NativeEndian.PutUint32(in[i:], r.Uint32N(20))
		}
	}
	cmd := uapi.Command{Number: uapi.CommandNumber(n & 63), In: in, Out: uapi.Buffer{Addr: arenaBase + uint64(r.IntN(1<<20)), Length: r.IntN(300)},
		DriverIn: random(make([]byte, r.IntN(20))), DriverOut: uapi.Buffer{Addr: r.Uint64(), Length: r.IntN(40)}}
	if r.IntN(4) > 0 {
		cmd.DriverOut.Addr = arenaBase
	}
	if n&64 != 0 {
		cmd.Number |= uapi.Extended
	}
	_ = p.c.Do(p, cmd)
}
