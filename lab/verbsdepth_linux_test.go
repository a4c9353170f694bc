package lab

import (
	"context"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// As many READs are outstanding as the devices allow, and not one more. Our device's packets are
// held back, be they requests or responses, so that all READs are outstanding at once.
func TestVerbsOutstanding(t *testing.T) {
	needLab(t)
	const posted = maxOutstanding + 20
	for _, responder := range []string{"kernel", "adverb"} {
		s := scenario{family: "Verbs", program: "RC READ", server: responder, mtu: 1500, variant: "128 outstanding"}
		const timeout = 24 // 69 s, so that nothing is repeated meanwhile, however slow the machine is
		s.pair(t, pairOptions{timeout: timeout}, func(ctx context.Context, t *testing.T, p *verbsPair) {
			from, to := p.ends(responder)
			const size = 24
			src, data := filled(to, posted*size, 4)
			dst := from.mem(posted*size, everything)
			var wrs []verbs.SendWR
			for i := range posted {
				wrs = append(wrs, verbs.SendWR{ID: uint64(i), Op: verbs.OpRDMARead, Flags: signaled,
					Remote: src.remote(i * size), SGList: []verbs.SGE{dst.sge(i*size, size)}})
			}
			p.far.hold()
			from.send(wrs...)
			if err := p.far.await(ctx, func() bool {
				out, in := p.far.total(wire.RCRDMAReadRequest)
				return out+in >= maxOutstanding
			}); err != nil {
				t.Fatal(err)
			}
			if responder == "adverb" { // after a round trip to the guest, any further request would have come
				from.state()
			}
			if out, in := p.far.total(wire.RCRDMAReadRequest); out+in != maxOutstanding {
				t.Errorf("%d READs are outstanding, want %d", out+in, maxOutstanding)
			}
			if err := p.far.release(); err != nil {
				t.Fatal(err)
			}
			for i := range posted {
				done(t, from, uint64(i), verbs.WCRDMARead)
			}
			same(t, "what was read", dst.get(0, dst.size()), data)
		})
	}
}

// SEND_WITH_INV invalidates a window of type 2 at the other end.
func TestVerbsInvalidate(t *testing.T) {
	needLab(t)
	for _, responder := range []string{"kernel", "adverb"} {
		s := scenario{family: "Verbs", program: "RC SEND_WITH_INV", server: responder, mtu: 1500, variant: "a window of type 2"}
		s.pair(t, pairOptions{}, func(ctx context.Context, t *testing.T, p *verbsPair) {
			from, to := p.ends(responder)
			const size = 100
			window := to.mem(size, everything|verbs.AccessMWBind)
			var key verbs.RKey
			if responder == "kernel" {
				key = p.kernel.bind(window, size, verbs.AccessRemoteWrite)
			} else {
				key = p.us.bind(window, size, verbs.AccessRemoteWrite)
			}
			src, data := filled(from, size, 5)
			remote := window.remote(0)
			remote.RKey = key
			write := verbs.SendWR{ID: 1, Op: verbs.OpRDMAWrite, Flags: signaled, SGList: []verbs.SGE{src.sge(0, size)}, Remote: remote}
			from.send(write)
			done(t, from, 1, verbs.WCRDMAWrite)
			same(t, "what was written through the window", window.get(0, size), data)

			in := to.mem(size, everything)
			to.recv(verbs.RecvWR{ID: 2, SGList: []verbs.SGE{in.sge(0, size)}})
			from.send(verbs.SendWR{ID: 2, Op: verbs.OpSendWithInv, Flags: signaled, SGList: []verbs.SGE{src.sge(0, size)}, InvalidateRKey: key})
			done(t, from, 2, verbs.WCSend)
			wc := done(t, to, 2, verbs.WCRecv)
			// The lab's kernel does not put the key into the completion.
			if responder == "adverb" && (wc.Flags&verbs.WCFlagWithInv == 0 || verbs.RKey(wc.Imm) != key) {
				t.Errorf("the completion has flags %v and key %#x, want %v and %#x", wc.Flags, wc.Imm, verbs.WCFlagWithInv, key)
			}
			same(t, "what was sent", in.get(0, size), data)

			write.ID = 3
			from.send(write)
			failed(t, from, 3, verbs.WCRemAccessErr)
		})
	}
}

// bind binds a window of type 2 to the first n bytes of a region, and returns the window's key.
func (e *ourEnd) bind(m memory, n int, access verbs.Access) verbs.RKey {
	e.t.Helper()
	mw, err := e.pd.AllocMW(verbs.MWType2)
	e.must(err)
	mr := m.(*ourMemory).mr
	key := verbs.IncRKey(mw.RKey())
	e.send(verbs.SendWR{ID: 99, Op: verbs.OpBindMW, Flags: signaled,
		Bind: &verbs.MWBind{MW: mw, RKey: key, MR: mr, Addr: mr.Addr(), Length: uint64(n), Access: access}})
	done(e.t, e, 99, verbs.WCBindMW)
	return key
}
