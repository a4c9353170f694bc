//go:build !adverb_portable

package soft_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// envGSI gives a member a QP1. It sends MADs as it is told, and reports those that it receives.
	envGSI = "ADVERB_TEST_GSI"
	// envBind makes the test binary a process that binds the abstract unix sockets of the names
	// that are the variable's value. It reports the messages that it receives.
	envBind = "ADVERB_TEST_BIND"
)

func init() {
	if os.Getenv(envGSI) != "" {
		newGSIProcess(os.Getenv(envMember)).run()
		os.Exit(0)
	}
	if names := os.Getenv(envBind); names != "" {
		bind(strings.Split(names, ","))
	}
}

// gsiOrder is an order to a process with a QP1.
type gsiOrder struct {
	Claim uint64 // a service, if not 0
	MAD   []byte // to send to QP1 of the process's own address
}

// gsiReport is the report of such a process to the test.
type gsiReport struct {
	CommIDs uint32 `json:",omitempty"` // the first of them
	Claimed bool   `json:",omitempty"` // or Error
	Error   string `json:",omitempty"`
	MAD     []byte `json:",omitempty"` // received
}

// gsiProcess is the process with a QP1 itself.
type gsiProcess struct {
	gsi    *verbs.GSI
	cq     *verbs.CQ
	qp     *verbs.QP
	ah     *verbs.AH
	memory *verbs.MR
	orders chan order
	out    *json.Encoder
}

const (
	gsiSlot  = verbs.GRHSize + wire.MADSize
	gsiSlots = 64 // for receives; one more is for sending
)

func newGSIProcess(device string) *gsiProcess {
	dev := must(verbs.Open(device))
	p := &gsiProcess{gsi: must(dev.GSI()), cq: must(dev.CreateCQ(2 * gsiSlots)), orders: make(chan order, 16), out: json.NewEncoder(os.Stdout)}
	pd := must(dev.AllocPD())
	p.memory = must(pd.AllocMR((gsiSlots+1)*gsiSlot, verbs.AccessLocalWrite))
	p.qp = must(p.gsi.CreateQP(pd, verbs.QPInitAttr{SendCQ: p.cq, RecvCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: gsiSlots}}))
	check(p.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: verbs.GSIQKey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	for i := range gsiSlots {
		p.post(i)
	}
	check(p.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	check(p.qp.RTS(0, verbs.Retry{}))
	p.ah = must(pd.CreateAH(verbs.AHAttr{DGID: must(dev.GID(1, 0)).GID}))
	base, _, err := p.gsi.CommIDs()
	check(err)
	p.say(gsiReport{CommIDs: base})
	return p
}

func (p *gsiProcess) say(r gsiReport) { check(p.out.Encode(report{GSI: &r})) }

func (p *gsiProcess) post(slot int) {
	must(p.qp.PostRecv([]verbs.RecvWR{{ID: uint64(slot), SGList: []verbs.SGE{p.memory.SGE(slot*gsiSlot, gsiSlot)}}}))
}

func (p *gsiProcess) run() {
	go func() {
		d := json.NewDecoder(bufio.NewReader(os.Stdin))
		for {
			var o order
			if d.Decode(&o) != nil {
				os.Exit(3) // the test is gone
			}
			p.orders <- o
		}
	}()
	wcs := make([]verbs.WC, 16)
	for {
		select {
		case o := <-p.orders:
			if o.Quit {
				return
			}
			p.follow(o.GSI)
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), udPace)
		n, err := p.cq.Wait(ctx, wcs)
		cancel()
		if ctx.Err() == nil {
			check(err)
		}
		for _, wc := range wcs[:n] {
			check(wc.Err())
			if wc.Op == verbs.WCRecv {
				p.say(gsiReport{MAD: p.memory.Bytes()[int(wc.ID)*gsiSlot:][verbs.GRHSize:wc.ByteLen]})
				p.post(int(wc.ID))
			}
		}
	}
}

func (p *gsiProcess) follow(o *gsiOrder) {
	if o.Claim != 0 {
		if _, err := p.gsi.ClaimService(0, o.Claim); err != nil {
			p.say(gsiReport{Error: fmt.Sprintf("%v; busy %v", err, errors.Is(err, verbs.ErrBusy))})
			return
		}
		p.say(gsiReport{Claimed: true})
	}
	if o.MAD != nil {
		n := copy(p.memory.Bytes()[gsiSlots*gsiSlot:], o.MAD)
		// If the queue is full, the datagram is lost. The test sends it again.
		p.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.memory.SGE(gsiSlots*gsiSlot, n)},
			AH: p.ah, RemoteQPN: verbs.GSIQPN, RemoteQKey: verbs.GSIQKey}})
	}
}

// bind is the program of the process of envBind.
func bind(names []string) {
	out := json.NewEncoder(os.Stdout)
	got := make(chan []byte)
	for _, n := range names {
		c := must(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n, Net: "unixgram"}))
		go func() {
			buf := make([]byte, 1<<16)
			for {
				n, _, err := c.ReadFrom(buf)
				check(err)
				got <- slices.Clone(buf[:n])
			}
		}()
	}
	check(out.Encode(report{Started: true}))
	for b := range got {
		check(out.Encode(report{GSI: &gsiReport{MAD: b}}))
	}
}

// gsiTest is a test of several processes with a QP1 at one address.
type gsiTest struct {
	t      *testing.T
	device string
	all    []*process
	news   chan struct{}       // one of them has something to report
	ids    map[*process]uint32 // the first communication ID
	n      uint64              // of the latest MAD
	wanted map[uint64][]*process
}

func newGSITest(t *testing.T, addr int) *gsiTest {
	return &gsiTest{t: t, device: loopback(t) + "@" + loopAddr(addr), news: make(chan struct{}, 1), ids: map[*process]uint32{},
		wanted: map[uint64][]*process{}}
}

func (g *gsiTest) start(name string) *process {
	g.t.Helper()
	p := startWithNews(g.t, name, g.device, g.news, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, envGSI+"=1") })
	g.ids[p] = p.await("open", func(r *report) bool { return r.GSI != nil }).GSI.CommIDs
	g.all = append(g.all, p)
	return p
}

// claim makes a process claim a service. It returns the text of the error, if there is one.
func (g *gsiTest) claim(p *process, service uint64) string {
	g.t.Helper()
	p.order(order{GSI: &gsiOrder{Claim: service}})
	r := p.await("told of its claim", func(r *report) bool {
		g.look(p, r)
		return r.GSI != nil && r.GSI.MAD == nil
	})
	return r.GSI.Error
}

// kill ends a process.
func (g *gsiTest) kill(p *process) {
	p.kill()
	g.all = slices.DeleteFunc(g.all, func(o *process) bool { return o == p })
}

// look checks that a process which has received a MAD was to receive it. It returns the MAD's
// number.
func (g *gsiTest) look(p *process, r *report) (number uint64) {
	g.t.Helper()
	if r.GSI == nil || r.GSI.MAD == nil {
		return 0
	}
	h, err := wire.DecodeMADHeader(r.GSI.MAD)
	if err != nil || !slices.Contains(g.wanted[h.TID], p) {
		g.t.Errorf("%s received %x, %v; want only what is its", p.name, r.GSI.MAD, err)
	}
	return h.TID
}

// send makes one process send a message until it arrives at one of the others, and returns that
// one.
func (g *gsiTest) send(from *process, attr wire.CMAttr, id uint64, to ...*process) *process {
	g.t.Helper()
	g.n++
	h := wire.NewCMHeader(attr, g.n)
	mad := h.AppendTo(nil)
	switch attr {
	case wire.CMREQ:
		mad = (&wire.REQ{ServiceID: id}).AppendTo(mad)
	case wire.CMSIDRREQ:
		mad = (&wire.SIDRREQ{ServiceID: id}).AppendTo(mad)
	case wire.CMRTU:
		mad = (&wire.RTU{RemoteCommID: uint32(id)}).AppendTo(mad)
	}
	g.wanted[g.n] = to
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	timeout := time.After(patience)
	from.order(order{GSI: &gsiOrder{MAD: mad}})
	for {
		if p := g.arrived(g.n); p != nil {
			return p
		}
		select {
		case <-g.news:
		case <-again.C:
			from.order(order{GSI: &gsiOrder{MAD: mad}})
		case <-timeout:
			g.t.Fatalf("%v %#x of %s has not arrived", attr, id, from.name)
		}
	}
}

// arrived reads the reports of all processes, and returns the process that has received a message.
func (g *gsiTest) arrived(number uint64) *process {
	g.t.Helper()
	for _, p := range g.all {
		for more := true; more; {
			select {
			case r := <-p.reports:
				if g.look(p, &r) == number {
					return p
				}
			case <-p.ended:
				g.t.Fatalf("%s: %v\n%s\nwant it alive", p.name, p.cmd.ProcessState, p.stderr.String())
			default:
				more = false
			}
		}
	}
	return nil
}

// CM messages find the process that they are for. It does not matter which process the kernel gives
// them to, nor that others end and are stopped meanwhile.
func TestProcessesGSI(t *testing.T) {
	const service, none = 0x1060000 + 7471, 0x1060000 + 7472
	g := newGSITest(t, 40)
	bystander := start(t, "bystander", g.device) // has UD and RC QPs, and no QP1
	bystander.awaitAddress()
	listener, a, b := g.start("listener"), g.start("A"), g.start("B")
	if err := g.claim(listener, service); err != "" {
		t.Fatal(err)
	}
	if err := g.claim(a, service); !strings.Contains(err, "claim service 0x0000000001061d2f on") || !strings.Contains(err, "address in use") ||
		!strings.Contains(err, "busy true") {
		t.Errorf("second claim: %q, want \"address in use\", busy, with service and address", err)
	}
	conversation := func(listener, client *process) {
		t.Helper()
		g.send(client, wire.CMREQ, service, listener)
		g.send(listener, wire.CMRTU, uint64(g.ids[client]+0xfffff), client)
		g.send(client, wire.CMSIDRREQ, service, listener)
		g.send(client, wire.CMRTU, uint64(g.ids[listener]), listener)
	}
	conversation(listener, a)
	conversation(listener, b)
	conversation(listener, listener)
	g.send(a, wire.CMREQ, none, listener, a, b) // any of them may get it

	// The stopped process may be the one to which the kernel gives all that is for QP1.
	for _, stopped := range []*process{bystander, b} {
		stopped.signal(syscall.SIGSTOP)
		conversation(listener, a)
		stopped.signal(syscall.SIGCONT)
	}
	// The kernel frees the claims of a killed process.
	g.kill(listener)
	who := g.send(a, wire.CMREQ, service, a, b)
	t.Logf("after the end of the listener %s gets its messages", who.name)
	if err := g.claim(a, service); err != "" {
		t.Errorf("claim after the end of the process that had it: %s, want no error", err)
	}
	conversation(a, b)
	g.kill(b)
	bystander.kill()
	conversation(a, a)
	g.send(a, wire.CMREQ, none, a)
}

// A process of another user may bind any name. It receives only the question who it is, and keeps nobody
// from the service.
func TestProcessGSIStranger(t *testing.T) {
	const service = 4711
	g := newGSITest(t, 41)
	name := fmt.Sprintf("@adverb/svc/%s/%016x", loopAddr(41), service)
	stranger := start(t, "stranger", "", asNobody(t), func(cmd *exec.Cmd) {
		cmd.Env = slices.DeleteFunc(cmd.Env, func(s string) bool { return strings.HasPrefix(s, envMember+"=") })
		cmd.Env = append(cmd.Env, envBind+"="+name)
	})
	stranger.await("bound", func(r *report) bool { return r.Started })
	a, b := g.start("A"), g.start("B")
	g.n++
	h := wire.NewCMHeader(wire.CMREQ, g.n)
	req := (&wire.REQ{ServiceID: service}).AppendTo(h.AppendTo(nil))
	for _, p := range []*process{a, b} {
		p.order(order{GSI: &gsiOrder{MAD: req}})
	}
	asked := stranger.await("asked", func(r *report) bool { return r.GSI != nil })
	for range 3 {
		g.send(a, wire.CMRTU, uint64(g.ids[b]), b) // messages for other processes are not delayed
	}
	if err := g.claim(a, service); err != "" {
		t.Errorf("claim of a service whose name the stranger has: %s, want no error", err)
	}
	g.send(a, wire.CMREQ, service, a)
	g.send(b, wire.CMREQ, service, a)
	stranger.kill()
	if b := asked.GSI.MAD; len(b) != 12 || binary.BigEndian.Uint16(b) != 0x0101 {
		t.Errorf("the stranger was sent %x, want no more than the question who it is", b)
	}
	if err := g.claim(b, service); !strings.Contains(err, "address in use") {
		t.Errorf("another claim after the stranger's end: %q, want \"address in use\"", err)
	}
	g.send(b, wire.CMREQ, service, a)
}
