package ucma

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestHeaders: what is no command is refused before anything else.
func TestHeaders(t *testing.T) {
	a, _ := two(t)
	head := func(cmd uint32, in uint16, rest int) []byte {
		return append(uapi.Append(nil, uapi.CMHeader{Cmd: cmd, In: in, Out: 400}), make([]byte, rest)...)
	}
	for what, c := range map[string]struct {
		b    []byte
		want syscall.Errno
	}{
		"nothing":                         {nil, syscall.EINVAL},
		"7 bytes":                         {head(0, 0, 0)[:7], syscall.EINVAL},
		"a number that is none":           {head(23, 0, 0), syscall.EINVAL},
		"a large number that is none":     {head(1<<31, 0, 0), syscall.EINVAL},
		"a command longer than the write": {head(uapi.CMGetEvent, 8, 7), syscall.EINVAL},
		"a command that Linux lacks":      {head(uapi.CMGetOption, 0, 0), syscall.ENOSYS},
		"a command that ends early":       {head(uapi.CMCreateID, 23, 24), syscall.EINVAL},
		"CONNECT without its end":         {head(uapi.CMConnect, uapi.CMConnectLeast-1, 400), syscall.EINVAL},
		"ACCEPT without its end":          {head(uapi.CMAccept, uapi.CMAcceptLeast-1, 400), syscall.EINVAL},
		"CONNECT without parameters":      {head(uapi.CMConnect, uapi.CMConnectLeast, 400), syscall.EINVAL},
	} {
		if err := a.f.Do(a, c.b); err == nil || Errno(err) != c.want {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	if err := a.f.Do(a, append(head(uapi.CMGetEvent, 8, 8), 1, 2, 3)); Errno(err) != syscall.EAGAIN {
		t.Errorf("more than the command: got %v, want that there is no event", err)
	}
}

// TestRoom: each command with a response fails with ENOSPC where the program has too little room, and does nothing.
func TestRoom(t *testing.T) {
	a, b := two(t)
	id, _ := a.create(uapi.PSUDP)
	a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(a.addr(false, 0))}, nil)
	_, at := b.listener(uapi.PSTCP, 0)
	for what, c := range map[string]struct {
		n    uint32
		in   any
		room int
	}{
		"CREATE_ID":     {uapi.CMCreateID, uapi.CMCreate{UID: 1, Response: respAt, PS: uapi.PSTCP}, 4},
		"DESTROY_ID":    {uapi.CMDestroyID, uapi.CMDestroy{Response: respAt, ID: id}, 4},
		"QUERY_ROUTE":   {uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: id}, uapi.CMQueryRouteLeast},
		"QUERY of ADDR": {uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryAddr}, uapi.CMQueryAddrLeast},
		"QUERY of GID":  {uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryGID}, uapi.CMQueryAddrLeast},
		"QUERY of PATH": {uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryPath}, 8},
		"INIT_QP_ATTR":  {uapi.CMInitQPAttr, uapi.CMInitQPAttrArg{Response: respAt, ID: id, QPState: 1}, 144},
		"GET_EVENT":     {uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, uapi.CMEventRespLeast},
		"JOIN_IP_MCAST": {uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, ID: id, Addr: in6(netip.MustParseAddrPort("239.0.0.1:0"))}, 4},
		"JOIN_MCAST":    {uapi.CMJoinMcast, uapi.CMJoinMcastArg{Response: respAt, ID: id, AddrSize: 16, Addr: storage(netip.MustParseAddrPort("239.0.0.1:0"))}, 4},
		"LEAVE_MCAST":   {uapi.CMLeaveMcast, uapi.CMDestroy{Response: respAt}, 4},
	} {
		if err := a.write(c.n, c.in, c.room-1); Errno(err) != syscall.ENOSPC {
			t.Errorf("%s with room for %d bytes: got %v, want ENOSPC", what, c.room-1, err)
		}
	}
	a.quiet()

	// An event of before ECE.
	x, _ := a.create(uapi.PSTCP)
	a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: x, DstAddr: in6(at)}, nil)
	<-a.f.Readable()
	a.arena[uapi.CMEventRespLeast] = 77
	if err := a.write(uapi.CMGetEvent, uapi.CMGetEventArg{Response: respAt}, uapi.CMEventRespLeast); err != nil || a.arena[uapi.CMEventRespLeast] != 77 {
		t.Errorf("an event without ECE: got error %v and %d behind it, want none and 77", err, a.arena[uapi.CMEventRespLeast])
	}
}

// TestBadMemory: a response that cannot be written says EFAULT. An event is not lost then.
func TestBadMemory(t *testing.T) {
	a, b := two(t)
	lid, at := b.listener(uapi.PSTCP, 0)
	x := a.routed(uapi.PSTCP, at)
	a.connect(x, a.qp(verbs.QPTypeRC), "")
	<-b.f.Readable()
	for range 2 {
		b.refused("GET_EVENT", syscall.EFAULT, uapi.CMGetEvent, uapi.CMGetEventArg{Response: 1}, &uapi.CMEventResp{})
	}
	y := b.next(rdmacm.EventConnectRequest).ID
	if n := b.destroy(lid); n != 1 {
		t.Errorf("the listener: got %d events read, want 1", n)
	}
	b.do(uapi.CMReject, uapi.CMRejectArg{ID: y}, nil)
	a.next(rdmacm.EventRejected)

	a.refused("CREATE_ID", syscall.EFAULT, uapi.CMCreateID, uapi.CMCreate{UID: 1, Response: 1, PS: uapi.PSTCP}, &uapi.CMCreateResp{})
	a.refused("DESTROY_ID", syscall.EFAULT, uapi.CMDestroyID, uapi.CMDestroy{Response: 1, ID: x}, &uapi.CMDestroyResp{})
	a.refused("DESTROY_ID again", syscall.ENOENT, uapi.CMDestroyID, uapi.CMDestroy{Response: respAt, ID: x}, &uapi.CMDestroyResp{})
	u, _ := a.create(uapi.PSUDP)
	if u != x {
		t.Errorf("got ID %d, want the least that is free, %d", u, x)
	}
	a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: u, Addr: in6(a.addr(false, 0))}, nil)
	group := in6(netip.MustParseAddrPort("239.0.0.1:0"))
	a.refused("JOIN_IP_MCAST", syscall.EFAULT, uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: 1, UID: 5, ID: u, Addr: group}, &uapi.CMCreateResp{})
	a.do(uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, UID: 6, ID: u, Addr: group}, &uapi.CMCreateResp{})
	if ev := a.next(rdmacm.EventMulticastJoin); ev.UID != 6 {
		t.Errorf("got the event of join %d, want of 6", ev.UID)
	}
}

// TestStates gives each command to an ID in each state. The answers are Linux's.
func TestStates(t *testing.T) {
	const ok = syscall.Errno(0)
	// states make an ID at a, or accept a request at b: the script says at which.
	states := []string{"idle", "any", "bound", "resolved", "routed", "connecting", "requested", "responded", "accepted", "connected", "listening", "disconnected"}
	commands := []struct {
		name string
		// want has an errno for each state, in their order.
		want []syscall.Errno
		do   func(p *program, id uint32) error
	}{
		{"BIND_IP", []syscall.Errno{ok, inval, inval, inval, inval, inval, inval, inval, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(p.addr(false, 0))}, nil)
		}},
		{"RESOLVE_IP", []syscall.Errno{ok, ok, ok, inval, inval, inval, inval, inval, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, SrcAddr: in6(p.addr(false, 0)), DstAddr: in6(p.addr(false, 9))}, nil)
		}},
		{"RESOLVE_ROUTE", []syscall.Errno{inval, inval, inval, ok, inval, inval, inval, inval, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMResolveRoute, uapi.CMResolveRouteArg{ID: id}, nil)
		}},
		{"CONNECT", []syscall.Errno{inval, inval, inval, inval, ok, inval, inval, inval, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMConnect, uapi.CMConnectArg{ID: id, ConnParam: param(p.qp(verbs.QPTypeRC), "")}, nil)
		}},
		{"LISTEN", []syscall.Errno{ok, ok, ok, inval, inval, inval, inval, inval, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMListen, uapi.CMListenArg{ID: id}, nil)
		}},
		{"ACCEPT", []syscall.Errno{inval, inval, inval, inval, inval, inval, ok, inval, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMAccept, uapi.CMAcceptArg{UID: 9, ID: id, ConnParam: param(p.qp(verbs.QPTypeRC), "")}, nil)
		}},
		{"ACCEPT without parameters", []syscall.Errno{inval, inval, inval, inval, inval, inval, inval, ok, inval, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMAccept, uapi.CMAcceptArg{ID: id}, nil)
		}},
		{"REJECT", []syscall.Errno{inval, inval, inval, inval, inval, inval, ok, ok, ok, inval, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMReject, uapi.CMRejectArg{ID: id}, nil)
		}},
		{"DISCONNECT", []syscall.Errno{inval, inval, inval, inval, inval, ok, ok, ok, ok, ok, ok, ok}, func(p *program, id uint32) error {
			return p.try(uapi.CMDisconnect, uapi.CMDisconnectArg{ID: id}, nil)
		}},
		{"INIT_QP_ATTR of INIT", []syscall.Errno{inval, inval, ok, ok, ok, ok, ok, ok, ok, ok, inval, inval}, initQPAttr(verbs.QPStateInit)},
		{"INIT_QP_ATTR of RTR", []syscall.Errno{inval, inval, ok, ok, ok, inval, ok, ok, ok, ok, inval, inval}, initQPAttr(verbs.QPStateRTR)},
		{"INIT_QP_ATTR of RTS", []syscall.Errno{inval, inval, ok, ok, ok, inval, ok, ok, ok, ok, inval, inval}, initQPAttr(verbs.QPStateRTS)},
		{"INIT_QP_ATTR of 7", slices.Repeat([]syscall.Errno{inval}, len(states)), initQPAttr(7)},
		{"NOTIFY", []syscall.Errno{inval, inval, inval, inval, inval, inval, inval, inval, ok, syscall.EISCONN, inval, inval}, func(p *program, id uint32) error {
			return p.try(uapi.CMNotify, uapi.CMNotifyArg{ID: id, Event: uint32(verbs.EventCommEst)}, nil)
		}},
		{"QUERY", slices.Repeat([]syscall.Errno{ok}, len(states)), func(p *program, id uint32) error {
			return p.try(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: uapi.CMQueryAddr}, &uapi.CMQueryAddrResp{})
		}},
		{"QUERY of what is unknown", slices.Repeat([]syscall.Errno{syscall.ENOSYS}, len(states)), func(p *program, id uint32) error {
			return p.try(uapi.CMQuery, uapi.CMQueryArg{Response: respAt, ID: id, Option: 9}, &uapi.CMQueryAddrResp{})
		}},
		{"QUERY_ROUTE", slices.Repeat([]syscall.Errno{ok}, len(states)), func(p *program, id uint32) error {
			return p.try(uapi.CMQueryRoute, uapi.CMQueryArg{Response: respAt, ID: id}, &uapi.CMQueryRouteResp{})
		}},
	}
	n := rdmatest.New(t)
	x, y := n.Device(), n.Device()
	for i, state := range states {
		for _, c := range commands {
			t.Run(fmt.Sprintf("%s/%s", state, c.name), func(t *testing.T) {
				p, id := inState(t, x, y, state)
				err := c.do(p, id)
				if got := Errno(err); err == nil && c.want[i] != ok || err != nil && got != c.want[i] {
					t.Errorf("got %v (%v), want %v", err, got, c.want[i])
				}
			})
		}
	}
}

const inval = syscall.EINVAL

func initQPAttr(to verbs.QPState) func(p *program, id uint32) error {
	return func(p *program, id uint32) error {
		return p.try(uapi.CMInitQPAttr, uapi.CMInitQPAttrArg{Response: respAt, ID: id, QPState: uint32(to)}, &uapi.QPAttr{})
	}
}

// inState returns an ID in a state, and its program.
func inState(t *testing.T, x, y *verbs.Device, state string) (*program, uint32) {
	t.Helper()
	a, b := newProgram(t, newManager(t, x)), newProgram(t, newManager(t, y))
	create := func() uint32 { id, _ := a.create(uapi.PSTCP); return id }
	bind := func(at netip.AddrPort) uint32 {
		id := create()
		a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(at)}, nil)
		return id
	}
	_, at := b.listener(uapi.PSTCP, 0)
	request := func() (x, y uint32) {
		x = a.routed(uapi.PSTCP, at)
		a.connect(x, a.qp(verbs.QPTypeRC), "")
		return x, b.next(rdmacm.EventConnectRequest).ID
	}
	switch state {
	case "idle":
		return a, create()
	case "any":
		return a, bind(netip.MustParseAddrPort("0.0.0.0:0"))
	case "bound":
		return a, bind(a.addr(false, 0))
	case "resolved":
		return a, a.resolved(uapi.PSTCP, at)
	case "routed":
		return a, a.routed(uapi.PSTCP, at)
	case "connecting":
		x, _ := request()
		return a, x
	case "requested":
		_, y := request()
		return b, y
	case "responded":
		x, y := request()
		b.accept(y, b.qp(verbs.QPTypeRC), "")
		a.next(rdmacm.EventConnectResponse)
		return a, x
	case "accepted":
		_, y := request()
		b.accept(y, b.qp(verbs.QPTypeRC), "")
		return b, y
	case "connected":
		return b, connected(a, b, at).y
	case "listening":
		id, _ := a.listener(uapi.PSTCP, 0)
		return a, id
	case "disconnected":
		l := connected(a, b, at)
		b.do(uapi.CMDisconnect, uapi.CMDisconnectArg{ID: l.y}, nil)
		b.next(rdmacm.EventDisconnected)
		return b, l.y
	}
	t.Fatalf("no state %q", state)
	return nil, 0
}

// TestAddresses gives addresses of any form.
func TestAddresses(t *testing.T) {
	a, b := two(t)
	family := func(s uapi.SockaddrIn6, f uint16) uapi.SockaddrIn6 {
		binary.NativeEndian.PutUint16(s[:], f)
		return s
	}
	v4, v6 := in6(a.addr(false, 0)), in6(a.addr(true, 0))
	id, _ := a.create(uapi.PSTCP)
	for what, addr := range map[string]uapi.SockaddrIn6{"no family": {}, "a family that is none": family(v4, 1), "AF_IB, which does not fit": family(v4, uapi.AFIB)} {
		a.refused("BIND_IP: "+what, inval, uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: addr}, nil)
		if what != "no family" {
			a.refused("RESOLVE_IP from "+what, inval, uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, SrcAddr: addr, DstAddr: v4}, nil)
		}
		a.refused("RESOLVE_IP to "+what, inval, uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, DstAddr: addr}, nil)
		a.refused("JOIN_IP_MCAST: "+what, inval, uapi.CMJoinIPMcast, uapi.CMJoinIPMcastArg{Response: respAt, ID: id, Addr: addr}, &uapi.CMCreateResp{})
	}
	ib := uapi.CMBindArg{ID: id, AddrSize: uapi.SockaddrIBSize}
	uapi.PutSockaddrIB(ib.Addr[:], [16]byte{}, rdmacm.PortSpaceUDP.Service(7), uapi.ServiceMask, 0)
	a.refused("AF_IB: a service of another port space", syscall.EPROTONOSUPPORT, uapi.CMBind, ib, nil)
	toIB := uapi.CMResolveAddrArg{ID: id, DstSize: uapi.SockaddrIBSize}
	toIB.DstAddr = ib.Addr
	a.refused("AF_IB: a peer's service of another port space", syscall.EPROTONOSUPPORT, uapi.CMResolveAddr, toIB, nil)
	uapi.PutSockaddrIB(toIB.DstAddr[:], [16]byte{15: 1}, rdmacm.PortSpaceTCP.Service(7), uapi.ServiceMask, 0)
	toIB.SrcAddr, toIB.SrcSize = storage(a.addr(false, 0)), uapi.SockaddrInSize
	a.refused("AF_IB from an address of IP", inval, uapi.CMResolveAddr, toIB, nil)
	bind := uapi.CMBindArg{ID: id, AddrSize: uapi.SockaddrInSize, Addr: storage(a.addr(false, 0))}
	for what, c := range map[string]uapi.CMBindArg{"no size": {ID: id, Addr: bind.Addr}, "a wrong size": {ID: id, AddrSize: uapi.SockaddrIn6Size, Addr: bind.Addr}, "something reserved": {ID: id, AddrSize: uapi.SockaddrInSize, Reserved: 1, Addr: bind.Addr}} {
		a.refused("BIND: "+what, inval, uapi.CMBind, c, nil)
	}
	for what, c := range map[string]uapi.CMResolveAddrArg{
		"no size":            {DstAddr: bind.Addr},
		"a wrong size":       {DstSize: uapi.SockaddrIn6Size, DstAddr: bind.Addr},
		"a wrong source":     {DstSize: uapi.SockaddrInSize, DstAddr: bind.Addr, SrcSize: uapi.SockaddrIn6Size, SrcAddr: bind.Addr},
		"something reserved": {DstSize: uapi.SockaddrInSize, DstAddr: bind.Addr, Reserved: 1},
		"two versions of IP": {DstSize: uapi.SockaddrInSize, DstAddr: bind.Addr, SrcSize: uapi.SockaddrIn6Size, SrcAddr: storage(a.addr(true, 0))},
		"an address of AF_INET that is a broadcast": {DstSize: uapi.SockaddrInSize, DstAddr: storage(netip.MustParseAddrPort("255.255.255.255:1"))},
	} {
		c.ID = id
		a.refused("RESOLVE_ADDR: "+what, inval, uapi.CMResolveAddr, c, nil)
	}
	a.refused("an address of no device", syscall.ENODEV, uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: in6(b.addr(false, 0))}, nil)
	a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, SrcAddr: in6(b.addr(false, 7)), DstAddr: in6(b.addr(false, 8))}, nil)
	if ev := a.next(rdmacm.EventAddrError); int32(ev.Status) != -int32(syscall.ENODEV) {
		t.Errorf("from an address of no device: got status %d, want -19", int32(ev.Status))
	}
	a.do(uapi.CMBindIP, uapi.CMBindIPArg{ID: id, Addr: v4}, nil)
	a.refused("an IPv6 peer for an IPv4 address", inval, uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, DstAddr: v6}, nil)
	a.do(uapi.CMResolveIP, uapi.CMResolveIPArg{ID: id, SrcAddr: v6, DstAddr: in6(b.addr(false, 8))}, nil) // the source comes too late to count
	a.next(rdmacm.EventAddrResolved)

	for _, ps := range []struct {
		ps   uint16
		typ  verbs.QPType
		want syscall.Errno
	}{{7, 0, inval}, {uapi.PSIPoIB, 0, syscall.EPROTONOSUPPORT}, {uapi.PSIB, verbs.QPTypeUD, syscall.EOPNOTSUPP}} {
		a.refused(fmt.Sprintf("port space %#x, QP type %v", ps.ps, ps.typ), ps.want, uapi.CMCreateID, uapi.CMCreate{Response: respAt, PS: ps.ps, QPType: uint8(ps.typ)}, &uapi.CMCreateResp{})
	}
}

// TestSockaddr brings addresses to the form of C and back.
func TestSockaddr(t *testing.T) {
	for _, s := range []string{"10.1.2.3:80", "[2001:db8::1]:65535", "[fe80::1%7]:1", "0.0.0.0:0", "[::]:0"} {
		want := netip.MustParseAddrPort(s)
		got, err := address(sockaddr(want))
		if err != nil || got != want {
			t.Errorf("%v: got %v and error %v", want, got, err)
		}
	}
	if b := sockaddr(netip.AddrPort{}); len(b) != 0 {
		t.Errorf("no address: got %x", b)
	}
}

// TestSysfs is what librdmacm reads.
func TestSysfs(t *testing.T) {
	got := Sysfs(10, 125)
	if got["/sys/class/misc/rdma_cm/abi_version"] != "4\n" || got["/sys/class/misc/rdma_cm/dev"] != "10:125\n" {
		t.Errorf("got %q", got)
	}
}
