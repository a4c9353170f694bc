package connector_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/ucma"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// kernel is a kernel's connection manager in this process: that of "adverb run", for a device of a simulated network.
type kernel struct {
	t   *testing.T
	m   *ucma.Manager
	mem *os.File // of this process

	mu sync.Mutex
	// spoil changes what the kernel answers to a command, or is nil.
	spoil func(cmd uint32, answer []byte) []byte
	// refuse fails a command, or is nil.
	refuse func(cmd uint32, arg []byte) error
}

// kernels are those of a test, by the descriptors of their files.
type kernels struct {
	mu sync.Mutex
	of map[int]opening
}

// opening is an opening of rdma_cm.
type opening struct {
	k    *kernel
	file *ucma.File
}

func newKernels(t *testing.T) *kernels {
	ks := &kernels{of: map[int]opening{}}
	undo := connector.SetCommand(ks.command)
	t.Cleanup(undo)
	return ks
}

func (ks *kernels) command(fd int, b []byte) error {
	ks.mu.Lock()
	o := ks.of[fd]
	ks.mu.Unlock()
	return o.k.command(o.file, b)
}

// managed is a device of the kernel's.
type managed struct {
	verbs.ProviderDevice
	ks *kernels
	k  *kernel
}

// OpenCM implements connector.KernelManaged.
func (m managed) OpenCM() (*os.File, error) {
	file, poll, err := m.k.m.Open()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Dup(int(poll.Fd()))
	if err != nil {
		return nil, err
	}
	m.ks.mu.Lock()
	before := m.ks.of[fd]
	m.ks.of[fd] = opening{m.k, file}
	m.ks.mu.Unlock()
	if before.file != nil { // whose descriptor is closed
		before.file.Close()
	}
	err = unix.SetNonblock(fd, true) // before the runtime looks
	return os.NewFile(uintptr(fd), "rdma_cm"), errors.Join(err, poll.Close())
}

// device makes a device of the kernel's, on a network.
func (ks *kernels) device(t *testing.T, net *rdmatest.Network) (*verbs.Device, *kernel) {
	t.Helper()
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Skip("the kernel of this test reads the commands' memory by /proc/self/mem: ", err)
	}
	soft := net.Device()
	k := &kernel{t: t, m: ucma.New(ucma.Config{Devices: []*verbs.Device{soft}}), mem: mem}
	t.Cleanup(func() {
		if err := errors.Join(k.m.Close(), mem.Close()); err != nil {
			t.Error(err)
		}
	})
	return verbs.NewDevice(managed{soft.Provider(), ks, k}), k
}

func (k *kernel) command(file *ucma.File, b []byte) error {
	k.mu.Lock()
	spoil, refuse := k.spoil, k.refuse
	k.mu.Unlock()
	cmd := binary.NativeEndian.Uint32(b)
	if refuse != nil {
		if err := refuse(cmd, b[uapi.CMHeaderSize:]); err != nil {
			return err
		}
	}
	if err := file.Do(caller{k, cmd, spoil}, b); err != nil {
		return ucma.Errno(err)
	}
	return nil
}

// caller is this process, as the kernel sees it in a command.
type caller struct {
	k     *kernel
	cmd   uint32
	spoil func(cmd uint32, answer []byte) []byte
}

func (c caller) ReadMemory(addr uint64, b []byte) error {
	_, err := c.k.mem.ReadAt(b, int64(addr))
	return err
}

func (c caller) WriteMemory(addr uint64, b []byte) error {
	if c.spoil != nil {
		b = c.spoil(c.cmd, b)
	}
	_, err := c.k.mem.WriteAt(b, int64(addr))
	return err
}

func (c caller) File(uint32) (*ucma.File, error) { return nil, syscall.EBADF }

// TestKernelConnects makes a connection between a device of the kernel's and a software device, either way, by IP addresses
// and by GIDs.
func TestKernelConnects(t *testing.T) {
	for _, byGID := range []bool{false, true} {
		kernelConnects(t, byGID)
	}
}

func kernelConnects(t *testing.T, byGID bool) {
	ks := newKernels(t)
	net := rdmatest.New(t)
	card, _ := ks.device(t, net)
	soft := net.Device()
	for _, ends := range [][2]*verbs.Device{{card, soft}, {soft, card}, {card, card}} {
		lc, at := rdmacm.ListenConfig{Devices: ends[:1]}, addrOf(t, ends[0])
		listen := func() (*rdmacm.Listener, error) { return lc.Listen(netip.AddrPortFrom(at, 0)) }
		if byGID {
			listen = func() (*rdmacm.Listener, error) { return lc.ListenIB(rdmacm.IBAddr{GID: verbs.GIDFromAddr(at)}) }
		}
		l, err := listen()
		if err != nil {
			t.Fatal(err)
		}
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			defer close(accepted)
			if req, err := l.Accept(t.Context()); err == nil {
				c, err := req.Accept(t.Context(), &rdmacm.Config{PrivateData: []byte("yes")})
				if err != nil {
					t.Errorf("accept: %v", err)
					return
				}
				accepted <- c
			}
		}()
		d, config := rdmacm.Dialer{Devices: ends[1:]}, &rdmacm.Config{PrivateData: []byte("may I?")}
		dial := func() (*rdmacm.Conn, error) { return d.Dial(t.Context(), l.Addr(), config) }
		if byGID {
			dial = func() (*rdmacm.Conn, error) { return d.DialIB(t.Context(), l.AddrIB(), config) }
		}
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		s, ok := <-accepted
		if !ok {
			t.FailNow()
		}
		if got, want := s.ID().LocalIB(), c.ID().RemoteIB(); got != want {
			t.Errorf("the listener's end is %v, and the dialer calls it %v", got, want)
		}
		if path, err := c.ID().Path(); err != nil || path.DGID != c.ID().RemoteIB().GID || path.SGID != c.ID().LocalIB().GID || path.MTU == 0 || path.PKey != 0xffff {
			t.Errorf("the path from %v to %v: got %+v, %v", c.ID().LocalIB(), c.ID().RemoteIB(), path, err)
		}
		if got, want := string(c.PrivateData()[:3]), "yes"; got != want {
			t.Errorf("the dialer gets %q, want %q", got, want)
		}
		if got, want := s.RemoteAddr(), c.LocalAddr(); got != want && !byGID { // of GIDs the service is not told
			t.Errorf("the dialer's end is %v, and the listener calls it %v", got, want)
		}
		if err := errors.Join(c.Close(), s.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

func addrOf(t *testing.T, dev *verbs.Device) netip.Addr {
	t.Helper()
	addrs, err := connector.Addrs(dev)
	if err != nil || len(addrs) == 0 {
		t.Fatalf("addresses of %s: %v, %v", dev.Name(), addrs, err)
	}
	return addrs[0]
}

// TestKernelPortInUse: a port that the kernel has given to others is passed over by those who want any.
func TestKernelPortInUse(t *testing.T) {
	ks := newKernels(t)
	card, k := ks.device(t, rdmatest.New(t))
	binds := 0
	k.refuse = func(cmd uint32, _ []byte) error {
		if cmd != uapi.CMBind {
			return nil
		}
		if binds++; binds <= 3 {
			return syscall.EADDRINUSE
		}
		return nil
	}
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{card}}).Listen(netip.AddrPortFrom(addrOf(t, card), 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	binds = 0
	if _, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{card}}).Listen(netip.AddrPortFrom(addrOf(t, card), 7471)); !errors.Is(err, rdmacm.ErrAddrInUse) {
		t.Errorf("a port that is named: got %v, want ErrAddrInUse", err)
	}
}

// TestKernelPortSpaces: a number is a port of each port space.
func TestKernelPortSpaces(t *testing.T) {
	ks := newKernels(t)
	card, _ := ks.device(t, rdmatest.New(t))
	at := netip.AddrPortFrom(addrOf(t, card), 7471)
	ch := rdmacm.NewEventChannel(card)
	var ids [2]*rdmacm.ID
	for i, ps := range []rdmacm.PortSpace{rdmacm.PortSpaceTCP, rdmacm.PortSpaceUDP} {
		id, err := rdmacm.NewID(ch, ps)
		if err == nil {
			err = id.BindAddr(at)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		ids[i] = id
	}
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{card}}).Listen(netip.AddrPortFrom(at.Addr(), 7472))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	id := ids[0] // connects from its port, which is that of the port space for streams
	due := func(typ rdmacm.EventType) {
		t.Helper()
		if ev, err := ch.Next(t.Context()); err != nil || ev.Type != typ {
			t.Fatalf("event %v, %v, %v; want %v", ev.Type, ev.Err, err, typ)
		}
	}
	ask(t, id, l.Addr(), due)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if got := req.RemoteAddr(); got != at {
		t.Errorf("the request comes from %v, want %v", got, at)
	}
	if err := req.Reject(nil); err != nil {
		t.Error(err)
	}
}

// smallQP is a small QP.
var smallQP = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestKernelGroupLID: a group of InfiniBand has a LID and a Q_Key of its own, which the event brings, and by the LID the QP
// is attached.
func TestKernelGroupLID(t *testing.T) {
	const group, qkey = 0xc005, 0x0b1b
	for _, lid := range []uint16{group, 0x1234} { // the latter is none of a group, so the attachment fails if it gets there
		t.Run(fmt.Sprintf("%#x", lid), func(t *testing.T) {
			ks := newKernels(t)
			card, k := ks.device(t, rdmatest.New(t))
			k.spoil = func(cmd uint32, answer []byte) []byte {
				var ev uapi.CMEventResp
				if cmd != uapi.CMGetEvent || uapi.Decode(answer, &ev) != nil || ev.Event != uapi.CMEventMulticastJoin {
					return answer
				}
				var p uapi.CMUDParam
				if err := uapi.Decode(ev.Param[:], &p); err != nil {
					t.Error(err)
				}
				p.AHAttr.DLID, p.AHAttr.SL, p.QKey = lid, 3, qkey
				ev.PutParam(p)
				return uapi.Append(nil, ev)
			}
			ch := rdmacm.NewEventChannel(card)
			id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
			must(t, err)
			defer id.Close()
			must(t, id.BindAddr(netip.AddrPortFrom(addrOf(t, card), 0)))
			must(t, id.CreateQP(nil, smallQP))
			must(t, id.JoinMulticast(netip.MustParseAddr("239.1.2.3")))
			ev, err := ch.Next(t.Context())
			must(t, err)
			if ah := ev.UD.AH; lid == group && (ev.Type != rdmacm.EventMulticastJoin || ah.DLID != lid || ah.SL != 3 || ev.UD.QKey != qkey) {
				t.Errorf("joined: got %v, LID %#x, SL %d, Q_Key %v", ev.Type, ah.DLID, ah.SL, ev.UD.QKey)
			}
			if lid != group && (ev.Type != rdmacm.EventMulticastError || !errors.Is(ev.Err, verbs.ErrInvalid)) {
				t.Errorf("a LID that is none of a group: got %v, %v", ev.Type, ev.Err)
			}
		})
	}
}

// TestKernelGroupV1: a kernel whose device speaks RoCEv1 names a group of IPv4 by another GID, and its answer finds who has
// joined.
func TestKernelGroupV1(t *testing.T) {
	ks := newKernels(t)
	card, _ := ks.device(t, rdmatest.New(t, rdmatest.RoCEv1()))
	ch := rdmacm.NewEventChannel(card)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
	must(t, err)
	defer id.Close()
	must(t, id.BindAddr(netip.AddrPortFrom(addrOf(t, card), 0)))
	group := netip.MustParseAddr("239.1.2.3")
	must(t, id.JoinMulticast(group))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // for an event that is lost
	defer cancel()
	ev, err := ch.Next(ctx)
	must(t, err)
	if got, want := ev.UD.AH.DGID, verbs.GIDFromAddr(netip.MustParseAddr("ff0e::ffff:ef01:203")); ev.Type != rdmacm.EventMulticastJoin || got != want {
		t.Errorf("event %v, %v, of %v; want one of %v", ev.Type, ev.Err, got, want)
	}
	must(t, id.LeaveMulticast(group))
}

// TestKernelUC connects UC QPs, whose requests the kernel does not tell from those of RC.
func TestKernelUC(t *testing.T) {
	ks := newKernels(t)
	net := rdmatest.New(t)
	card, _ := ks.device(t, net)
	soft := net.Device()
	for _, ends := range [][2]*verbs.Device{{card, soft}, {soft, card}, {card, card}} {
		for _, typ := range []verbs.QPType{verbs.QPTypeUC, verbs.QPTypeRC} {
			l, err := (&rdmacm.ListenConfig{Devices: ends[:1], UC: true}).Listen(netip.AddrPortFrom(addrOf(t, ends[0]), 0))
			must(t, err)
			ch := rdmacm.NewEventChannel(ends[1])
			id, err := rdmacm.NewID(ch, rdmacm.PortSpaceIB)
			must(t, err)
			due := func(want rdmacm.EventType) {
				t.Helper()
				if ev, err := ch.Next(t.Context()); err != nil || ev.Type != want {
					t.Fatalf("event %v, %v, %v; want %v", ev.Type, ev.Err, err, want)
				}
			}
			must(t, id.SetQPType(typ)) // before the route, with which the kernel's ID comes
			must(t, id.BindAddr(netip.AddrPortFrom(addrOf(t, ends[1]), 0)))
			ask(t, id, l.Addr(), due)
			req, err := l.Accept(t.Context())
			must(t, err)
			conf := rdmacm.Config{QP: smallQP}
			conf.QP.Type = typ
			c, err := req.Accept(t.Context(), &conf)
			must(t, err)
			due(rdmacm.EventEstablished)
			if got, want := c.QP().Type(), typ; got != want || id.QP().Type() != typ {
				t.Errorf("QPs of %v and %v, want %v", got, id.QP().Type(), want)
			}
			must(t, errors.Join(id.Close(), c.Close(), l.Close()))
		}
	}
}

// TestKernelFamilies: [::] takes IPv4 along, unless AFOnly says otherwise.
func TestKernelFamilies(t *testing.T) {
	for _, only := range []bool{false, true} {
		t.Run(fmt.Sprintf("AFOnly %v", only), func(t *testing.T) {
			ks := newKernels(t)
			net := rdmatest.New(t)
			card, _ := ks.device(t, net)
			soft := net.Device()
			l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{card}, AFOnly: only}).Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
			must(t, err)
			defer l.Close()
			addrs, err := connector.Addrs(card)
			must(t, err)
			for _, a := range addrs {
				ctx, cancel := context.WithCancel(t.Context())
				var answered sync.WaitGroup
				answered.Go(func() {
					if req, err := l.Accept(ctx); err == nil {
						_ = req.Reject([]byte("heard"))
					}
				})
				_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{soft}}).Dial(ctx, netip.AddrPortFrom(a, l.Addr().Port()), nil)
				cancel()
				answered.Wait()
				want := rdmacm.RejectConsumerDefined
				if only && a.Is4() {
					want = rdmacm.RejectInvalidServiceID // nobody listens
				}
				var no *rdmacm.RejectError
				if !errors.As(err, &no) || no.Reason != want {
					t.Errorf("%v: got %v, want reason %v", a, err, want)
				}
			}
		})
	}
}

// TestKernelHostile has a kernel change bytes of its answers, leave some out, and fail commands: attempts to connect fail or
// not, and nothing panics or stays.
func TestKernelHostile(t *testing.T) {
	const attempts = 40
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	for i := range uint64(attempts) {
		r := rand.New(rand.NewPCG(seed, i))
		var mu sync.Mutex // of r
		odds := 1 + r.IntN(6)
		ks := newKernels(t)
		card, k := ks.device(t, rdmatest.New(t))
		k.spoil = func(cmd uint32, answer []byte) []byte {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.IntN(odds) != 0:
			case r.IntN(3) == 0:
				return answer[:r.IntN(len(answer)+1)]
			default:
				for range 1 + r.IntN(3) {
					answer[r.IntN(len(answer))] ^= 1 << r.IntN(8)
				}
			}
			return answer
		}
		k.refuse = func(uint32, []byte) error {
			mu.Lock()
			defer mu.Unlock()
			if r.IntN(8*odds) == 0 {
				return []error{syscall.EINVAL, syscall.ENODEV, syscall.ENOMEM, syscall.EINTR}[r.IntN(4)]
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond) // for events that are lost
		l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{card}}).Listen(netip.AddrPortFrom(addrOf(t, card), 0))
		if err == nil {
			var ends sync.WaitGroup
			ends.Go(func() {
				if req, err := l.Accept(ctx); err == nil {
					if c, err := req.Accept(ctx, nil); err == nil {
						c.Close()
					}
				}
			})
			if c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{card}}).Dial(ctx, l.Addr(), nil); err == nil {
				c.Close()
			}
			ends.Wait()
			l.Close()
		}
		cancel()
		if err := card.Close(); err != nil && !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("attempt %d: close: %v", i, err)
		}
		if t.Failed() {
			return
		}
	}
}

// ask connects an ID to an address. due waits for an event of the ID.
func ask(t *testing.T, id *rdmacm.ID, to netip.AddrPort, due func(rdmacm.EventType)) {
	t.Helper()
	must(t, id.ResolveAddr(netip.AddrPort{}, to))
	due(rdmacm.EventAddrResolved)
	must(t, id.ResolveRoute())
	due(rdmacm.EventRouteResolved)
	must(t, id.CreateQP(nil, smallQP))
	must(t, id.Connect(nil))
}
