package connector

import (
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
	file    *os.File
	raw     syscall.RawConn
	ended   chan struct{}

	mu    sync.Mutex
	names uint64
	ids   map[uint64]*kernelID // by name
	ports map[netip.AddrPort]*kernelPort
	conns map[*kernelConn]bool // with an ID
}

// kernelID is an ID of the kernel's.
type kernelID struct {
	c      *kernelConnector
	name   uint64
	number uint32
	handle func(*uapi.CMEventResp) // called by the connector's goroutine; guarded by c.mu
}

// openKernel brings a connector for a device of the kernel's into service.
func openKernel(dev *verbs.Device, k KernelManaged, w Watcher) (Connector, error) {
	c, err := newKernel(dev, k)
	if err != nil {
		return nil, err
	}
	c.watcher = w
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
	return &kernelConnector{dev: dev, kernel: k, guid: attr.NodeGUID, iwarp: dev.Info().Transport == verbs.TransportIWARP, file: f, raw: raw, ended: make(chan struct{}), ids: map[uint64]*kernelID{}, ports: map[netip.AddrPort]*kernelPort{}, conns: map[*kernelConn]bool{}}, nil
}

// askKernel returns the port of a device from which the kernel would connect, if the device has the address. The kernel
// knows the interfaces of iWARP and InfiniBand devices, whose GIDs have no IP addresses.
func askKernel(dev *verbs.Device, k KernelManaged, addr netip.Addr) (int, error) {
	c, err := newKernel(dev, k)
	if err != nil {
		return 0, err
	}
	defer c.file.Close()
	id, err := c.create(wire.PortSpaceTCP, verbs.QPTypeRC, nil)
	if err != nil {
		return 0, err
	}
	if err := id.bind(netip.AddrPortFrom(addr, 0)); err != nil {
		return 0, err
	}
	resp, err := id.query()
	if err == nil && verbs.GUID(resp.NodeGUID) != c.guid {
		err = verbs.Errorf(syscall.ENODEV, "the kernel has it for another device")
	}
	return int(resp.PortNum), err
}

func (id *kernelID) bind(at netip.AddrPort) error {
	a, size := sockaddr(at)
	return id.c.do(uapi.CMBind, uapi.CMBindArg{ID: id.number, AddrSize: size, Addr: a})
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
		case again != nil: // closed
			return
		case err == unix.EINTR:
			continue
		case err != nil:
			c.watcher.Gone(verbs.Errorf(syscall.ENODEV, "wait for events of the kernel's connection manager: %w", err))
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
		c.watcher.Gone(verbs.Errorf(syscall.ENODEV, "device %s is gone", c.dev.Name()))
	default:
		handle(ev)
	}
}

// responses are the places where the kernel puts responses. They are of the heap: memory of a goroutine's stack may move.
var responses = sync.Pool{New: func() any { return new([responseMost]byte) }}

const responseMost = 512

// call carries out a command, which command makes with the address of the response. resp is a pointer to the response, or nil.
func (c *kernelConnector) call(number uint32, command func(at uint64) any, resp any) error {
	buf := responses.Get().(*[responseMost]byte)
	defer responses.Put(buf)
	size := 0
	if resp != nil {
		size = binary.Size(resp)
	}
	body := uapi.Append(nil, command(uint64(uintptr(unsafe.Pointer(buf)))))
	b := append(uapi.Append(nil, uapi.CMHeader{Cmd: number, In: uint16(len(body)), Out: uint16(size)}), body...)
	var err error
	if closed := c.raw.Control(func(fd uintptr) { _, err = unix.Write(int(fd), b) }); closed != nil {
		return closed
	}
	if err != nil || resp == nil {
		return err
	}
	return uapi.Decode(buf[:size], resp)
}

// do is call for a command without a response.
func (c *kernelConnector) do(number uint32, command any) error {
	return c.call(number, func(uint64) any { return command }, nil)
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

// destroy ends an ID. The kernel rejects, or disconnects, whatever the ID is.
func (id *kernelID) destroy() {
	id.forget()
	id.c.destroy(id.number)
}

func (c *kernelConnector) destroy(number uint32) {
	var resp uapi.CMDestroyResp
	_ = c.call(uapi.CMDestroyID, func(at uint64) any { return uapi.CMDestroy{Response: at, ID: number} }, &resp)
}

// set sets an option of the level OptionID.
func (id *kernelID) set(option uint32, value []byte) error {
	buf := responses.Get().(*[responseMost]byte)
	defer responses.Put(buf)
	n := copy(buf[:], value)
	at := uint64(uintptr(unsafe.Pointer(buf)))
	return id.c.do(uapi.CMSetOption, uapi.CMSetOptionArg{OptVal: at, ID: id.number, Level: uapi.OptionID, OptName: option, OptLen: uint32(n)})
}

// addresses asks for the ends of an ID, and for the device that the ID has.
func (id *kernelID) addresses() (local, remote netip.AddrPort, on place, err error) {
	resp, err := id.query()
	if err != nil {
		return local, remote, on, err
	}
	local, err1 := addrOf(resp.SrcAddr[:])
	remote, err2 := addrOf(resp.DstAddr[:])
	return local, remote, place{verbs.GUID(resp.NodeGUID), int(resp.PortNum)}, errors.Join(err1, err2)
}

// place is a device's port.
type place struct {
	guid verbs.GUID
	port int
}

func (id *kernelID) query() (resp uapi.CMQueryAddrResp, err error) {
	err = id.c.call(uapi.CMQuery, func(at uint64) any {
		return uapi.CMQueryArg{Response: at, ID: id.number, Option: uapi.CMQueryAddr}
	}, &resp)
	return resp, err
}

// addrOf reads an address of the kernel's.
func addrOf(b []byte) (netip.AddrPort, error) {
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
	c.file.Close()
	<-c.ended
}

// kernelPort is a port that an ID of the kernel's is bound to.
type kernelPort struct {
	id        *kernelID
	ps        PortSpace
	at        netip.AddrPort
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

// Claim implements Connector.
func (c *kernelConnector) Claim(ps PortSpace, addr netip.Addr, port uint16, shared bool) (Port, error) {
	p := &kernelPort{ps: ps, at: netip.AddrPortFrom(addr, port)}
	id, err := c.create(ps, typeOf(ps), p.requested)
	if err != nil {
		return nil, err
	}
	p.id = id
	if shared {
		err = id.set(uapi.OptionIDReuseAddr, binary.NativeEndian.AppendUint32(nil, 1))
	}
	if err == nil {
		err = id.bind(p.at)
	}
	if err != nil {
		id.destroy()
		return nil, verbs.Errorf(err, "bind port %v in the kernel's connection manager: %w", p.at, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ports[p.at] = p
	return p, nil
}

// Own implements Port. The kernel looks at that when the port listens.
func (p *kernelPort) Own() error { return nil }

// Listen implements Port.
func (p *kernelPort) Listen(backlog int, onRequest func(*Request) func(Event)) error {
	p.onRequest = onRequest
	if err := p.id.c.do(uapi.CMListen, uapi.CMListenArg{ID: p.id.number, Backlog: uint32(max(0, backlog))}); err != nil {
		return verbs.Errorf(err, "listen at port %v in the kernel's connection manager: %w", p.at, err)
	}
	p.id.c.mu.Lock()
	defer p.id.c.mu.Unlock()
	p.listens = true
	return nil
}

// Release implements Port.
func (p *kernelPort) Release() {
	c := p.id.c
	c.mu.Lock()
	if c.ports[p.at] == p {
		delete(c.ports, p.at)
	}
	taken := p.taken
	c.mu.Unlock()
	if !taken {
		p.id.destroy()
	}
}

// requested hands out a peer's request.
func (p *kernelPort) requested(ev *uapi.CMEventResp) {
	if ev.Event != uapi.CMEventConnectRequest || p.onRequest == nil {
		return
	}
	c := p.id.c
	conn := &kernelConn{c: c, ps: p.ps, typ: typeOf(p.ps), asked: true, state: "CONNECT"}
	if err := conn.come(ev.ID); err != nil {
		conn.Close() // which says no
		return
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
