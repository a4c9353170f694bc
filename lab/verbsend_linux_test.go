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

// begin starts a long transfer, and returns when it is under way, with the network cut: it cannot end before
// an end of it does. What our device sends from then on is lost, until mend.
func begin(ctx context.Context, t *testing.T, p *verbsPair, from, to verbsEnd, op verbs.Opcode) {
	t.Helper()
	src, dst := from.mem(transferSize, everything), to.mem(transferSize, everything)
	wrs := make([]verbs.SendWR, transfers)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Op: op, Flags: signaled, SGList: []verbs.SGE{src.sge(0, transferSize)}, Remote: dst.remote(0)}
	}
	from.send(wrs[:transfers/2]...)
	if err := p.far.await(ctx, func() bool { out, in := p.far.total(); return out+in > 100 && min(out, in) > 0 }); err != nil {
		t.Fatal(err)
	}
	p.far.hold()
	// These cannot be done: either their requests are lost, or the answers are.
	from.send(wrs[transfers/2:]...)
}

// mend has packets through again, but for those that were cut off.
func (w *watch) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holding, w.held = false, nil
}

// broken takes the completions of a transfer an end of which has gone: what was done, the one that failed, the flushed rest.
func broken(t *testing.T, e verbsEnd, status verbs.WCStatus) {
	t.Helper()
	failed := false
	for i := range uint64(transfers) {
		wc := e.next()
		if !failed && wc.ID == i && wc.Status == verbs.WCSuccess {
			continue
		}
		if failed {
			status = verbs.WCFlushErr
		}
		if wc.ID != i || wc.Status != status {
			t.Errorf("%v: completion %d with status %v (%v), want %d with %v", e, wc.ID, wc.Status, wc.Cause, i, status)
		}
		failed = true
	}
	if !failed {
		t.Errorf("%v: the whole transfer went through", e)
	}
	if got := e.state(); got != verbs.QPStateErr {
		t.Errorf("%v: the QP is in %v", e, got)
	}
}

// Either end goes away in the middle: its QP fails, or it is destroyed with all that belongs to it. Retries of
// the requester take 67 to 268 ms each. One that is to fail by itself must not use them up before.
func TestVerbsDisconnect(t *testing.T) {
	needLab(t)
	o := pairOptions{timeout: quickTimeout, retry: 3, rnrRetry: 3}
	patient := pairOptions{timeout: quickTimeout, retry: 6, rnrRetry: 3} // the kernel of the lab takes 7 for no limit
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
				p.far.mend()
				broken(t, from, verbs.WCRetryExceeded)
			})
			row("the requester fails during a "+name).pair(t, patient, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				dst := to.mem(8, everything)
				to.recv(verbs.RecvWR{ID: 5, SGList: []verbs.SGE{dst.sge(0, 8)}})
				begin(ctx, t, p, from, to, op)
				from.fail()
				p.far.mend()
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
				newPuppet(ctx, t, p.kernel.g).mem(8, nothing) // the program serves one after the other
			} else {
				p.us.must(p.us.hca.Close())
			}
			p.far.mend()
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
			defer func() {
				if err := g.Boot(context.WithoutCancel(ctx)); err != nil { // for the scenarios that follow
					t.Error(err)
				}
			}()
			p.far.mend()
			broken(t, p.us, verbs.WCRetryExceeded)
			if took := time.Since(killed); took > killBound {
				t.Errorf("the requester knew after %v, want at most %v", took, killBound)
			}
		})
	}
}
