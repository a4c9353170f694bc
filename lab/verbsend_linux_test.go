package lab

import (
	"context"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// Work requests of a transfer that an end leaves.
const (
	transfers    = 40
	transferSize = 64 << 10
)

// begin starts a long transfer, and returns when it is under way.
func begin(ctx context.Context, t *testing.T, p *verbsPair, from, to verbsEnd, op verbs.Opcode) {
	t.Helper()
	src, dst := from.mem(transferSize, everything), to.mem(transferSize, everything)
	wrs := make([]verbs.SendWR, transfers)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: op, Flags: signaled, SGList: []verbs.SGE{src.sge(0, transferSize)}, Remote: dst.remote(0)}
	}
	from.send(wrs...)
	if err := p.far.await(ctx, func() bool { out, in := p.far.total(); return out+in > 100 && min(out, in) > 0 }); err != nil {
		t.Fatal(err)
	}
}

// broken takes the completions of a transfer whose other end has gone: what was done, the one that failed, the flushed rest.
func broken(t *testing.T, e verbsEnd, status verbs.WCStatus) {
	t.Helper()
	for i := uint64(0); i < transfers; i++ {
		wc := e.next()
		if wc.ID == i && wc.Status == verbs.WCSuccess {
			continue
		}
		if wc.ID != i || wc.Status != status {
			t.Errorf("%v: completion %d with status %v (%v), want %d with %v", e, wc.ID, wc.Status, wc.Cause, i, status)
		}
		status = verbs.WCFlushErr
	}
	if status != verbs.WCFlushErr {
		t.Errorf("%v: the whole transfer went through", e)
	}
	if got := e.state(); got != verbs.QPStateErr {
		t.Errorf("%v: the QP is in %v", e, got)
	}
}

// Either end goes away in the middle: its QP fails, or it is destroyed with all that belongs to it. Retries of
// the requester take 67 to 268 ms each.
func TestVerbsDisconnect(t *testing.T) {
	needLab(t)
	o := pairOptions{timeout: quickTimeout, retry: 3, rnrRetry: 3}
	for _, responder := range []string{"kernel", "adverb"} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "WRITE", verbs.OpRDMARead: "READ"}[op]
			row := func(variant string) scenario {
				return scenario{family: "Verbs", program: "RC disconnect", server: responder, mtu: 1500, variant: variant}
			}
			row("the responder fails during a "+name).pair(t, o, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				begin(ctx, t, p, from, to, op)
				to.fail()
				broken(t, from, verbs.WCRetryExceeded)
			})
			row("the requester fails during a "+name).pair(t, o, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				dst := to.mem(8, everything)
				to.recv(verbs.RecvWR{ID: 5, SGList: []verbs.SGE{dst.sge(0, 8)}})
				begin(ctx, t, p, from, to, op)
				from.fail()
				broken(t, from, verbs.WCFlushErr)
				// The responder is not told, and learns it by trying.
				src := to.mem(8, everything)
				to.send(verbs.SendWR{ID: 6, Op: verbs.OpSend, SGList: []verbs.SGE{src.sge(0, 8)}})
				failed(t, to, 6, verbs.WCRetryExceeded)
				failed(t, to, 5, verbs.WCFlushErr)
			})
		}
		s := scenario{family: "Verbs", program: "RC disconnect", server: responder, mtu: 1500, variant: "the responder's program ends during a WRITE"}
		s.pair(t, o, func(ctx context.Context, t *testing.T, p *verbsPair) {
			from, to := p.ends(responder)
			begin(ctx, t, p, from, to, verbs.OpRDMAWrite)
			if responder == "kernel" {
				p.kernel.conn.Close()
			} else {
				p.us.must(p.us.hca.Close())
			}
			broken(t, from, verbs.WCRetryExceeded)
		})
	}
}

// killBound is until when a requester must know: all retries, and time for a busy machine.
const killBound = 10 * time.Second

// The guest loses its power in the middle.
func TestVerbsKill(t *testing.T) {
	needLab(t)
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "WRITE", verbs.OpRDMARead: "READ"}[op]
		s := scenario{family: "Verbs", program: "RC disconnect", server: "kernel", mtu: 1500, variant: "the guest is killed during a " + name, patience: 2 * bootPatience}
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			g := l.Guest(0)
			p := connectVerbs(ctx, t, l, s, pairOptions{timeout: quickTimeout})
			begin(ctx, t, p, p.us, p.kernel, op)
			g.Kill()
			killed := time.Now()
			broken(t, p.us, verbs.WCRetryExceeded)
			if took := time.Since(killed); took > killBound {
				t.Errorf("the requester knew after %v, want at most %v", took, killBound)
			}
			// The scenarios behind this one need a guest. The device here must serve its next life, too.
			if err := g.Boot(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
}
