package transport

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/queue"
	"github.com/adverb-rdma/adverb/verbs"
)

// region is a memory region of a test's device.
type region struct {
	mr   *verbs.MR
	key  uint32 // rkey
	base uint64
	data []byte
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal

// remoteAccess is the access that a test QP grants its peer unless the test says otherwise.
const remoteAccess = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal | verbs.AccessFlushPersistent

// sendDone is a completion of the send queue.
type sendDone struct {
	wc    verbs.WC
	freed uint64
	slots *atomic.Uint64
}

type recvDone struct {
	wc        verbs.WC
	solicited bool
}

// memoryDevice is the part of a device that registering memory needs.
type memoryDevice struct {
	verbs.ProviderDevice
	pd *mem.PD
}

type memoryPD struct {
	verbs.ProviderPD
	*mem.PD
}

func (memoryDevice) Info() verbs.DeviceInfo               { return verbs.DeviceInfo{Name: "memory"} }
func (memoryDevice) Query() (verbs.DeviceAttr, error)     { return verbs.DeviceAttr{}, nil }
func (d memoryDevice) AllocPD() (verbs.ProviderPD, error) { return memoryPD{PD: d.pd}, nil }

func (p memoryPD) RegMR(a verbs.MRAttr) (verbs.ProviderMR, error)   { return p.PD.RegMR(a) }
func (p memoryPD) AllocMW(t verbs.MWType) (verbs.ProviderMW, error) { return p.PD.AllocMW(t) }
func (p memoryPD) Close() error                                     { return nil }

// testHost is a device as a QP sees it: memory, a receive queue, and a record of completions.
type testHost struct {
	t    testing.TB
	name string
	qp   *QP

	keys    *mem.Keys
	pd      *verbs.PD
	mem     *region                // 1 MiB, all access, a pattern of its own
	windows map[verbs.RKey]*window // by the label that tests give them

	receives
	sends  []sendDone
	recvd  []recvDone
	events []verbs.EventType
	causes []error // of events
	before []int   // sends that were complete at each event

	disk      bool        // FLUSHes to storage take until the test calls stored
	flushings []*Flushing // under way
}

// stored ends the oldest FLUSH to storage that is under way.
func (h *testHost) stored() {
	f := h.flushings[0]
	h.flushings = h.flushings[1:]
	h.qp.Flushed(f, f.Sync())
	h.collect()
}

// receives is the receive queue of a test's QP. It checks that each receive is completed after it was taken, and
// before the next is.
type receives struct {
	queue.Receives
	own    *queue.RecvQueue // the QP's own, or nil
	taken  int              // and not completed
	credit bool             // announce the number of posted receives
	host   *testHost
}

// testRecvs is how many receives a test's queue takes.
const testRecvs = 64

func (r *receives) Take() *queue.Recv {
	w, _ := r.TakeFor(0)
	return w
}

func (r *receives) TakeFor(n uint32) (w *queue.Recv, short bool) {
	if r.taken > 0 {
		r.host.t.Errorf("%s: %d receives are taken, want the first completed before the second is taken", r.host.name, r.taken+1)
	}
	if w, short = r.Receives.TakeFor(n); w != nil {
		r.taken++
	}
	return w, short
}

func (r *receives) Complete(w *queue.Recv) (*atomic.Uint64, uint64) {
	if r.taken == 0 {
		r.host.t.Errorf("%s: receive %d is completed, want it taken before", r.host.name, w.ID)
	}
	r.taken--
	return r.Receives.Complete(w)
}

func (r *receives) Credits() int {
	if r.credit {
		return r.Receives.Credits()
	}
	return -1
}

// waiting returns how many receives are posted and not taken.
func (r *receives) waiting() int { return r.own.Credits() }

// dropReceives takes all posted receives away.
func (r *receives) dropReceives() {
	for w := r.own.Take(); w != nil; w = r.own.Take() {
		slots, freed := r.own.Complete(w)
		slots.Store(freed)
	}
}

// spoiled are Buffers that overwrite a buffer when it is given back.
type spoiled struct{}

func (spoiled) Get() any { return new([MaxDatagram]byte) }

func (spoiled) Put(b any) {
	for i := range b.(*[MaxDatagram]byte) {
		b.(*[MaxDatagram]byte)[i] = 0xdb
	}
}

// keyB is the key of the first region of QP 0x22: the end b of every pair.
var keyB = newHost(new(testing.T), "", Config{QPN: 0x22}, nil).register(0, 1, 0).key

// newHost makes an end whose QP is not connected. Its receives come from the queue of srq or, where that
// is nil, from one of its own.
func newHost(t testing.TB, name string, cfg Config, srq *queue.SRQ) *testHost {
	t.Helper()
	// Keys need no secrecy here, but a failure must replay.
	rnd := rand.New(rand.NewPCG(uint64(cfg.QPN), 0x6b6579))
	h := &testHost{t: t, name: name, keys: mem.NewKeys(1<<16, rnd.Uint32), windows: map[verbs.RKey]*window{}}
	cfg.PD, cfg.Buffers = h.keys.NewPD(), spoiled{}
	var err error
	if h.pd, err = verbs.NewDevice(memoryDevice{pd: cfg.PD}).AllocPD(); err != nil {
		t.Fatal(err)
	}
	h.receives.host = h
	if srq != nil {
		h.receives.Receives = &queue.SRQUser{SRQ: srq}
	} else {
		h.receives.own = queue.NewRecvQueue(cfg.PD, verbs.QPCap{MaxRecvWR: testRecvs, MaxRecvSGE: 32})
		h.receives.own.Enter(verbs.QPStateInit)
		h.receives.Receives = h.receives.own
	}
	cfg.Receives = &h.receives
	h.qp = New(cfg)
	return h
}

// register registers n bytes that peers address from base on.
func (h *testHost) register(base uint64, n int, access verbs.Access) *region {
	return h.registerBytes(base, make([]byte, n), access)
}

func (h *testHost) registerBytes(base uint64, b []byte, access verbs.Access) *region {
	h.t.Helper()
	mr, err := h.pd.RegMRIOVA(b, base, access|verbs.AccessMWBind)
	if err != nil {
		h.t.Fatal(err)
	}
	h.keys.Unpin() // tests forget their regions, and the runtime panics at pinned memory that is forgotten
	return &region{mr: mr, key: uint32(mr.RKey()), base: base, data: b}
}

// deregister makes the key of r invalid.
func (h *testHost) deregister(r *region) {
	h.t.Helper()
	if err := r.mr.Close(); err != nil {
		h.t.Fatal(err)
	}
}

// wantUnused closes r, which nobody may be using any more. A packet that forgot to leave it would keep the program in
// Close for ever.
func (h *testHost) wantUnused(what string, r *region) {
	h.t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- r.mr.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			h.t.Errorf("%s: %s: close: %v, want no error", h.name, what, err)
		}
	case <-time.After(5 * time.Second):
		h.t.Errorf("%s: %s: the memory is still in use, want nobody in it", h.name, what)
	}
}

func (r *region) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: r.base + uint64(off), Length: uint32(n), LKey: r.mr.LKey()}
}

func (r *region) remote(off int) verbs.RemoteAddr {
	return verbs.RemoteAddr{VA: r.base + uint64(off), RKey: verbs.RKey(r.key)}
}

func (h *testHost) postRecv(id uint64, sg ...verbs.SGE) {
	h.t.Helper()
	if _, _, err := h.own.Post([]verbs.RecvWR{{ID: id, SGList: sg}}); err != nil {
		h.t.Fatal(err)
	}
}

// collect takes the QP's outputs, as a device does after each call.
func (h *testHost) collect() {
	for {
		f := h.qp.TakeFlush()
		if f == nil {
			break
		}
		if h.disk {
			h.flushings = append(h.flushings, f)
		} else {
			h.qp.Flushed(f, f.Sync())
		}
	}
	for _, c := range h.qp.Completions() {
		if s := h.qp.State(); c.WC.Status != verbs.WCSuccess && s != verbs.QPStateErr && s != verbs.QPStateSQE {
			h.t.Errorf("%s: %v of work request %d in %v, want an error state", h.name, c.WC.Status, c.WC.ID, s)
		}
		if c.WC.Op&verbs.WCRecv == 0 {
			h.sends = append(h.sends, sendDone{c.WC, c.Freed, c.Slots})
			continue
		}
		h.recvd = append(h.recvd, recvDone{c.WC, c.Solicited})
		if c.Slots != nil {
			c.Slots.Store(c.Freed)
		}
	}
	for _, e := range h.qp.Events() {
		h.events = append(h.events, e.Type)
		h.causes = append(h.causes, e.Cause)
		h.before = append(h.before, len(h.sends))
	}
	if h.qp.State() == verbs.QPStateErr && h.own != nil {
		for w := h.own.Take(); w != nil; w = h.own.Take() {
			h.recvd = append(h.recvd, recvDone{verbs.WC{ID: w.ID, Status: verbs.WCFlushErr}, true})
		}
	}
}

// polled frees the places of the send queue that are free once the first n completions are polled.
func (h *testHost) polled(n int) {
	s := h.sends[n-1]
	s.slots.Store(s.freed)
}

// rc returns the RC part of an end's QP.
func (h *testHost) rc() *rc { return h.qp.service.(*rc) }

// heldRecv returns the receive of the message under way, or the one that a dropped message has left for the next, or
// nil.
func (q *QP) heldRecv() *queue.Recv {
	if w := q.receiver.unused; w != nil {
		return w
	}
	return q.receiver.msg.recv
}

func nativeWord(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
