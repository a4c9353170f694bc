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

// The classic programs do not cover all of the connection manager. For the rest, the test itself is
// one end, by package rdmacm. The other end is a puppet: a program in the guest that does as it is
// told.

//go:embed testdata/cmpuppet.py
var cmPuppetScript []byte

// cmPuppet starts a puppet. The arguments are those of testdata/cmpuppet.py.
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

// wantCMPuppet waits until a puppet has ended, and checks the events that it has printed.
func wantCMPuppet(t *testing.T, p *Process, want string) {
	t.Helper()
	left := finish(t, p)[0]
	wantOutput(t, "the peer's events", left.Stdout, want)
	wantOutput(t, "the peer's stderr", left.Stderr, "")
}

// cmPuppetConnects are the events of a puppet that connects, before the answer.
const cmPuppetConnects = "ADDR_RESOLVED 0\nROUTE_RESOLVED 0\n"

// nextAddr returns an address with a port that no earlier scenario has used.
func nextAddr(side Side, v6 bool) netip.AddrPort {
	port, _ := strconv.Atoi(nextPort())
	return netip.AddrPortFrom(side.Addr(v6), uint16(port))
}

// cmDevice opens a device in the test process. The device is closed at the end of the test.
func cmDevice(t *testing.T, l *Lab, v6 bool, mw ...link.Middleware) *verbs.Device {
	t.Helper()
	netdev, err := udp.NetdevForAddr(l.Host().Interface, l.Host().Addr(v6))
	if err != nil {
		t.Fatal(err)
	}
	shared := host.Share(netdev)
	p, err := hca.Open(shared, hca.Config{
		Ways: hca.Ways{Claim: shared.Claim}, ClaimService: shared.ClaimService, ShareService: shared.ShareService, ServeGSI: shared.ServeGSI, Middleware: mw,
	})
	if err != nil {
		t.Fatal(err)
	}
	dev := verbs.NewDevice(p)
	closeAtEnd(t, dev)
	return dev
}

// madLoss loses messages of the connection manager. A kind such as "out REQ" names their direction,
// as seen from the device, and their type.
type madLoss struct {
	mu   sync.Mutex
	left map[string]int // how many messages of each kind are still to be lost
	seen []string       // the kinds of all messages, in their order
	more chan struct{}  // holds a token after each message
}

// loseFirst returns a madLoss for the first message of each of the kinds.
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

// take records a datagram if the datagram is a message, and reports whether the message is to be
// lost.
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

// await waits until n messages of a kind have been seen.
func (l *madLoss) await(ctx context.Context, kind string, n int) error {
	for l.count(kind) < n {
		select {
		case <-l.more:
		case <-ctx.Done():
			return fmt.Errorf("saw %s %d times, want %d: %w; all messages: %q", kind, l.count(kind), n, context.Cause(ctx), l.all())
		}
	}
	return nil
}

func (l *madLoss) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// check waits until each message that was lost has been repeated.
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

// cmParam holds the parameters that our end offers. The puppet accepts with 2 and 4, and connects
// with 6 and 7.
var cmParam = rdmacm.ConnParam{ResponderResources: 5, InitiatorDepth: 3, RetryCount: 7, RNRRetryCount: 7}

// config returns a configuration that posts a receive before the peer can send. The end of the
// connection is to flush the receive.
func (e *cmEnd) config(data string) *rdmacm.Config {
	return &rdmacm.Config{PrivateData: []byte(data), Param: &cmParam, Setup: func(c *rdmacm.Conn) (err error) {
		e.conn = c
		if e.mr, err = c.PD().AllocMR(64, verbs.AccessLocalWrite); err == nil {
			_, err = c.QP().PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mr.SGE(0, 64)}}})
		}
		return err
	}}
}

// ended waits for the end of the connection, and checks that the end has flushed the receive.
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
		t.Errorf("completions of the receive: got %d with status %v, error %v; want 1 with %v", n, wcs[0].Status, err, verbs.WCFlushErr)
	}
	if s := e.conn.QP().State(); s != verbs.QPStateErr {
		t.Errorf("the QP is in %v, want %v", s, verbs.QPStateErr)
	}
}

// close closes the region and the connection, as far as they were made. An object that stays open
// keeps the device open, and with the device the address that the next scenario needs.
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

// checkPeer checks the parameters and the private data that the peer has sent.
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
	t.Cleanup(func() { e.close(t) })
	d := rdmacm.Dialer{Devices: []*verbs.Device{dev}}
	conn, err := d.Dial(ctx, to, e.config("hello"))
	if err != nil {
		t.Fatal(err)
	}
	checkPeer(t, conn.Param(), "welcome", 4, 2)
	return e
}

// cmListen listens on the device until the end of the test.
func cmListen(t *testing.T, dev *verbs.Device, at netip.AddrPort) *rdmacm.Listener {
	t.Helper()
	c := rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}
	l, err := c.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, l)
	return l
}

// acceptPuppet accepts a puppet's connection.
func acceptPuppet(ctx context.Context, t *testing.T, l *rdmacm.Listener) *cmEnd {
	t.Helper()
	r, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	checkPeer(t, r.Param(), "hello", 7, 6)
	e := new(cmEnd)
	t.Cleanup(func() { e.close(t) })
	if _, err := r.Accept(ctx, e.config("welcome")); err != nil {
		t.Fatal(err)
	}
	return e
}

// serveUD answers all lookups of a UD service until the end of the test.
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
			const qpn = 0x123456 // the peer only looks the service up, so any number will do
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
