package lab

import (
	"context"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// These are the number and the size of the work requests in a transfer that does not end well.
const (
	transfers    = 40
	transferSize = 64 << 10
)

// begin starts a long transfer. When the transfer is under way, begin cuts the network and returns,
// so the transfer cannot be completed. Packets that our device sends are then lost, until mend.
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
	// These cannot be completed, since either their requests are lost or the answers.
	from.send(wrs[transfers/2:]...)
}

// mend lets packets pass again. Those sent since begin cut the network stay lost.
func (w *watch) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holding, w.held = false, nil
}

// broken checks the completions of a transfer that did not end well. Some may be successes, then
// one has that status, and the rest is flushed.
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
		t.Errorf("%v: all of the transfer was completed, want a failure with %v", e, status)
	}
	wantState(t, verbs.QPStateErr, e)
}

// One end goes away in the middle of a transfer. Its QP fails, or the QP is destroyed with all that
// belongs to it. Each retry takes 67 to 268 ms.
func TestVerbsDisconnect(t *testing.T) {
	needLab(t)
	o := pairOptions{timeout: quickTimeout, retry: 3, rnrRetry: 3}
	// A requester that the test fails must not use up its retries before, even if the guest is
	// slow. The lab's kernel takes 7 for no limit, and our own end is failed at once.
	patient := map[string]pairOptions{
		"kernel": {timeout: quickTimeout, retry: 7, kernelRetry: 3, rnrRetry: 3},
		"adverb": {timeout: quickTimeout, retry: 3, kernelRetry: 7, rnrRetry: 3},
	}
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
			row("the requester fails during a "+name).pair(t, patient[responder], func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				dst := to.mem(8, everything)
				to.recv(verbs.RecvWR{ID: 5, SGList: []verbs.SGE{dst.sge(0, 8)}})
				begin(ctx, t, p, from, to, op)
				from.fail()
				p.far.mend()
				broken(t, from, verbs.WCFlushErr)
				// Nobody tells the responder. The responder learns of the failure by sending
				// something.
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
				newPuppet(ctx, t, p.kernel.g).mem(8, nothing) // the program serves one connection after the other, so the first is closed now
			} else {
				p.us.must(p.us.hca.Close())
			}
			p.far.mend()
			broken(t, from, verbs.WCRetryExceeded)
		})
	}
}

// killBound is the time after which a requester must have given up. It allows for all retries on a
// busy machine.
const killBound = 10 * time.Second

// The guest loses its power in the middle of a transfer.
func TestVerbsKill(t *testing.T) {
	needLab(t)
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "WRITE", verbs.OpRDMARead: "READ"}[op]
		s := scenario{family: "Verbs", program: "RC disconnect", server: "kernel", mtu: 1500, variant: "the guest is killed during a " + name, patience: 2 * bootPatience}
		s.run(t, func(ctx context.Context, t *testing.T, l *Lab) {
			g := l.Guest(0)
			p := connectVerbs(ctx, t, l, s, pairOptions{timeout: quickTimeout})
			begin(ctx, t, p, p.us, p.kernel, op)
			kill(ctx, t, g)
			killed := time.Now()
			p.far.mend()
			broken(t, p.us, verbs.WCRetryExceeded)
			if took := time.Since(killed); took > killBound {
				t.Errorf("the requester has given up after %v, want at most %v", took, killBound)
			}
		})
	}
}
