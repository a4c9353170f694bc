package lab

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/lab/agent"
	"github.com/adverb-rdma/adverb/verbs"
)

// puppet is a QP in the guest, with the kernel's verbs. A program in the guest (testdata/puppet.py)
// does what the test tells it.
type puppet struct {
	t    testing.TB
	ctx  context.Context
	g    *Guest
	conn net.Conn
	in   *bufio.Reader
	peer verbs.QPN // the destination of messages, for UD only
}

//go:embed testdata/puppet.py
var puppetScript []byte

// puppetPort is the TCP port of the program. The port belongs to no protocol that tshark would try to
// decode.
const puppetPort = 4

// puppets are the running programs. They are kept, because Python takes seconds to start in a guest.
var puppets = make(map[*Guest]*Process)

// newPuppet returns a puppet that has the device open by itself. It ends with the test.
func newPuppet(ctx context.Context, t testing.TB, g *Guest) *puppet {
	t.Helper()
	p := &puppet{t: t, ctx: ctx, g: g}
	if !alive(puppets[g]) {
		// The program outlives the scenario.
		program, err := g.StartRequest(context.Background(), agent.Request{
			Argv:  []string{"python3", "-", fmt.Sprint(puppetPort), g.Device},
			Stdin: puppetScript,
		})
		p.must(err)
		puppets[g] = program
		p.must(listening(ctx, g, strconv.Itoa(puppetPort), program))
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(g.Addr(false), puppetPort).String())
	p.must(err)
	t.Cleanup(func() { conn.Close() })
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	t.Cleanup(func() { stop() })
	p.conn, p.in = conn, bufio.NewReader(conn)
	return p
}

func alive(p *Process) bool {
	if p == nil {
		return false
	}
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}

func (p *puppet) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%v: %v", p.g, err)
	}
}

// with are the arguments of a method of the puppet.
type with map[string]any

// try calls a method of the puppet. If the verb fails in the guest, the error is a puppetError.
func (p *puppet) try(method string, args with, value any) error {
	if args == nil {
		args = with{}
	}
	text, err := json.Marshal(map[string]any{"Do": method, "With": args})
	if err != nil {
		return err
	}
	if _, err := p.conn.Write(append(text, '\n')); err != nil {
		return err
	}
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		err = fmt.Errorf("%s: %w", method, err)
		if cause := context.Cause(p.ctx); cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		if program := puppets[p.g]; !alive(program) {
			err = fmt.Errorf("%w\n%s", err, program.Report())
		}
		return err
	}
	reply := struct {
		Value json.RawMessage
		Error string
	}{}
	if err := json.Unmarshal(line, &reply); err != nil {
		return fmt.Errorf("%s: %w in %q", method, err, line)
	}
	switch {
	case reply.Error != "":
		return puppetError(reply.Error)
	case value == nil:
		return nil
	}
	return json.Unmarshal(reply.Value, value)
}

// puppetError is the error of a verb in the guest.
type puppetError string

func (e puppetError) Error() string { return string(e) }

func (p *puppet) do(method string, args with, value any) {
	p.t.Helper()
	p.must(p.try(method, args, value))
}

// counters returns the counters that the guest's kernel keeps for the device.
func (p *puppet) counters() map[string]uint64 {
	p.t.Helper()
	var c map[string]uint64
	p.do("counters", nil, &c)
	return c
}

// bind binds a window of type 2 to the first n bytes of a region, and returns the window's key.
func (p *puppet) bind(m memory, n int, access verbs.Access) (key verbs.RKey) {
	p.t.Helper()
	p.do("bind", with{"MR": m.(*kernelMemory).ID, "Length": n, "Access": access}, &key)
	if wc := p.next(); wc.Status != verbs.WCSuccess {
		p.t.Fatalf("%v: bind: got status %v, want success", p.g, wc.Status)
	}
	return key
}

func (p *puppet) String() string { return "kernel" }

func (p *puppet) send(wrs ...verbs.SendWR) {
	p.t.Helper()
	for i := range wrs {
		if p.peer != 0 {
			wrs[i].RemoteQPN, wrs[i].RemoteQKey = p.peer, labQKey
		}
	}
	p.do("post_send", with{"WRs": wrs}, nil)
}

func (p *puppet) recv(wrs ...verbs.RecvWR) {
	p.t.Helper()
	p.do("post_recv", with{"WRs": wrs}, nil)
}

// pollSeconds is how long one call of poll waits in the guest.
const pollSeconds = 1

func (p *puppet) next() verbs.WC {
	p.t.Helper()
	for {
		var wcs []verbs.WC
		p.do("poll", with{"Max": 1, "Seconds": pollSeconds}, &wcs)
		if len(wcs) > 0 {
			return wcs[0]
		}
	}
}

func (p *puppet) state() (s verbs.QPState) {
	p.t.Helper()
	p.do("state", nil, &s)
	return s
}

func (p *puppet) fail() {
	p.t.Helper()
	p.do("modify", with{"State": verbs.QPStateErr}, nil)
}

// kernelMemory is a region in the guest.
type kernelMemory struct {
	p      *puppet
	ID     int
	Addr   uint64
	LKey   verbs.LKey
	RKey   verbs.RKey
	length int
}

func (p *puppet) mem(n int, access verbs.Access) memory {
	p.t.Helper()
	m := &kernelMemory{p: p, length: n}
	p.do("mr", with{"Length": n, "Access": access}, m)
	return m
}

func (m *kernelMemory) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: m.Addr + uint64(off), Length: uint32(n), LKey: m.LKey}
}

func (m *kernelMemory) remote(off int) verbs.RemoteAddr {
	return verbs.RemoteAddr{VA: m.Addr + uint64(off), RKey: m.RKey}
}

func (m *kernelMemory) put(off int, data []byte) {
	m.p.t.Helper()
	m.p.do("put", with{"MR": m.ID, "Offset": off, "Data": data}, nil)
}

func (m *kernelMemory) get(off, n int) (data []byte) {
	m.p.t.Helper()
	m.p.do("get", with{"MR": m.ID, "Offset": off, "Length": n}, &data)
	return data
}

func (m *kernelMemory) size() int { return m.length }

func (m *kernelMemory) dereg() {
	m.p.t.Helper()
	m.p.do("dereg", with{"MR": m.ID}, nil)
}
