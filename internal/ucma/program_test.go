package ucma

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// program plays a program with librdmacm: it gives commands by one opening of rdma_cm. Its memory is an arena, whose
// addresses begin at arenaBase. Responses go to its beginning.
type program struct {
	t     testing.TB
	m     *Manager
	f     *File
	poll  *os.File
	arena []byte
	files map[uint32]*File // by the program's descriptor
	uids  uint64
}

const (
	arenaBase = 0x7f0000000000
	respAt    = arenaBase
	optionAt  = arenaBase + 4096
)

var errMemory = errors.New("no such memory")

// newManager returns a manager of one device.
func newManager(t testing.TB, devs ...*verbs.Device) *Manager {
	t.Helper()
	m := New(Config{Devices: devs})
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func newProgram(t testing.TB, m *Manager) *program {
	t.Helper()
	f, poll, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	if poll != nil {
		t.Cleanup(func() { poll.Close() })
	}
	return &program{t: t, m: m, f: f, poll: poll, arena: make([]byte, 1<<16), files: map[uint32]*File{}}
}

// two are two programs on hosts of their own.
func two(t testing.TB) (a, b *program) {
	t.Helper()
	n := rdmatest.New(t)
	return newProgram(t, newManager(t, n.Device())), newProgram(t, newManager(t, n.Device()))
}

func (p *program) slice(addr uint64, n int) ([]byte, error) {
	off := addr - arenaBase
	if off > uint64(len(p.arena)) || uint64(n) > uint64(len(p.arena))-off {
		return nil, errMemory
	}
	return p.arena[off:][:n], nil
}

func (p *program) ReadMemory(addr uint64, b []byte) error {
	from, err := p.slice(addr, len(b))
	copy(b, from)
	return err
}

func (p *program) WriteMemory(addr uint64, b []byte) error {
	to, err := p.slice(addr, len(b))
	copy(to, b)
	return err
}

func (p *program) File(fd uint32) (*File, error) {
	switch f, ok := p.files[fd]; {
	case !ok:
		return nil, syscall.EBADF
	case f == nil:
		return nil, syscall.EINVAL
	default:
		return f, nil
	}
}

// write gives a command with so much room for the response, whose place is in the command.
func (p *program) write(n uint32, in any, room int) error {
	b := uapi.Append(nil, in)
	return p.f.Do(p, append(uapi.Append(nil, uapi.CMHeader{Cmd: n, In: uint16(len(b)), Out: uint16(room)}), b...))
}

// try gives a command, and reads the response.
func (p *program) try(n uint32, in, resp any) error {
	if resp == nil {
		return p.write(n, in, 0)
	}
	err := p.write(n, in, binary.Size(resp))
	if err == nil {
		err = uapi.Decode(p.arena, resp)
	}
	return err
}

// do gives a command that must succeed.
func (p *program) do(n uint32, in, resp any) {
	p.t.Helper()
	if err := p.try(n, in, resp); err != nil {
		p.t.Fatalf("command %d: %v", n, err)
	}
}

// refused gives a command that must fail with an errno.
func (p *program) refused(what string, want syscall.Errno, n uint32, in, resp any) {
	p.t.Helper()
	if err := p.try(n, in, resp); err == nil || Errno(err) != want {
		p.t.Errorf("%s: got error %v (%v), want %v", what, err, Errno(err), want)
	}
}

// create makes an ID, and returns its number and the program's own.
func (p *program) create(ps uint16) (id uint32, uid uint64) {
	p.t.Helper()
	p.uids++
	var resp uapi.CMCreateResp
	p.do(uapi.CMCreateID, uapi.CMCreate{UID: p.uids, Response: respAt, PS: ps}, &resp)
	return resp.ID, p.uids
}

func (p *program) destroy(id uint32) (reported uint32) {
	p.t.Helper()
	var resp uapi.CMDestroyResp
	p.do(uapi.CMDestroyID, uapi.CMDestroy{Response: respAt, ID: id}, &resp)
	return resp.EventsReported
}

// next takes an event, which must be of a type.
func (p *program) next(want rdmacm.EventType) uapi.CMEventResp {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), rdmatest.Patience)
	defer cancel()
	for {
		var ev uapi.CMEventResp
		err := p.try(uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, &ev)
		if err == nil {
			if ev.Event != uint32(want) {
				p.t.Fatalf("got event %v with status %d, want %v", rdmacm.EventType(ev.Event), int32(ev.Status), want)
			}
			return ev
		}
		if !errors.Is(err, ErrWouldBlock) {
			p.t.Fatal(err)
		}
		select {
		case <-p.f.Readable():
		case <-ctx.Done():
			p.t.Fatalf("no event came, want %v", want)
		}
	}
}

// quiet fails the test if there is an event.
func (p *program) quiet() {
	p.t.Helper()
	p.refused("GET_EVENT", syscall.EAGAIN, uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, &uapi.CMEventResp{})
}

func conn(ev *uapi.CMEventResp) (c uapi.CMConnParam) {
	_ = uapi.Decode(ev.Param[:], &c)
	return c
}

func ud(ev *uapi.CMEventResp) (u uapi.CMUDParam) {
	_ = uapi.Decode(ev.Param[:], &u)
	return u
}

// dev is the program's device.
func (p *program) dev() *verbs.Device { return p.m.config.Devices[0] }

// addr returns the address of the program's host, with a port.
func (p *program) addr(ipv6 bool, port uint16) netip.AddrPort {
	p.t.Helper()
	es, err := p.dev().GIDs(1)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range es {
		if e.GID.Addr().Is6() == ipv6 {
			return netip.AddrPortFrom(e.GID.Addr(), port)
		}
	}
	p.t.Fatal("the device has no address of the IP version")
	return netip.AddrPort{}
}

func in6(a netip.AddrPort) (s uapi.SockaddrIn6)         { copy(s[:], sockaddr(a)); return s }
func storage(a netip.AddrPort) (s uapi.SockaddrStorage) { copy(s[:], sockaddr(a)); return s }

// listener returns an ID that listens, and its port.
func (p *program) listener(ps uint16, backlog uint32) (id uint32, at netip.AddrPort) {
	p.t.Helper()
	id, _ = p.create(ps)
	p.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(p.addr(false, 0))}, nil)
	p.do(uapi.CMListen, uapi.CMListenArg{ID: id, Backlog: backlog}, nil)
	local, _ := p.ends(id)
	return id, local
}

// ends asks for an ID's addresses.
func (p *program) ends(id uint32) (local, remote netip.AddrPort) {
	p.t.Helper()
	var resp uapi.CMQueryRouteResp
	p.do(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: id}, &resp)
	local, _ = address(resp.SrcAddr[:])
	remote, _ = address(resp.DstAddr[:])
	return local, remote
}

// resolved returns an ID that knows its peer's address.
func (p *program) resolved(ps uint16, to netip.AddrPort) uint32 {
	p.t.Helper()
	id, uid := p.create(ps)
	p.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, DstAddr: in6(to), TimeoutMs: 1000}, nil)
	if ev := p.next(rdmacm.EventAddrResolved); ev.UID != uid || ev.ID != id || ev.Status != 0 {
		p.t.Errorf("ADDR_RESOLVED: got %d of %d, status %d, want %d of %d", ev.ID, ev.UID, ev.Status, id, uid)
	}
	return id
}

// routed returns an ID that is ready to connect.
func (p *program) routed(ps uint16, to netip.AddrPort) uint32 {
	p.t.Helper()
	id := p.resolved(ps, to)
	p.do(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: id, TimeoutMs: 1000}, nil)
	p.next(rdmacm.EventRouteResolved)
	return id
}

// param is what a program says of its QP.
func param(qp *verbs.QP, data string) uapi.CMConnParam {
	c := uapi.CMConnParam{ResponderResources: 4, InitiatorDepth: 4, RetryCount: 7, RNRRetryCount: 7, Valid: 1}
	if qp != nil {
		c.QPNum = uint32(qp.QPN())
	}
	c.PrivateDataLen = uint8(copy(c.PrivateData[:], data))
	return c
}

func (p *program) connect(id uint32, qp *verbs.QP, data string) {
	p.t.Helper()
	p.do(uapi.CMConnect, uapi.CMConnectArg{ID: id, ConnParam: param(qp, data)}, nil)
}

// accept accepts a request, from when on its events have the program's number.
func (p *program) accept(id uint32, qp *verbs.QP, data string) (uid uint64) {
	p.t.Helper()
	p.uids++
	p.do(uapi.CMAccept, uapi.CMAcceptArg{UID: p.uids, ID: id, ConnParam: param(qp, data)}, nil)
	return p.uids
}

// qp makes a QP as a program does by uverbs, in RESET.
func (p *program) qp(typ verbs.QPType) *verbs.QP {
	p.t.Helper()
	pd, err := p.dev().SharedPD()
	if err != nil {
		p.t.Fatal(err)
	}
	cq, err := p.dev().CreateCQ(16)
	if err != nil {
		p.t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { qp.Close() })
	return qp
}

// attr asks for the attributes of a state.
func (p *program) attr(id uint32, to verbs.QPState) (a uapi.QPAttr) {
	p.t.Helper()
	p.do(uapi.CMInitQPAttr, uapi.CMInitQPAttrArg{Response: respAt, ID: id, QPState: uint32(to)}, &a)
	return a
}

// move takes a QP through states as librdmacm does.
func (p *program) move(id uint32, qp *verbs.QP, states ...verbs.QPState) {
	p.t.Helper()
	for _, to := range states {
		u := p.attr(id, to)
		a := verbs.QPAttr{State: verbs.QPState(u.QPState), PathMTU: verbs.MTU(u.PathMTU), QKey: verbs.QKey(u.QKey), RQPSN: verbs.PSN(u.RQPSN),
			SQPSN: verbs.PSN(u.SQPSN), DestQPN: verbs.QPN(u.DestQPNum), Access: verbs.Access(u.QPAccessFlags), PKeyIndex: int(u.PKeyIndex),
			AH:          verbs.AHAttr{DGID: u.AHAttr.GRH.DGID, SGIDIndex: int(u.AHAttr.GRH.SGIDIndex), HopLimit: u.AHAttr.GRH.HopLimit, TrafficClass: u.AHAttr.GRH.TrafficClass, Port: int(u.AHAttr.PortNum)},
			MaxRDAtomic: int(u.MaxRdAtomic), MaxDestRDAtomic: int(u.MaxDestRdAtomic), MinRNRTimer: u.MinRNRTimer, Port: int(u.PortNum),
			Timeout: u.Timeout, RetryCnt: u.RetryCnt, RNRRetry: u.RNRRetry}
		if err := qp.Modify(&a, verbs.QPAttrMask(u.QPAttrMask)); err != nil {
			p.t.Fatalf("%v: %v", to, err)
		}
	}
}

// serve takes a connected QP from RESET or INIT to RTS.
func (p *program) serve(id uint32, qp *verbs.QP) {
	p.t.Helper()
	p.move(id, qp, verbs.QPStateInit, verbs.QPStateRTR, verbs.QPStateRTS)
}

// established is a connection: x is a's end, and y b's.
type established struct {
	x, y     uint32
	xqp, yqp *verbs.QP
	yuid     uint64
}

// connected makes a connection between two programs, as librdmacm does.
func connected(a, b *program, to netip.AddrPort) (l established) {
	a.t.Helper()
	l.x, l.xqp = a.routed(uapi.PSTCP, to), a.qp(verbs.QPTypeRC)
	a.move(l.x, l.xqp, verbs.QPStateInit)
	a.connect(l.x, l.xqp, "ping")
	ev := b.next(rdmacm.EventConnectRequest)
	l.y, l.yqp = ev.ID, b.qp(verbs.QPTypeRC)
	b.serve(l.y, l.yqp)
	l.yuid = b.accept(l.y, l.yqp, "pong")
	a.next(rdmacm.EventConnectResponse)
	a.serve(l.x, l.xqp)
	a.do(uapi.CMAccept, uapi.CMAcceptArg{ID: l.x}, nil)
	if ev := b.next(rdmacm.EventEstablished); ev.UID != l.yuid || ev.ID != l.y {
		b.t.Errorf("ESTABLISHED: got %d of %d, want %d of %d", ev.ID, ev.UID, l.y, l.yuid)
	}
	return l
}

// wait takes a completion, which must be a success.
func (p *program) wait(qp *verbs.QP) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), rdmatest.Patience)
	defer cancel()
	var wcs [1]verbs.WC
	if _, err := qp.SendCQ().Wait(ctx, wcs[:]); err != nil {
		p.t.Fatal(err)
	}
	if err := wcs[0].Err(); err != nil {
		p.t.Fatal(err)
	}
}

// eventually waits for a condition that no event tells.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(rdmatest.Patience); !is(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
