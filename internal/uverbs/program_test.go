//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

var le = binary.NativeEndian

// program plays a program with rxe's provider: it gives commands, and maps the queues by the descriptor. Its memory is an
// arena, whose addresses begin at arenaBase.
type program struct {
	t     testing.TB
	c     *Context
	arena []byte
	used  int
	names uint64 // user handles given
	fds   map[int]*os.File
	pd    uint32
	async int            // the descriptor of asynchronous events
	mr    uapi.RegMRResp // of all of the arena

	onDemand int // registrations
}

const arenaBase = 0x7f0000000000

// newProgram opens a device, and registers the program's memory.
func newProgram(t testing.TB, dev *verbs.Device) *program {
	t.Helper()
	p := &program{t: t, arena: make([]byte, 1<<20), fds: map[int]*os.File{}}
	c, err := Open(dev, arenaMemory{p})
	if err != nil {
		t.Fatal(err)
	}
	p.c = c
	t.Cleanup(func() { c.Close() })
	var ctx uapi.GetContextResp
	p.do(uapi.CmdGetContext, uapi.GetContext{}, nil, &ctx, nil)
	p.async = int(ctx.AsyncFD)
	var pd uapi.AllocPDResp
	p.do(uapi.CmdAllocPD, uapi.AllocPD{}, nil, &pd, nil)
	p.pd = pd.PDHandle
	p.do(uapi.CmdRegMR, uapi.RegMR{Start: arenaBase, Length: uint64(len(p.arena)), HCAVA: arenaBase, PDHandle: p.pd, AccessFlags: 0xf | uint32(verbs.AccessFlushGlobal)}, nil, &p.mr, nil)
	return p
}

func (p *program) ReadMemory(addr uint64, b []byte) error {
	off := addr - arenaBase
	if off > uint64(len(p.arena)) || uint64(len(b)) > uint64(len(p.arena))-off {
		return errors.New("no such memory")
	}
	copy(b, p.arena[off:])
	return nil
}

func (p *program) WriteMemory(addr uint64, b []byte) error {
	off := addr - arenaBase
	if off > uint64(len(p.arena)) || uint64(len(b)) > uint64(len(p.arena))-off {
		return errors.New("no such memory")
	}
	copy(p.arena[off:], b)
	return nil
}

func (p *program) Inject(f *os.File, _ bool) (int, error) {
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return 0, err
	}
	_ = unix.SetNonblock(fd, true)
	p.fds[fd] = os.NewFile(uintptr(fd), "injected")
	p.t.Cleanup(func() { p.fds[fd].Close() })
	return fd, nil
}

// arenaMemory registers parts of the arena.
type arenaMemory struct{ p *program }

func (m arenaMemory) slice(start, length uint64) ([]byte, error) {
	off := start - arenaBase
	if off > uint64(len(m.p.arena)) || length > uint64(len(m.p.arena))-off {
		return nil, unix.EFAULT
	}
	return m.p.arena[off : off+length], nil
}

func (m arenaMemory) Register(_ Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	b, err := m.slice(start, length)
	if err != nil {
		return nil, err
	}
	if byCalls {
		return pd.RegForeignMR(foreignArena(b), len(b), iova, access)
	}
	return pd.RegMRIOVA(b, iova, access)
}

// RegisterOnDemand is by calls: each looks at the arena anew.
func (m arenaMemory) RegisterOnDemand(_ Caller, pd *verbs.PD, start, length, iova uint64, access verbs.Access) (*verbs.MR, error) {
	b, err := m.slice(start, length)
	if err != nil {
		return nil, err
	}
	m.p.onDemand++
	return pd.RegForeignMR(foreignArena(b), len(b), iova, access)
}

func (m arenaMemory) Deregister(mr *verbs.MR) error { return mr.Close() }

// byCalls has the device reach the programs' memory by calls.
var byCalls bool

// foreignArena is a part of an arena that is reached by calls.
type foreignArena []byte

func (a foreignArena) ReadForeign(b []byte, off uint64) error {
	foreignMu.Lock()
	defer foreignMu.Unlock()
	copy(b, a[off:][:len(b)])
	return nil
}

func (a foreignArena) WriteForeign(b []byte, off uint64) error {
	foreignMu.Lock()
	defer foreignMu.Unlock()
	copy(a[off:][:len(b)], b)
	return nil
}

var foreignMu sync.Mutex

// try gives a command by INVOKE_WRITE. The response goes by the program's memory.
func (p *program) try(n uapi.CommandNumber, in, driverIn, out, driverOut any) error {
	at := p.used
	defer func() { p.used = at }()
	room := func(v any) (uapi.Buffer, func()) {
		if v == nil {
			return uapi.Buffer{}, func() {}
		}
		size := binary.Size(v)
		b := uapi.Buffer{Addr: arenaBase + uint64(p.used), Length: size}
		from := p.used
		p.used += size
		return b, func() { _ = uapi.Decode(p.arena[from:from+size], v) }
	}
	cmd := uapi.Command{Number: n, In: uapi.Append(nil, in)}
	if driverIn != nil {
		cmd.DriverIn = uapi.Append(nil, driverIn)
	}
	var core, driver func()
	cmd.Out, core = room(out)
	cmd.DriverOut, driver = room(driverOut)
	if err := p.c.Do(p, cmd); err != nil {
		return err
	}
	core()
	driver()
	return nil
}

// do gives a command that must succeed.
func (p *program) do(n uapi.CommandNumber, in, driverIn, out, driverOut any) {
	p.t.Helper()
	if err := p.try(n, in, driverIn, out, driverOut); err != nil {
		p.t.Fatalf("command %#x: %v", uint32(n), err)
	}
}

// mapped is a queue as the program sees it.
type mapped struct {
	b    []byte
	elem uint32
	mask uint32
}

func (p *program) mmap(m uapi.MMInfo) *mapped {
	p.t.Helper()
	b, err := unix.Mmap(int(p.c.File().Fd()), int64(m.Offset), int(m.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { unix.Munmap(b) })
	return &mapped{b: b, elem: 1 << le.Uint32(b[uapi.QueueElemSize:]), mask: le.Uint32(b[uapi.QueueMask:])}
}

func (m *mapped) index(at int) *uint32  { return (*uint32)(unsafe.Pointer(&m.b[at])) }
func (m *mapped) place(i uint32) []byte { return m.b[uapi.QueueData+i*m.elem:][:m.elem] }

// push adds an element to a work queue, if there is room.
func (m *mapped) push(fill func(e []byte)) bool {
	prod := atomic.LoadUint32(m.index(uapi.QueueProducer))
	if (prod+1)&m.mask == atomic.LoadUint32(m.index(uapi.QueueConsumer)) {
		return false
	}
	e := m.place(prod)
	clear(e)
	fill(e)
	atomic.StoreUint32(m.index(uapi.QueueProducer), (prod+1)&m.mask)
	return true
}

// userCQ, userQP and userSRQ are what the program has of its objects.
type userCQ struct {
	p      *program
	handle uint32
	user   uint64
	ring   *mapped
}

type userQP struct {
	p      *program
	handle uint32
	user   uint64
	qpn    uint32
	sq, rq *mapped
}

const timeout = 20 * time.Second

func (p *program) cq(n int, channel int) *userCQ {
	p.t.Helper()
	var (
		resp   uapi.CreateCQResp
		driver uapi.RxeCreateCQResp
	)
	p.names++
	p.do(uapi.CmdCreateCQ, uapi.CreateCQ{UserHandle: p.names, CQE: uint32(n), CompChannel: int32(channel)}, nil, &resp, &driver)
	return &userCQ{p: p, handle: resp.CQHandle, user: p.names, ring: p.mmap(driver.MI)}
}

// poll takes a completion, if there is one.
func (q *userCQ) poll() (w uapi.WC, ok bool) {
	if raceEnabled { // the detector does not see atomics outside of Go's memory
		q.p.c.mu.RLock()
		defer q.p.c.mu.RUnlock()
		driver := q.p.c.cqs[q.handle]
		driver.mu.Lock()
		defer driver.mu.Unlock()
	}
	cons := atomic.LoadUint32(q.ring.index(uapi.QueueConsumer))
	if cons == atomic.LoadUint32(q.ring.index(uapi.QueueProducer)) {
		return w, false
	}
	_ = uapi.Decode(q.ring.place(cons), &w)
	atomic.StoreUint32(q.ring.index(uapi.QueueConsumer), (cons+1)&q.ring.mask)
	return w, true
}

// wait polls until there is a completion.
func (q *userCQ) wait() uapi.WC {
	q.p.t.Helper()
	for end := time.Now().Add(timeout); time.Now().Before(end); {
		if w, ok := q.poll(); ok {
			return w
		}
	}
	q.p.t.Fatal("no completion came")
	return uapi.WC{}
}

// good waits for a completion that must be a success.
func (q *userCQ) good(id uint64) uapi.WC {
	q.p.t.Helper()
	w := q.wait()
	if w.Status != 0 || w.WRID != id {
		q.p.t.Fatalf("got completion %d with status %v, want %d with success", w.WRID, verbs.WCStatus(w.Status), id)
	}
	return w
}

func (p *program) qp(typ verbs.QPType, send, recv *userCQ, srq uint32) *userQP {
	p.t.Helper()
	p.names++
	in := uapi.CreateQP{UserHandle: p.names, PDHandle: p.pd, SendCQHandle: send.handle, RecvCQHandle: recv.handle, MaxSendWR: 16, MaxRecvWR: 16,
		MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64, QPType: uint8(typ)}
	if srq != 0 {
		in.IsSRQ, in.SRQHandle = 1, srq
	}
	var (
		resp   uapi.CreateQPResp
		driver uapi.RxeCreateQPResp
	)
	p.do(uapi.CmdCreateQP, in, nil, &resp, &driver)
	q := &userQP{p: p, handle: resp.QPHandle, user: p.names, qpn: resp.QPN, sq: p.mmap(driver.SQMI)}
	if srq == 0 {
		q.rq = p.mmap(driver.RQMI)
	}
	return q
}

// modify gives MODIFY_QP.
func (q *userQP) modify(mask verbs.QPAttrMask, in uapi.ModifyQP) {
	q.p.t.Helper()
	in.QPHandle, in.AttrMask = q.handle, uint32(mask)
	q.p.do(uapi.CmdModifyQP, in, nil, nil, nil)
}

func (q *userQP) init(access verbs.Access) {
	q.p.t.Helper()
	q.modify(verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccessFlags, uapi.ModifyQP{QPState: uint8(verbs.QPStateInit), PortNum: 1, QPAccessFlags: uint32(access)})
}

// connect takes an RC QP to RTS, to a peer that has the first GID of its device.
func (q *userQP) connect(to *userQP) {
	q.p.t.Helper()
	gid, err := to.p.c.Device().GID(1, 0)
	if err != nil {
		q.p.t.Fatal(err)
	}
	q.modify(verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPN|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer,
		uapi.ModifyQP{QPState: uint8(verbs.QPStateRTR), Dest: uapi.QPDest{DGID: gid.GID, IsGlobal: 1, HopLimit: 64, PortNum: 1}, PathMTU: uint8(verbs.MTU1024),
			DestQPNum: to.qpn, RQPSN: to.qpn & 0xffff, MaxDestRdAtomic: 4, MinRNRTimer: 1})
	q.modify(verbs.MaskState|verbs.MaskTimeout|verbs.MaskRetryCnt|verbs.MaskRNRRetry|verbs.MaskSQPSN|verbs.MaskMaxRDAtomic,
		uapi.ModifyQP{QPState: uint8(verbs.QPStateRTS), Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: q.qpn & 0xffff, MaxRdAtomic: 4})
}

// recv posts a receive, which takes no call.
func (q *userQP) recv(id uint64, addr uint64, n int) {
	q.p.t.Helper()
	if !q.rq.push(recvWQE(id, q.p.mr.LKey, addr, n)) {
		q.p.t.Fatal("the receive queue is full")
	}
}

func recvWQE(id uint64, lkey uint32, addr uint64, n int) func([]byte) {
	return func(e []byte) {
		le.PutUint64(e, id)
		le.PutUint32(e[16:], uint32(n))
		le.PutUint32(e[28:], 1)
		copy(e[uapi.RecvWQESize:], uapi.Append(nil, uapi.SGE{Addr: addr, Length: uint32(n), LKey: lkey}))
	}
}

// send is a work request. The places of fields are those of rxe_send_wqe, which uapi's tests compare with the header.
type send struct {
	id     uint64
	op     verbs.Opcode
	flags  verbs.SendFlags
	addr   uint64
	n      int
	inline []byte
	ex     [4]byte
	remote uint64
	rkey   uint32
	atomic [2]uint64
	ud     [3]uint32 // QPN, Q_Key, AH
	mw     [4]uint32 // L_Key, R_Key, new R_Key, access
	length uint64    // of the window
	level  byte      // of a FLUSH, which is global
}

// put puts a work request into the send queue, and rings no doorbell.
func (q *userQP) put(s send) {
	q.p.t.Helper()
	ok := q.sq.push(func(e []byte) {
		le.PutUint64(e, s.id)
		le.PutUint32(e[12:], uint32(s.op))
		le.PutUint32(e[16:], uint32(s.flags))
		copy(e[20:], s.ex[:])
		switch s.op {
		case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead:
			le.PutUint64(e[24:], s.remote)
			le.PutUint32(e[32:], s.rkey)
		case verbs.OpAtomicCmpSwap, verbs.OpAtomicFetchAdd:
			le.PutUint64(e[24:], s.remote)
			le.PutUint64(e[32:], s.atomic[0])
			le.PutUint64(e[40:], s.atomic[1])
			le.PutUint32(e[48:], s.rkey)
		case verbs.OpFlush: // the length is where that of data is
			le.PutUint64(e[24:], s.remote)
			le.PutUint32(e[36:], s.rkey)
			e[40], e[41] = byte(verbs.FlushGlobal), s.level
			le.PutUint32(e[184:], uint32(s.n))
			return
		case verbs.OpAtomicWrite: // the word is where the first SGE is, whatever the flags
			le.PutUint64(e[24:], s.remote)
			le.PutUint32(e[32:], s.rkey)
			le.PutUint32(e[184:], 8)
			le.PutUint64(e[uapi.SendWQESize:], s.atomic[0])
			return
		case verbs.OpBindMW:
			le.PutUint64(e[24:], s.remote)
			le.PutUint64(e[32:], s.length)
			for i, v := range s.mw {
				le.PutUint32(e[40+4*i:], v)
			}
		default:
			le.PutUint32(e[24:], s.ud[0])
			le.PutUint32(e[28:], s.ud[1])
			le.PutUint32(e[36:], s.ud[2])
		}
		data := e[uapi.SendWQESize:]
		if s.inline != nil {
			le.PutUint32(e[184:], uint32(len(s.inline)))
			copy(data, s.inline)
			return
		}
		le.PutUint32(e[184:], uint32(s.n))
		if s.n > 0 {
			le.PutUint32(e[196:], 1)
			copy(data, uapi.Append(nil, uapi.SGE{Addr: s.addr, Length: uint32(s.n), LKey: q.p.mr.LKey}))
		}
	})
	if !ok {
		q.p.t.Fatal("the send queue is full")
	}
}

// post puts work requests into the send queue and rings the doorbell.
func (q *userQP) post(sends ...send) {
	q.p.t.Helper()
	for _, s := range sends {
		q.put(s)
	}
	if err := q.p.c.Doorbell(q.handle); err != nil {
		q.p.t.Fatalf("doorbell: %v", err)
	}
}

// two are two programs, each with a device, a CQ and an RC QP, which are connected.
func two(t testing.TB) (x, y *userQP, xcq, ycq *userCQ) {
	t.Helper()
	devs := devices(t)
	a, b := newProgram(t, devs[0]), newProgram(t, devs[1])
	xcq, ycq = a.cq(40, -1), b.cq(40, -1)
	x, y = a.qp(verbs.QPTypeRC, xcq, xcq, 0), b.qp(verbs.QPTypeRC, ycq, ycq, 0)
	const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal
	x.init(all)
	y.init(all)
	x.connect(y)
	y.connect(x)
	return x, y, xcq, ycq
}

// devices opens two devices on a simulated network.
func devices(t testing.TB) [2]*verbs.Device {
	t.Helper()
	n := rdmatest.New(t)
	return [2]*verbs.Device{n.Device(), n.Device()}
}
