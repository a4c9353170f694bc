package lab

import (
	"context"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// If there is no receive for a SEND, the responder sends an RNR NAK. The requester tries again
// until there is a receive, or until it has used up its RNR retries.
func TestVerbsRNR(t *testing.T) {
	needLab(t)
	const size, rnrRetries = 3000, 2
	for _, responder := range []string{"kernel", "adverb"} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
			variant := "RNR NAK at a " + map[verbs.Opcode]string{verbs.OpSend: "SEND", verbs.OpRDMAWriteWithImm: "WRITE_WITH_IMM"}[op]
			s := scenario{family: "Verbs", program: "RC NAKs", server: responder, mtu: 1500, variant: variant}
			s.pair(t, pairOptions{}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				src, data := filled(from, size, 6)
				dst := to.mem(size, everything)
				from.send(verbs.SendWR{ID: 1, Op: op, Flags: signaled, SGList: []verbs.SGE{src.sge(0, size)}, Remote: dst.remote(0)})
				if err := p.near.await(ctx, func() bool { return p.near.nak(rnrNAK) >= 2 }); err != nil {
					t.Fatal(err)
				}
				to.recv(verbs.RecvWR{ID: 2, SGList: []verbs.SGE{dst.sge(0, size)}})
				if op == verbs.OpSend {
					done(t, from, 1, verbs.WCSend)
					done(t, to, 2, verbs.WCRecv)
				} else {
					done(t, from, 1, verbs.WCRDMAWrite)
					done(t, to, 2, verbs.WCRecvRDMAWithImm)
				}
				same(t, "what came", dst.get(0, size), data)
			})
		}
		s := scenario{family: "Verbs", program: "RC NAKs", server: responder, mtu: 1500, variant: "RNR retries used up"}
		// The acknowledge timeout is 4.3 s. With a shorter one, a requester also repeats a request
		// whose RNR NAK is late, and a slow guest is late.
		s.pair(t, pairOptions{rnrRetry: rnrRetries, timeout: 20}, func(ctx context.Context, t *testing.T, p *verbsPair) {
			from, _ := p.ends(responder)
			src, _ := filled(from, size, 6)
			from.send(
				verbs.SendWR{ID: 1, Op: verbs.OpSend, SGList: []verbs.SGE{src.sge(0, size)}},
				verbs.SendWR{ID: 2, Op: verbs.OpSend, SGList: []verbs.SGE{src.sge(0, size)}})
			failed(t, from, 1, verbs.WCRNRRetryExceeded)
			failed(t, from, 2, verbs.WCFlushErr)
			// Behind an RNR NAK the kernel also says that the next packet is out of sequence. Where that is late, and
			// where the RNR NAK is late and a probe of ours asks, the request is repeated at no RNR retry's cost.
			n, others := p.near.nak(rnrNAK), p.near.nak(nakSequence)+p.us.probes()
			if n < 1+rnrRetries || n > 1+rnrRetries+others {
				t.Errorf("%d RNR NAKs passed, want %d, for the request and for each retry, and at most %d more, for other NAKs and probes", n, 1+rnrRetries, others)
			}
		})
	}
}

// refusalCase is a request that the responder must refuse.
type refusalCase struct {
	variant string
	access  verbs.Access // the access that both QPs allow; 0 means everything
	request func(from, to verbsEnd) refusal
	status  verbs.WCStatus // of the request, at the requester
	recv    verbs.WCStatus // of the receive, at the responder; 0 if there is no receive
}

// refusal is the request of a case, and the memory that the request must not change.
type refusal struct {
	verbs.SendWR // gets ID 1; the responder may have a receive with ID 2
	untouched    []filledMemory
}

// filledMemory is a part of a region, and the contents that the part must have.
type filledMemory struct {
	what string
	mem  memory
	off  int
	data []byte
}

func (f filledMemory) check(t *testing.T) {
	t.Helper()
	same(t, f.what, f.mem.get(f.off, len(f.data)), f.data)
}

const regionSize = 4096

// regionOp returns a request for the start of a region at the responder. Change makes the request
// one that must be refused, by a change to the region or to the address. It returns the region, or
// nil if the region is gone.
func regionOp(op verbs.Opcode, n int, change func(m memory, to verbsEnd, r *verbs.RemoteAddr) memory) func(from, to verbsEnd) refusal {
	return func(from, to verbsEnd) refusal {
		m := to.mem(regionSize, everything)
		r := m.remote(0)
		m = change(m, to, &r)
		local, data := filled(from, max(n, 8), 60)
		all := []filledMemory{{what: "the requester's memory", mem: local, data: data}}
		if m != nil {
			target := content(regionSize, 61)
			m.put(0, target)
			all = append(all, filledMemory{what: "the responder's memory", mem: m, data: target})
		}
		return refusal{verbs.SendWR{Op: op, SGList: []verbs.SGE{local.sge(0, n)}, Remote: r}, all}
	}
}

// moved returns a change that moves the address by some bytes. Keyed returns one that flips bits of
// the key.
func moved(by int) func(memory, verbsEnd, *verbs.RemoteAddr) memory {
	return func(m memory, _ verbsEnd, r *verbs.RemoteAddr) memory {
		r.VA += uint64(by)
		return m
	}
}

func keyed(bits verbs.RKey) func(memory, verbsEnd, *verbs.RemoteAddr) memory {
	return func(m memory, _ verbsEnd, r *verbs.RemoteAddr) memory {
		r.RKey ^= bits
		return m
	}
}

func aroundTheUp(m memory, _ verbsEnd, r *verbs.RemoteAddr) memory {
	r.VA = 1<<64 - 16
	return m
}

func gone(m memory, _ verbsEnd, _ *verbs.RemoteAddr) memory {
	m.dereg()
	return nil
}

func shut(_ memory, to verbsEnd, r *verbs.RemoteAddr) memory {
	m := to.mem(regionSize, nothing)
	*r = m.remote(0)
	return m
}

func refusalCases() []refusalCase {
	var all []refusalCase
	for _, op := range []struct {
		name string
		op   verbs.Opcode
		n    int
	}{{"WRITE", verbs.OpRDMAWrite, 3000}, {"READ", verbs.OpRDMARead, 3000}, {"FETCH_ADD", verbs.OpAtomicFetchAdd, 8}} {
		for _, c := range []struct {
			name   string
			change func(memory, verbsEnd, *verbs.RemoteAddr) memory
		}{
			{"wrong key", keyed(0x55)}, {"unknown key", keyed(0x7fff00)}, {"beyond the region", moved(regionSize)}, {"before the region", moved(-8)},
			{"beyond the address space", aroundTheUp}, {"a region that is gone", gone}, {"no permission", shut},
		} {
			all = append(all, refusalCase{variant: op.name + ": " + c.name, request: regionOp(op.op, op.n, c.change), status: verbs.WCRemAccessErr})
		}
		if op.n > 8 {
			all = append(all, refusalCase{variant: op.name + ": over the end of the region", request: regionOp(op.op, op.n, moved(regionSize-8)), status: verbs.WCRemAccessErr})
		}
		all = append(all, refusalCase{variant: op.name + ": not allowed by the QP", access: nothing, request: regionOp(op.op, op.n, moved(0)), status: verbs.WCRemInvReqErr})
	}
	return append(all, refusalCase{variant: "SEND: longer than the receive", request: longSend, status: verbs.WCRemInvReqErr, recv: verbs.WCLocLenErr})
}

// longSend returns a SEND that has one byte more than its receive takes. The memory of the receive
// may then contain anything. The memory behind it must not change.
func longSend(from, to verbsEnd) refusal {
	const n = 3000
	src, data := filled(from, n, 60)
	dst, target := filled(to, regionSize, 61)
	to.recv(verbs.RecvWR{ID: 2, SGList: []verbs.SGE{dst.sge(0, n-1)}})
	return refusal{verbs.SendWR{Op: verbs.OpSend, SGList: []verbs.SGE{src.sge(0, n)}}, []filledMemory{
		{what: "the requester's memory", mem: src, data: data},
		{what: "the memory behind the receive", mem: dst, off: n - 1, data: target[n-1:]},
	}}
}

// The responder refuses requests with a NAK. Both QPs end in the error state, and the memory is
// unchanged.
func TestVerbsRefusals(t *testing.T) {
	needLab(t)
	for _, c := range refusalCases() {
		for _, responder := range []string{"kernel", "adverb"} {
			s := scenario{family: "Verbs", program: "RC NAKs", server: responder, mtu: 1500, variant: c.variant}
			s.pair(t, pairOptions{access: c.access}, func(ctx context.Context, t *testing.T, p *verbsPair) {
				from, to := p.ends(responder)
				r := c.request(from, to)
				r.ID = 1
				next := r.SendWR
				next.ID = 3
				from.send(r.SendWR, next)
				status, recv := c.status, c.recv
				if recv == verbs.WCLocLenErr && responder == "kernel" {
					// The lab's kernel blames its own program, and not the peer.
					status, recv = verbs.WCRemOpErr, verbs.WCLocQPOpErr
				}
				failed(t, from, 1, status)
				failed(t, from, 3, verbs.WCFlushErr)
				if recv != 0 {
					failed(t, to, 2, recv)
				}
				syndrome := map[verbs.WCStatus]byte{verbs.WCRemAccessErr: nakAccess, verbs.WCRemInvReqErr: nakInvalid, verbs.WCRemOpErr: nakOperation}[status]
				p.wantNAK(t, syndrome)
				wantState(t, verbs.QPStateErr, from, to)
				for _, f := range r.untouched {
					f.check(t)
				}
			})
		}
	}
}
