//go:build !adverb_portable

package soft_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
	"github.com/adverb-rdma/adverb/verbs"
)

// envOutage makes TestOutagesInside run. It needs a network namespace of its own.
const envOutage = "ADVERB_TEST_OUTAGE"

// A connection outlives an outage of the host's network that is over before its retries are. If the
// outage is longer, the error has the host's error. Events tell of the interface's changes.
func TestOutages(t *testing.T) {
	runInOwnNetwork(t, "TestOutagesInside", envOutage)
}

var outageAddrs = [2]netip.Addr{netip.MustParseAddr("10.47.8.1"), netip.MustParseAddr("10.47.8.2")}

func TestOutagesInside(t *testing.T) {
	if os.Getenv(envOutage) == "" {
		t.Skip("TestOutages runs this one")
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range outageAddrs {
		setAddress(t, lo, a, true)
	}
	t.Setenv("ADVERB_SHM", "0") // outages of a network do not interrupt memory
	for _, tt := range []struct {
		name       string
		begin, end func()
		unsent     bool   // sends fail
		text       string // in the error of an outage that is not over in time
		// Events of the device that sends, unless 0. CQ_ERR is 0, and not among them.
		began, ended verbs.EventType
	}{
		{"the address disappears", func() { setAddress(t, lo, outageAddrs[0], false) }, func() { setAddress(t, lo, outageAddrs[0], true) },
			true, "network interface lo does not have the address 10.47.8.1 any more", verbs.EventGIDChange, verbs.EventGIDChange},
		{"the peer's address disappears", func() { setAddress(t, lo, outageAddrs[1], false) }, func() { setAddress(t, lo, outageAddrs[1], true) },
			true, syscall.ENETUNREACH.Error(), 0, 0},
		{"the interface goes down", func() { setUp(t, false) }, func() { setUp(t, true) },
			false, "network interface lo is down", verbs.EventPortErr, verbs.EventPortActive},
		{"no route", func() { setRoute(t, unix.RTN_UNREACHABLE, true) }, func() { setRoute(t, unix.RTN_UNREACHABLE, false) },
			true, syscall.EHOSTUNREACH.Error(), 0, 0},
		{"forbidden", func() { setRoute(t, unix.RTN_PROHIBIT, true) }, func() { setRoute(t, unix.RTN_PROHIBIT, false) },
			true, syscall.EACCES.Error(), 0, 0},
		{"the MTU shrinks", func() { setMTU(t, 600) }, func() { setMTU(t, lo.MTU) },
			true, syscall.EMSGSIZE.Error(), 0, 0},
	} {
		outage := func(during func()) {
			tt.begin()
			defer tt.end()
			during()
		}
		t.Run(tt.name, func(t *testing.T) {
			p := newOutagePair(t, patientRetry)
			p.write()
			p.done("")
			outage(func() {
				p.write()
				if tt.unsent {
					p.unsent()
				}
				p.event(tt.began)
			})
			p.done("")
			p.event(tt.ended)
			p = newOutagePair(t, hastyRetry)
			outage(func() {
				p.write()
				p.done(tt.text)
			})
			p = newOutagePair(t, patientRetry)
			p.write()
			p.done("")
		})
	}
}

// outagePair is two devices with a connection.
type outagePair struct {
	t        *testing.T
	devs     [2]*verbs.Device
	qps      [2]*verbs.QP
	src, dst *verbs.MR
	round    byte
}

// hastyRetry makes a connection fail after half a second without a sign of life.
var hastyRetry = verbs.Retry{Timeout: 14, RetryCount: 7, RNRRetryCount: 7}

// newOutagePair connects the two addresses. Its devices close with the test.
func newOutagePair(t *testing.T, retry verbs.Retry) *outagePair {
	t.Helper()
	p := &outagePair{t: t}
	var mrs [2]*verbs.MR
	var gids [2]verbs.GID
	for i, a := range outageAddrs {
		d := p.open("soft_lo@" + a.String())
		pd, err := d.AllocPD()
		p.must(err)
		cq, err := d.CreateCQ(8)
		p.must(err)
		p.qps[i], err = pd.CreateQP(verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
		p.must(err)
		p.must(p.qps[i].Init(1, verbs.AccessRemoteWrite))
		mrs[i], err = pd.AllocMR(200_000, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		p.must(err)
		p.devs[i], gids[i] = d, verbs.GIDFromAddr(a)
	}
	p.src, p.dst = mrs[0], mrs[1]
	for i, qp := range p.qps {
		p.must(qp.RTR(verbs.Peer{QPN: p.qps[1-i].QPN(), GID: gids[1-i]}, verbs.Path{}))
		p.must(qp.RTS(0, retry))
	}
	return p
}

// open opens a device for the time of the test.
func (p *outagePair) open(name string) *verbs.Device {
	p.t.Helper()
	d, err := verbs.Open(name)
	p.must(err)
	p.t.Cleanup(func() { d.Close() })
	return d
}

func (p *outagePair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *outagePair) write() {
	p.t.Helper()
	p.round++
	for i := range p.src.Bytes() {
		p.src.Bytes()[i] = byte(i>>8) + p.round
	}
	_, err := p.qps[0].PostSend([]verbs.SendWR{{Op: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.src.SGE(0, p.src.Len())}, Remote: p.dst.Remote(0)}})
	p.must(err)
}

// unsent waits until some packets could not be sent.
func (p *outagePair) unsent() {
	p.t.Helper()
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		cs, err := p.devs[0].Counters()
		p.must(err)
		if n, _ := cs.Get("send_err"); n > 0 {
			return
		}
		if time.Now().After(limit) {
			p.t.Fatal("all was sent, want errors")
		}
	}
}

// done waits for the WRITE. It must succeed or, with a text, fail after all retries with that in the error.
func (p *outagePair) done(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var wc [1]verbs.WC
	_, err := p.qps[0].SendCQ().Wait(ctx, wc[:])
	p.must(err)
	switch err := wc[0].Err(); {
	case text == "":
		if err != nil {
			p.t.Fatalf("%v; what the devices have counted: %v and %v", err, p.counted(0), p.counted(1))
		}
		if !bytes.Equal(p.src.Bytes(), p.dst.Bytes()) {
			p.t.Error("other bytes arrived than were sent")
		}
	case wc[0].Status != verbs.WCRetryExceeded || !strings.Contains(err.Error(), text):
		p.t.Errorf("got %v, want %v with %q", err, verbs.WCRetryExceeded, text)
	}
}

// counted returns those counters of a device that are not zero.
func (p *outagePair) counted(i int) verbs.Counters {
	p.t.Helper()
	cs, err := p.devs[i].Counters()
	p.must(err)
	return slices.DeleteFunc(cs, func(c verbs.Counter) bool { return c.Value == 0 })
}

// event waits for an event of the device that sends.
func (p *outagePair) event(want verbs.EventType) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for want != 0 {
		e, err := p.devs[0].NextEvent(ctx)
		if err != nil {
			p.t.Fatalf("waiting for %v: %v", want, err)
		}
		if e.Type == want {
			return
		}
	}
}

// setAddress gives an interface an address that can be used at once, or takes it away.
func setAddress(t *testing.T, ifi *net.Interface, addr netip.Addr, on bool) {
	t.Helper()
	changeAddress(t, ifi, addr, unix.IFA_F_NODAD, on)
}

// setTentative gives an interface an address for which the kernel asks first whether others have it.
func setTentative(t *testing.T, ifi *net.Interface, addr netip.Addr) {
	t.Helper()
	changeAddress(t, ifi, addr, 0, true)
}

func changeAddress(t *testing.T, ifi *net.Interface, addr netip.Addr, flags uint8, on bool) {
	t.Helper()
	p := netip.PrefixFrom(addr, addr.BitLen())
	if addr.Is4() && addr.IsLoopback() {
		p = netip.PrefixFrom(addr, 8) // as the kernel has it
	}
	if err := linktest.SetAddress(ifi.Name, p, flags, on); err != nil {
		t.Fatal(err)
	}
}

// setRoute adds a route of a type to the second address, in the table that the kernel looks at first.
func setRoute(t *testing.T, typ uint8, on bool) {
	t.Helper()
	b := []byte{unix.AF_INET, 32, 0, 0, unix.RT_TABLE_LOCAL, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, typ, 0, 0, 0, 0}
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.RTA_DST, outageAddrs[1].AsSlice())
	change(t, on, unix.RTM_NEWROUTE, unix.RTM_DELROUTE, b, ae)
}

// change makes or deletes something of the kernel's routing tables.
func change(t *testing.T, on bool, create, remove netlink.HeaderType, data []byte, ae *netlink.AttributeEncoder) {
	t.Helper()
	var err error
	if on {
		err = linktest.Configure(create, netlink.Create, data, ae)
	} else {
		err = linktest.Configure(remove, 0, data, ae)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func setUp(t *testing.T, up bool) {
	t.Helper()
	ioctlLoopback(t, unix.SIOCGIFFLAGS, func(r *unix.Ifreq) {
		flags := r.Uint16() &^ unix.IFF_UP
		if up {
			flags |= unix.IFF_UP
		}
		r.SetUint16(flags)
	}, unix.SIOCSIFFLAGS)
}

func setMTU(t *testing.T, mtu int) {
	t.Helper()
	ioctlLoopback(t, unix.SIOCGIFMTU, func(r *unix.Ifreq) { r.SetUint32(uint32(mtu)) }, unix.SIOCSIFMTU)
}

// ioctlLoopback gets a property of the loopback interface and sets it to the value that change makes of it.
func ioctlLoopback(t *testing.T, get uint, change func(*unix.Ifreq), set uint) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err == nil {
		err = unix.IoctlIfreq(fd, get, r)
	}
	if err == nil {
		change(r)
		err = unix.IoctlIfreq(fd, set, r)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A datagram that comes in IP fragments is whole when a device sees it, and judged as a whole. Nobody
// sees its parts.
func TestFragments(t *testing.T) {
	runInOwnNetwork(t, "TestFragmentsInside", envOutage)
}

func TestFragmentsInside(t *testing.T) {
	if os.Getenv(envOutage) == "" {
		t.Skip("TestFragments runs this one")
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range outageAddrs {
		setAddress(t, lo, a, true)
	}
	p := newOutagePair(t, patientRetry)
	setMTU(t, 1500)
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	p.must(err)
	defer unix.Close(raw)
	const size = 2400 // of the UDP datagram: headers, payload
	datagram := make([]byte, size)
	binary.BigEndian.PutUint16(datagram, 0xc000)
	binary.BigEndian.PutUint16(datagram[2:], 4791)
	binary.BigEndian.PutUint16(datagram[4:], size)
	send := func(id, from, to int) {
		header := make([]byte, 20)
		header[0], header[8], header[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(header[4:], uint16(id))
		more := 0
		if to < size {
			more = 0x2000
		}
		binary.BigEndian.PutUint16(header[6:], uint16(more|from/8))
		copy(header[12:], outageAddrs[0].AsSlice())
		copy(header[16:], outageAddrs[1].AsSlice())
		p.must(unix.Sendto(raw, append(header, datagram[from:to]...), 0, &unix.SockaddrInet4{Addr: outageAddrs[1].As4()}))
	}
	for id := range 100 { // first parts, last parts, and one that is whole
		send(1000+id, 0, 1200)
		send(2000+id, 1200, size)
	}
	send(3000, 0, 1200)
	send(3000, 1200, size)
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		cs, err := p.devs[1].Counters()
		p.must(err)
		malformed, _ := cs.Get("drop_malformed")
		noQP, _ := cs.Get("drop_no_qp")
		if malformed+noQP > 1 {
			t.Errorf("%d datagrams dropped, want the one that is whole", malformed+noQP)
		}
		if malformed+noQP > 0 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("the datagram in fragments was not seen")
		}
	}
	setMTU(t, lo.MTU)
	p.write()
	p.done("")
}
