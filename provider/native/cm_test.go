//go:build linux && (amd64 || arm64)

package native

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/internal/connector"
	"github.com/adverb-rdma/adverb/internal/ibv"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestManagerRun runs TestManagerInside under "adverb run", which plays the kernel's connection manager.
func TestManagerRun(t *testing.T) {
	adverb := tool(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), adverb, "run", self, "-test.run", "^TestManagerInside$", "-test.v", "-test.timeout", "2m")
	cmd.Env = append(os.Environ(), envInside+"=rxe_lo")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// home is the address of rxe_lo.
var home = netip.MustParseAddr("127.0.0.1")

// managed opens the device, and skips the test in a process that has none.
func managed(t *testing.T) *verbs.Device {
	t.Helper()
	name := os.Getenv(envInside)
	if name == "" {
		t.Skip("this is for the process that TestManagerRun starts")
	}
	return opened(t, name)
}

func opened(t *testing.T, name string) *verbs.Device {
	t.Helper()
	p, err := newProvider(ibv.Library, classDir).Open(name)
	if err != nil {
		t.Fatal(err)
	}
	d := verbs.NewDevice(p)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	return d
}

// TestManagerInside is for devices of the kernel, whose connections the kernel makes.
func TestManagerInside(t *testing.T) {
	t.Run("packages", packages)
	t.Run("options", options)
	t.Run("groups", groups)
	t.Run("refused", refused)
	t.Run("without IP GIDs", withoutGIDs)
}

// options are those that the kernel has.
func options(t *testing.T) {
	a, b := managed(t), managed(t)
	l := newEnd(t, a, rdmacm.PortSpaceTCP)
	l.bind(0)
	l.must(l.id.Listen(1))
	c := newEnd(t, b, rdmacm.PortSpaceTCP)
	c.must(c.id.SetTOS(0x20))
	c.must(c.id.SetACKTimeout(17))
	c.must(c.id.SetReuseAddr(true))
	c.bind(0)
	port := c.id.LocalAddr().Port()
	other := newEnd(t, b, rdmacm.PortSpaceTCP)
	other.must(other.id.SetReuseAddr(true))
	other.bind(port)
	c.resolve(l.id.LocalAddr())
	c.must(c.id.CreateQP(nil, small))
	c.must(c.id.Connect(nil))
	req := l.next(rdmacm.EventConnectRequest)
	defer req.ID.Close()
	if req.ID.RemoteAddr().Port() != port {
		t.Errorf("the request comes from %v, want port %d, which was bound", req.ID.RemoteAddr(), port)
	}
	l.must(req.ID.CreateQP(nil, small))
	l.must(req.ID.Accept(nil))
	c.next(rdmacm.EventEstablished)
	attr, _, err := c.id.QP().Query()
	if err != nil || attr.AH.TrafficClass != 0x20 || attr.Timeout != 17 || attr.Port != 1 || c.id.Port() != 1 {
		t.Errorf("traffic class %#x, timeout %d, port %d, %v: want 0x20, 17 and 1", attr.AH.TrafficClass, attr.Timeout, attr.Port, err)
	}
	l.next(rdmacm.EventEstablished)
	if attr, _, err := req.ID.QP().Query(); err != nil || attr.AH.TrafficClass != 0x20 || attr.Timeout != 17 {
		t.Errorf("at the accepting end: traffic class %#x, timeout %d, %v: want 0x20 and 17", attr.AH.TrafficClass, attr.Timeout, err)
	}
	c.must(c.id.Disconnect())
	c.next(rdmacm.EventDisconnected)
	l.next(rdmacm.EventDisconnected)
}

// groups joins a group, gets a datagram of the group, and leaves it.
func groups(t *testing.T) {
	d := managed(t)
	group := netip.MustParseAddr("239.7.7.7")
	e := newEnd(t, d, rdmacm.PortSpaceUDP)
	e.bind(0)
	e.must(e.id.CreateQP(nil, small))
	mr, err := e.id.PD().AllocMR(256, verbs.AccessLocalWrite)
	e.must(err)
	defer mr.Close()
	if _, err := e.id.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{mr.SGE(128, 128)}}}); err != nil {
		t.Fatal(err)
	}
	e.must(e.id.JoinMulticast(group))
	if err := e.id.JoinMulticast(group); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("join twice: got %v, want ErrBusy", err)
	}
	to := e.next(rdmacm.EventMulticastJoin).UD
	if to.AH.DGID != verbs.GIDFromAddr(group) || to.QPN != 0xffffff || to.QKey != rdmacm.UDQKey {
		t.Errorf("joined: %+v", to)
	}
	ah, err := e.id.PD().CreateAH(to.AH)
	e.must(err)
	defer ah.Close()
	n := copy(mr.Bytes(), "to all")
	_, err = e.id.QP().PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, n)}, AH: ah, RemoteQPN: to.QPN, RemoteQKey: to.QKey}})
	e.must(err)
	var wc [1]verbs.WC
	_, err = e.id.QP().RecvCQ().Wait(t.Context(), wc[:])
	e.must(err)
	if got := string(mr.Bytes()[128+40:][:n]); wc[0].Status != verbs.WCSuccess || got != "to all" {
		t.Errorf("received: %v, %q", wc[0].Status, got)
	}
	e.must(e.id.LeaveMulticast(group))
	e.must(e.id.JoinMulticast(group))
	e.next(rdmacm.EventMulticastJoin)
	e.must(e.id.DestroyQP()) // and leaves
	e.must(e.id.JoinMulticast(group))
	e.next(rdmacm.EventMulticastJoin)
}

// refused asks a port that nobody listens at.
func refused(t *testing.T) {
	d := managed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := (&rdmacm.Dialer{Devices: []*verbs.Device{d}}).Dial(ctx, netip.MustParseAddrPort("127.0.0.1:9"), nil)
	var no *rdmacm.RejectError
	if !errors.As(err, &no) {
		t.Errorf("no listener: got %v, want a refusal", err)
	}
}

// ibGIDs is a device whose GIDs are no IP addresses, as those of InfiniBand and iWARP are.
type ibGIDs struct{ verbs.ProviderDevice }

func (ibGIDs) GID(port, index int) (verbs.GIDEntry, error) {
	if index > 0 {
		return verbs.GIDEntry{}, verbs.ErrNotFound
	}
	return verbs.GIDEntry{GID: verbs.GID{0: 0xfe, 1: 0x80, 15: 1}, Port: port, Type: verbs.GIDTypeIB}, nil
}

func (d ibGIDs) OpenCM() (*os.File, error) { return d.ProviderDevice.(*device).OpenCM() }

// withoutGIDs connects a device whose addresses the kernel alone knows. The kernel says of no loopback address whose it is.
func withoutGIDs(t *testing.T) {
	d := managed(t)
	infos, err := newProvider(ibv.Library, classDir).Devices()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(infos, func(i verbs.DeviceInfo) bool { return i.Name != d.Name() })
	if i < 0 {
		t.Skip("the host has no interface beside that of loopback")
	}
	a, b := verbs.NewDevice(ibGIDs{opened(t, infos[i].Name).Provider()}), verbs.NewDevice(ibGIDs{opened(t, infos[i].Name).Provider()})
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{a}}).Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(t.Context())
		if err == nil {
			var c *rdmacm.Conn
			if c, err = req.Accept(t.Context(), nil); err == nil {
				<-c.Disconnected()
				err = c.Close()
			}
		}
		accepted <- err
	}()
	if _, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.MustParseAddrPort("198.51.100.77:0")); !errors.Is(err, rdmacm.ErrNoDevice) {
		t.Errorf("an address that the host has not: got %v, want ErrNoDevice", err)
	}
	if _, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{b}}).Listen(netip.AddrPortFrom(home, 0)); !errors.Is(err, rdmacm.ErrNoDevice) {
		t.Errorf("an address of another device: got %v, want ErrNoDevice", err)
	}
	own, err := ipv4Of(infos[i].Netdev)
	if err != nil {
		t.Fatal(err)
	}
	c, err := (&rdmacm.Dialer{Devices: []*verbs.Device{b}}).Dial(t.Context(), netip.AddrPortFrom(own, l.Addr().Port()), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Errorf("accept: %v", err)
	}
}

// ipv4Of returns an IPv4 address of a network interface.
func ipv4Of(netdev string) (netip.Addr, error) {
	ifi, err := net.InterfaceByName(netdev)
	if err != nil {
		return netip.Addr{}, err
	}
	addrs, err := ifi.Addrs()
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.Join(err, errors.New("no IPv4 address"))
}

// small is a small QP.
var small = verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}

// end is an ID with its channel.
type end struct {
	*testing.T
	ch *rdmacm.EventChannel
	id *rdmacm.ID
}

func newEnd(t *testing.T, d *verbs.Device, ps rdmacm.PortSpace) *end {
	e := &end{T: t, ch: rdmacm.NewEventChannel(d)}
	var err error
	e.id, err = rdmacm.NewID(e.ch, ps)
	e.must(err)
	t.Cleanup(func() { e.must(e.id.Close()) })
	return e
}

func (e *end) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *end) bind(port uint16) {
	e.Helper()
	e.must(e.id.BindAddr(netip.AddrPortFrom(home, port)))
}

func (e *end) resolve(to netip.AddrPort) {
	e.Helper()
	e.must(e.id.ResolveAddr(netip.AddrPort{}, to))
	e.next(rdmacm.EventAddrResolved)
	e.must(e.id.ResolveRoute())
	e.next(rdmacm.EventRouteResolved)
}

func (e *end) next(due rdmacm.EventType) rdmacm.Event {
	e.Helper()
	ev, err := e.ch.Next(e.Context())
	e.must(err)
	if ev.Type != due {
		e.Fatalf("event %v, %v; %v is due", ev.Type, ev.Err, due)
	}
	return ev
}

// TestLinkLocal: a link-local address of a GID has its interface for a zone, without which the kernel binds nothing to it.
func TestLinkLocal(t *testing.T) {
	d := fake(t).device(t, fakeName)
	defer d.Close()
	addrs, err := connector.Addrs(d)
	if err != nil {
		t.Fatal(err)
	}
	zoned := 0
	for _, a := range addrs {
		switch local := a.Is6() && a.IsLinkLocalUnicast(); {
		case local && a.Zone() != "lo", !local && a.Zone() != "":
			t.Errorf("%v: want a zone, that of lo, for link-local addresses alone", a)
		case local:
			zoned++
		}
	}
	if zoned == 0 {
		t.Errorf("%v: want a link-local address among them", addrs)
	}
}
