package connector

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// kernelConnector is the connector of a device of the kernel's: it speaks the ABI of /dev/infiniband/rdma_cm, as librdmacm
// does. The kernel knows its IDs by numbers, and tells of them by names that the connector has chosen.
//
//	a call    --> command  --> rdma_cm
//	Event     <-- dispatch <-- GET_EVENT, on one goroutine
type kernelConnector struct {
	dev     *verbs.Device
	kernel  KernelManaged
	guid    verbs.GUID
	iwarp   bool
	watcher Watcher
	gone    sync.Once // the watcher has heard
	file    *os.File
	raw     syscall.RawConn
	command func(fd int, b []byte) error
	ended   chan struct{}

	mu    sync.Mutex
	names uint64
	ids   map[uint64]*kernelID   // by name
	ports map[Name][]*kernelPort // several where they share it
	conns map[*kernelConn]bool   // with an ID
}

// kernelID is an ID of the kernel's.
type kernelID struct {
	c      *kernelConnector
	name   uint64
	number uint32
	handle func(*uapi.CMEventResp) // called by the connector's goroutine; guarded by c.mu

	// using is held by commands that name the number, since the kernel gives it to another ID once this one is
	// destroyed. It is the last lock to be taken.
	using sync.RWMutex
	dead  bool // guarded by using
}

// openKernel brings a connector for a device of the kernel's into service.
func openKernel(dev *verbs.Device, k KernelManaged, w Watcher) (Connector, error) {
	c, err := newKernel(dev, k)
	if err != nil {
		return nil, err
	}
	c.watcher = w
	knownSpots.open(dev)
	dev.Report(c)
	go c.run()
	return c, nil
}

// newKernel makes a connector whose calls work, and which gets no events.
func newKernel(dev *verbs.Device, k KernelManaged) (*kernelConnector, error) {
	attr, err := dev.Query()
	if err != nil {
		return nil, err
	}
	f, err := k.OpenCM()
	if err != nil {
		return nil, verbs.Errorf(verbs.ErrUnsupported, "open the kernel's connection manager: %w: load the module rdma_ucm", err)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &kernelConnector{dev: dev, kernel: k, guid: attr.NodeGUID, iwarp: dev.Info().Transport == verbs.TransportIWARP, file: f, raw: raw, command: command, ended: make(chan struct{}), ids: map[uint64]*kernelID{}, ports: map[Name][]*kernelPort{}, conns: map[*kernelConn]bool{}}, nil
}

// askKernel returns the port of a device from which the kernel would connect, if the device has the address. The kernel
// knows the interfaces of iWARP and InfiniBand devices, whose GIDs have no IP addresses.
func askKernel(dev *verbs.Device, k KernelManaged, addr netip.Addr) (place, error) {
	c, err := newKernel(dev, k)
	if err != nil {
		return place{}, err
	}
	defer c.file.Close()
	id, err := c.create(wire.PortSpaceTCP, verbs.QPTypeRC, nil)
	if err != nil {
		return place{}, err
	}
	defer id.destroy()
	if err := id.bind(Name{PS: wire.PortSpaceTCP, Addr: addr}); err != nil {
		return place{}, err
	}
	resp, err := id.query()
	if err == nil && verbs.GUID(resp.NodeGUID) != c.guid {
		err = verbs.Errorf(syscall.ENODEV, "the kernel has it for another device")
	}
	return placeOf(&resp), err
}

func (id *kernelID) bind(at Name) error {
	a, size := sockaddrOf(at)
	return id.do(uapi.CMBind, uapi.CMBindArg{ID: id.number, AddrSize: size, Addr: a})
}

// run dispatches events.
func (c *kernelConnector) run() {
	defer close(c.ended)
	for {
		var ev uapi.CMEventResp
		var err error
		again := c.raw.Read(func(uintptr) bool {
			err = c.call(uapi.CMGetEvent, func(at uint64) any { return uapi.CMGetEventArg{Response: at} }, &ev)
			return err != unix.EAGAIN
		})
		switch {
		case again != nil, errors.Is(err, os.ErrClosed): // by Close, the latter during the call
			return
		case err == unix.EINTR:
			continue
		case err != nil:
			c.failed("wait for events of the kernel's connection manager: %w", err)
			return
		}
		c.dispatch(&ev)
	}
}

// dispatch hands an event to the ID that it is of. An event of a request is its listener's.
func (c *kernelConnector) dispatch(ev *uapi.CMEventResp) {
	c.mu.Lock()
	var handle func(*uapi.CMEventResp)
	if id := c.ids[ev.UID]; id != nil {
		handle = id.handle
	}
	c.mu.Unlock()
	switch {
	case handle == nil: // it was destroyed meanwhile
		if ev.Event == uapi.CMEventConnectRequest {
			c.destroy(ev.ID)
		}
	case ev.Event == uapi.CMEventDeviceRemoval:
		c.failed("device %s is gone", c.dev.Name())
	default:
		handle(ev)
	}
}

// failed tells the watcher, once, that the device has failed. The kernel says so to each ID.
func (c *kernelConnector) failed(format string, args ...any) {
	c.gone.Do(func() { c.watcher.Gone(verbs.Errorf(syscall.ENODEV, format, args...)) })
}

// responses are the places where the kernel puts responses. They are of the heap: memory of a goroutine's stack may move.
var responses = sync.Pool{New: func() any { return new([responseMost]byte) }}

const responseMost = 512

// command hands a command to the kernel, which has answered when the call returns. Tests have another kernel, for the
// connectors that they open.
var command = func(fd int, b []byte) error {
	_, err := unix.Write(fd, b)
	return err
}

// call carries out a command, which arg makes with the address of the response. resp is a pointer to the response, or nil.
func (c *kernelConnector) call(number uint32, arg func(at uint64) any, resp any) error {
	buf := responses.Get().(*[responseMost]byte)
	defer responses.Put(buf)
	size := 0
	if resp != nil {
		size = binary.Size(resp)
		clear(buf[:size]) // what a kernel leaves out, as older ones do, is 0
	}
	body := uapi.Append(nil, arg(uint64(uintptr(unsafe.Pointer(buf)))))
	b := append(uapi.Append(nil, uapi.CMHeader{Cmd: number, In: uint16(len(body)), Out: uint16(size)}), body...)
	var err error
	if c.raw.Control(func(fd uintptr) { err = c.command(int(fd), b) }) != nil {
		return os.ErrClosed
	}
	if err != nil || resp == nil {
		return err
	}
	return uapi.Decode(buf[:size], resp)
}

// create makes an ID.
func (c *kernelConnector) create(ps PortSpace, typ verbs.QPType, handle func(*uapi.CMEventResp)) (*kernelID, error) {
	id := c.name(0, handle)
	if err := id.create(ps, typ); err != nil {
		id.forget()
		return nil, verbs.Errorf(err, "make an ID of the kernel's connection manager: %w", err)
	}
	return id, nil
}

func (id *kernelID) create(ps PortSpace, typ verbs.QPType) error {
	var resp uapi.CMCreateResp
	err := id.c.call(uapi.CMCreateID, func(at uint64) any {
		return uapi.CMCreate{UID: id.name, Response: at, PS: uint16(ps), QPType: uint8(typ)}
	}, &resp)
	id.number = resp.ID
	return err
}

// name makes a name for an ID that has a number, or gets one.
func (c *kernelConnector) name(number uint32, handle func(*uapi.CMEventResp)) *kernelID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names++
	id := &kernelID{c: c, name: c.names, number: number, handle: handle}
	c.ids[id.name] = id
	return id
}

func (id *kernelID) forget() {
	id.c.mu.Lock()
	defer id.c.mu.Unlock()
	delete(id.c.ids, id.name)
}

// destroy ends an ID. The kernel rejects, or disconnects, whatever the ID is. Like the kernel it waits for the commands
// that are under way.
func (id *kernelID) destroy() {
	id.forget()
	id.using.Lock()
	defer id.using.Unlock()
	if !id.dead {
		id.dead = true
		id.c.destroy(id.number)
	}
}

// call carries out a command that names the ID. It fails with ErrState if the ID is destroyed.
func (id *kernelID) call(number uint32, arg func(at uint64) any, resp any) error {
	id.using.RLock()
	defer id.using.RUnlock()
	if id.dead {
		return ErrState
	}
	return id.c.call(number, arg, resp)
}

// do is call for a command without a response.
func (id *kernelID) do(number uint32, arg any) error {
	return id.call(number, func(uint64) any { return arg }, nil)
}

func (c *kernelConnector) destroy(number uint32) {
	var resp uapi.CMDestroyResp
	_ = c.call(uapi.CMDestroyID, func(at uint64) any { return uapi.CMDestroy{Response: at, ID: number} }, &resp)
}

// set sets an option of the level OptionID.
func (id *kernelID) set(option uint32, value []byte) error {
	return id.setAt(uapi.OptionID, option, value)
}

func (id *kernelID) setAt(level, option uint32, value []byte) error {
	buf := responses.Get().(*[responseMost]byte)
	defer responses.Put(buf)
	n := copy(buf[:], value)
	at := uint64(uintptr(unsafe.Pointer(buf)))
	return id.do(uapi.CMSetOption, uapi.CMSetOptionArg{OptVal: at, ID: id.number, Level: level, OptName: option, OptLen: uint32(n)})
}

// addresses asks for the ends of an ID, and for the device that the ID has.
func (id *kernelID) addresses() (local, remote netip.AddrPort, on place, err error) {
	resp, err := id.query()
	if err != nil {
		return local, remote, on, err
	}
	local, err1 := addrOf(resp.SrcAddr[:])
	remote, err2 := addrOf(resp.DstAddr[:])
	return local, remote, placeOf(&resp), errors.Join(err1, err2)
}

func placeOf(r *uapi.CMQueryAddrResp) place {
	return place{verbs.GUID(r.NodeGUID), int(r.PortNum), verbs.PKey(r.PKey)}
}

func (id *kernelID) query() (resp uapi.CMQueryAddrResp, err error) {
	err = id.call(uapi.CMQuery, func(at uint64) any {
		return uapi.CMQueryArg{Response: at, ID: id.number, Option: uapi.CMQueryAddr}
	}, &resp)
	return resp, err
}

// path asks for the path of an ID that has a route.
func (id *kernelID) path() (PathRecord, error) {
	var resp struct {
		uapi.CMQueryPathResp
		Path uapi.PathRecData
	}
	err := id.call(uapi.CMQuery, func(at uint64) any {
		return uapi.CMQueryArg{Response: at, ID: id.number, Option: uapi.CMQueryPath}
	}, &resp)
	switch {
	case err != nil:
		return PathRecord{}, verbs.Errorf(err, "ask the kernel's connection manager for the path: %w", err)
	case resp.NumPaths == 0:
		return PathRecord{}, ErrNoPeer
	}
	p := resp.Path.Path()
	return PathRecord{
		SGID: p.SGID, DGID: p.DGID, SLID: p.SLID, DLID: p.DLID, FlowLabel: p.FlowLabel, HopLimit: p.HopLimit, TrafficClass: p.TrafficClass,
		PKey: verbs.PKey(p.PKey), SL: p.SL, MTU: verbs.MTU(p.MTU), Rate: verbs.Rate(p.Rate), PacketLifetime: p.PacketLifeTime,
	}, nil
}

// setPath gives an ID its path.
func (id *kernelID) setPath(p *PathRecord) error {
	u := uapi.PathRecord{
		SGID: p.SGID, DGID: p.DGID, SLID: p.SLID, DLID: p.DLID, FlowLabel: p.FlowLabel, HopLimit: p.HopLimit, TrafficClass: p.TrafficClass,
		PKey: uint16(p.PKey), SL: p.SL, MTU: uint8(p.MTU), Rate: uint8(p.Rate), PacketLifeTime: p.PacketLifetime,
	}
	return id.setAt(uapi.OptionIB, uapi.OptionIBPath, uapi.Append(nil, u.Data()))
}

// addrOf reads an address of the kernel's. One of AF_IB is the address that its GID stands for.
func addrOf(b []byte) (netip.AddrPort, error) {
	if gid, service, _, _, ok := uapi.ReadSockaddrIB(b); ok {
		return netip.AddrPortFrom(verbs.GID(gid).Addr(), uint16(service)), nil
	}
	a, scope, err := uapi.Sockaddr(b)
	if err == nil && scope != 0 && a.Addr().IsLinkLocalUnicast() {
		zone := strconv.FormatUint(uint64(scope), 10)
		if ifi, err := net.InterfaceByIndex(int(scope)); err == nil {
			zone = ifi.Name
		}
		a = netip.AddrPortFrom(a.Addr().WithZone(zone), a.Port())
	}
	return a, err
}

// sockaddrOf writes the name of a port for the kernel.
func sockaddrOf(n Name) (b uapi.SockaddrStorage, size uint16) {
	if !n.IB {
		return sockaddr(n.At())
	}
	return sockaddrIB(n.Addr, n.Service, 0)
}

// sockaddrIB writes a GID with a service ID for the kernel. Without a port the service ID names the port space alone.
func sockaddrIB(addr netip.Addr, service uint64, pkey verbs.PKey) (b uapi.SockaddrStorage, size uint16) {
	mask := uint64(uapi.ServiceMask)
	if service&uapi.PortMask != 0 {
		mask |= uapi.PortMask
	}
	return b, uint16(uapi.PutSockaddrIB(b[:], verbs.GIDFromAddr(addr), service, mask, uint16(cmp.Or(pkey, wire.DefaultPKey))))
}

// sockaddr writes an address for the kernel.
func sockaddr(a netip.AddrPort) (b uapi.SockaddrStorage, size uint16) {
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	scope := uint32(0)
	if zone := a.Addr().Zone(); zone != "" {
		if ifi, err := net.InterfaceByName(zone); err == nil {
			scope = uint32(ifi.Index)
		} else if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			scope = uint32(n)
		}
	}
	return b, uint16(uapi.PutSockaddr(b[:], a, scope))
}

// Serve implements Connector. The kernel serves all addresses.
func (c *kernelConnector) Serve(addr netip.Addr) error { return CheckAddr(c.dev, addr) }

// Limits implements Connector. They are those of the InfiniBand connection manager, which the kernel has too.
func (c *kernelConnector) Limits() Limits {
	return Limits{Connect: MaxConnectData, Accept: MaxAcceptData, Reject: MaxRejectData, LookUp: MaxLookUpData, Answer: MaxAnswerData}
}

// Random32 implements Connector.
func (c *kernelConnector) Random32() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}

// Close implements Connector.
func (c *kernelConnector) Close() {
	c.dev.Report(nil)
	knownSpots.close(c.dev)
	c.file.Close()
	<-c.ended
}

// kernelPort is a port that an ID of the kernel's is bound to.
type kernelPort struct {
	id        *kernelID
	name      Name
	onRequest func(*Request) func(Event)
	listens   bool
	taken     bool // by a connection from the port, which the ID is then; guarded by c.mu
}

// typeOf is the type of QPs in a port space.
func typeOf(ps PortSpace) verbs.QPType {
	if ps == portSpaceUDP || ps == wire.PortSpaceIPoIB {
		return verbs.QPTypeUD
	}
	return verbs.QPTypeRC
}

// anyType has a listener of PortSpaceIB take requests of RC and of UC QPs.
const anyType verbs.QPType = 0

// claims is the type of the port's ID.
func (p *kernelPort) claims() verbs.QPType {
	if p.name.PS == wire.PortSpaceIB {
		return anyType
	}
	return typeOf(p.name.PS)
}

// Claim implements Connector.
func (c *kernelConnector) Claim(name Name, shared bool) (Port, error) {
	if name.IB && c.iwarp {
		return nil, errNoGIDs
	}
	p := &kernelPort{name: name}
	id, err := c.create(name.PS, p.claims(), p.requested)
	if err != nil {
		return nil, err
	}
	p.id = id
	if shared {
		err = id.set(uapi.OptionIDReuseAddr, binary.NativeEndian.AppendUint32(nil, 1))
	}
	if err == nil {
		err = id.bind(name)
	}
	if err != nil {
		id.destroy()
		kind := err
		if err == unix.EADDRINUSE {
			kind = verbs.ErrBusy // by which those who want any port look for another
		}
		return nil, verbs.Errorf(kind, "bind port %v in the kernel's connection manager: %w", name.At(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports[name] = append(c.ports[name], p)
	return p, nil
}

// Own implements Port. The kernel looks at that when the port listens.
func (p *kernelPort) Own() error { return nil }

// Listen implements Port.
func (p *kernelPort) Listen(backlog int, onRequest func(*Request) func(Event)) error {
	p.onRequest = onRequest
	if err := p.id.do(uapi.CMListen, uapi.CMListenArg{ID: p.id.number, Backlog: uint32(max(0, backlog))}); err != nil {
		return verbs.Errorf(err, "listen at port %v in the kernel's connection manager: %w", p.name.At(), err)
	}
	p.id.c.mu.Lock()
	defer p.id.c.mu.Unlock()
	p.listens = true
	return nil
}

// Release implements Port.
func (p *kernelPort) Release() {
	if !p.id.c.drop(p) {
		p.id.destroy()
	}
}

// drop forgets a port. It reports whether a connection has taken the port's ID.
func (c *kernelConnector) drop(p *kernelPort) (taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := slices.DeleteFunc(c.ports[p.name], func(q *kernelPort) bool { return q == p }); len(left) > 0 {
		c.ports[p.name] = left
	} else {
		delete(c.ports, p.name)
	}
	return p.taken
}

// requested hands out a peer's request.
func (p *kernelPort) requested(ev *uapi.CMEventResp) {
	if ev.Event != uapi.CMEventConnectRequest || p.onRequest == nil {
		return
	}
	c := p.id.c
	conn := &kernelConn{c: c, name: p.name, typ: typeOf(p.name.PS), asked: true, state: "CONNECT"}
	if err := conn.come(ev.ID); err != nil {
		conn.Close() // which says no
		return
	}
	if p.claims() == anyType {
		conn.findType()
	}
	r := &Request{Conn: conn, Type: conn.typ, Local: conn.local, Remote: conn.remote, Params: connParams(ev, conn.typ)}
	handle := p.onRequest(r)
	if handle == nil {
		conn.Close()
		return
	}
	conn.hear(handle)
}

// connParams reads the peer's parameters, which the kernel has turned into those for this end.
func connParams(ev *uapi.CMEventResp, typ verbs.QPType) Params {
	if typ == verbs.QPTypeUD {
		var p uapi.CMUDParam
		_ = uapi.Decode(ev.Param[:], &p) // of the right size
		return Params{PrivateData: slices.Clone(p.PrivateData[:p.PrivateDataLen])}
	}
	var p uapi.CMConnParam
	_ = uapi.Decode(ev.Param[:], &p)
	return Params{PrivateData: slices.Clone(p.PrivateData[:p.PrivateDataLen]), ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl != 0, RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, QPN: verbs.QPN(p.QPNum), SRQ: p.SRQ != 0}
}

// userParams writes this end's parameters.
func userParams(p *Params) uapi.CMConnParam {
	bit := func(b bool) uint8 {
		if b {
			return 1
		}
		return 0
	}
	u := uapi.CMConnParam{QPNum: uint32(p.QPN), SRQ: bit(p.SRQ), ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: bit(p.FlowControl), RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount, Valid: 1}
	u.PrivateDataLen = uint8(copy(u.PrivateData[:], p.PrivateData))
	return u
}
