package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/host"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/fault"
	"github.com/adverb-rdma/adverb/internal/link/udp"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/lab/agent"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// What the classic programs never do is done between the test itself, on package rdmacm, and a puppet
// in the guest.

//go:embed testdata/cmpuppet.py
var cmPuppetScript []byte

// cmPuppet starts one. It says in its first lines what it does.
func cmPuppet(ctx context.Context, t *testing.T, g *Guest, role, space string, at netip.AddrPort, mode string) *Process {
	t.Helper()
	p, err := g.StartRequest(ctx, agent.Request{
		Argv:  []string{"python3", "-", role, space, at.Addr().String(), strconv.Itoa(int(at.Port())), mode},
		Stdin: cmPuppetScript,
	})
	if err != nil {
		t.Fatal(err)
	}
	if role == "listen" {
		await(ctx, t, p, "LISTENING\n")
	}
	return p
}

// wantCMPuppet waits for the end of a puppet, and compares what it has seen.
func wantCMPuppet(t *testing.T, p *Process, want string) {
	t.Helper()
	left := finish(t, p)[0]
	wantOutput(t, "the peer's events", left.Stdout, want)
	wantOutput(t, "the peer's stderr", left.Stderr, "")
}

// Events that come before a puppet's Connect is answered.
const cmPuppetConnects = "ADDR_RESOLVED 0\nROUTE_RESOLVED 0\n"

// nextAddr is an address with a port that no scenario before has used.
func nextAddr(side Side, v6 bool) netip.AddrPort {
	port, _ := strconv.Atoi(nextPort())
	return netip.AddrPortFrom(side.Addr(v6), uint16(port))
}

// cmDevice opens the test's own device, and closes it at the end.
func cmDevice(t *testing.T, l *Lab, v6 bool, mw ...link.Middleware) *verbs.Device {
	t.Helper()
	netdev, err := udp.NetdevForAddr(l.Host().Interface, l.Host().Addr(v6))
	if err != nil {
		t.Fatal(err)
	}
	shared := host.Share(netdev)
	p, err := hca.Open(shared, hca.Config{
		Claim: shared.Claim, ClaimService: shared.ClaimService, ServeGSI: shared.ServeGSI, Middleware: mw,
	})
	if err != nil {
		t.Fatal(err)
	}
	dev := verbs.NewDevice(p)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// madLoss loses messages of the connection manager, on their way out or in, as seen from the device.
type madLoss struct {
	mu   sync.Mutex
	left map[string]int // of "out REQ", how many are still to be lost
	seen []string       // all, in their order
	more chan struct{}  // gets a token with each
}

// loseFirst loses the first of each kind.
func loseFirst(kinds ...string) *madLoss {
	l := &madLoss{left: map[string]int{}, more: make(chan struct{}, 1)}
	for _, k := range kinds {
		l.left[k]++
	}
	return l
}

func (l *madLoss) middleware() []link.Middleware {
	one := func(way string, dirs fault.Directions) link.Middleware {
		return fault.New(fault.Config{Loss: 1, Directions: dirs, Match: func(d *link.Datagram) bool { return l.take(way, d) }})
	}
	return []link.Middleware{one("out", fault.Outgoing), one("in", fault.Incoming)}
}

// take says whether a datagram is to be lost.
func (l *madLoss) take(way string, d *link.Datagram) bool {
	const headers = 12 + 8 // BTH and DETH
	bth, err := wire.DecodeBTH(d.Payload)
	if err != nil || bth.DestQP != wire.GSIQPN || len(d.Payload) < headers {
		return false
	}
	route, ok := wire.CMRoute(d.Payload[headers:])
	if !ok {
		return false
	}
	kind := way + " " + route.Attr.String()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, kind)
	select {
	case l.more <- struct{}{}:
	default:
	}
	if l.left[kind] == 0 {
		return false
	}
	l.left[kind]--
	return true
}

func (l *madLoss) count(kind string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.seen {
		if k == kind {
			n++
		}
	}
	return n
}

// await waits until a message of a kind has passed n times.
func (l *madLoss) await(ctx context.Context, kind string, n int) error {
	for l.count(kind) < n {
		select {
		case <-l.more:
		case <-ctx.Done():
			return fmt.Errorf("%s passed %d times, want %d: %w; all: %q", kind, l.count(kind), n, context.Cause(ctx), l.all())
		}
	}
	return nil
}

func (l *madLoss) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// check waits until what was lost has come again.
func (l *madLoss) check(ctx context.Context, t *testing.T) {
	t.Helper()
	l.mu.Lock()
	lost := slices.Collect(maps.Keys(l.left))
	l.mu.Unlock()
	for _, kind := range lost {
		if err := l.await(ctx, kind, 2); err != nil {
			t.Error(err)
		}
	}
}

// cmEnd is our end of a connection to a puppet.
type cmEnd struct {
	conn *rdmacm.Conn
	mr   *verbs.MR
}

// What the ends offer each other. The puppet accepts with 2 and 4, and connects with 6 and 7.
var cmParam = rdmacm.ConnParam{ResponderResources: 5, InitiatorDepth: 3, RetryCount: 7, RNRRetryCount: 7}

// config has a receive posted, to be flushed, before the peer can send.
func (e *cmEnd) config(data string) *rdmacm.Config {
	return &rdmacm.Config{PrivateData: []byte(data), Param: &cmParam, Setup: func(c *rdmacm.Conn) (err error) {
		e.conn = c
		if e.mr, err = c.PD().AllocMR(64, verbs.AccessLocalWrite); err == nil {
			_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(0, 64)}}})
		}
		return err
	}}
}

// ended checks that the connection ends, and that the end has flushed the receive.
func (e *cmEnd) ended(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-e.conn.Disconnected():
	case <-ctx.Done():
		t.Fatalf("the connection does not end: %v", context.Cause(ctx))
	}
	var wcs [2]verbs.WC
	n, err := e.conn.RecvCQ().Wait(ctx, wcs[:])
	if err != nil || n != 1 || wcs[0].Status != verbs.WCFlushErr {
		t.Errorf("of the receive: %d completions, %v, %v; want one that was flushed", n, wcs[0].Status, err)
	}
	if s := e.conn.QP().State(); s != verbs.QPStateErr {
		t.Errorf("the QP is in %v", s)
	}
}

// close ends what is left.
func (e *cmEnd) close(t *testing.T) {
	t.Helper()
	if e.mr != nil {
		if err := e.mr.Close(); err != nil {
			t.Error(err)
		}
	}
	if e.conn != nil {
		if err := e.conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// checkPeer checks what the peer has said of itself.
func checkPeer(t *testing.T, p rdmacm.ConnParam, data string, responder, initiator uint8) {
	t.Helper()
	if len(p.PrivateData) < len(data) || string(p.PrivateData[:len(data)]) != data || p.PrivateData[len(data)] != 0 {
		t.Errorf("private data %q, want %q", p.PrivateData, data)
	}
	if p.ResponderResources != responder || p.InitiatorDepth != initiator {
		t.Errorf("resources %d/%d, want %d/%d", p.ResponderResources, p.InitiatorDepth, responder, initiator)
	}
}

// dialPuppet connects to a puppet that listens.
func dialPuppet(ctx context.Context, t *testing.T, dev *verbs.Device, to netip.AddrPort) *cmEnd {
	t.Helper()
	e := new(cmEnd)
	d := rdmacm.Dialer{Device: dev}
	conn, err := d.Dial(ctx, to, e.config("hello"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.close(t) })
	checkPeer(t, conn.Param(), "welcome", 4, 2)
	return e
}

// cmListen listens on the test's device, until the end.
func cmListen(t *testing.T, dev *verbs.Device, at netip.AddrPort) *rdmacm.Listener {
	t.Helper()
	c := rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}
	l, err := c.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// acceptPuppet takes the connection of a puppet.
func acceptPuppet(ctx context.Context, t *testing.T, l *rdmacm.Listener) *cmEnd {
	t.Helper()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	checkPeer(t, r.Param(), "hello", 7, 6)
	e := new(cmEnd)
	if _, err := r.Accept(ctx, e.config("welcome")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.close(t) })
	return e
}

// serveUD answers all who look for a service, until the end.
func serveUD(ctx context.Context, t *testing.T, dev *verbs.Device, at netip.AddrPort) {
	t.Helper()
	ch := rdmacm.NewEventChannel(dev)
	id, err := rdmacm.NewID(ch, rdmacm.PortSpaceUDP)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(id.BindAddr(at), id.Listen(0)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			ev, err := ch.Next(ctx)
			if err != nil {
				return
			}
			const qpn = 0x123456 // whoever asks wants no more than to be answered
			err = ev.ID.Accept(&rdmacm.ConnParam{PrivateData: []byte("welcome"), QPN: qpn})
			if err := errors.Join(err, ev.ID.Close()); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := errors.Join(id.Close(), ch.Close()); err != nil {
			t.Error(err)
		}
	})
}
