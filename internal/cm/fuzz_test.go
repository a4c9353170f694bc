package cm

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// FuzzHandle lets a machine with connections in any states take any MADs. It must not
// panic, hold more than its bounds, answer one MAD by many, or keep anything in the end.
func FuzzHandle(f *testing.F) {
	f.Add([]byte{})
	for attr := range byte(11) {
		f.Add([]byte{0, 1, 16, attr, 0, 3, 17, attr, 1, 1, 0, 9, 18, attr, 0, 0})
		f.Add([]byte{16, 0, 0, 0, 1, 0, 16, attr, 1, 0, 0, 2, 0, 16, attr, 1, 0, 0, 3, 0, 16, attr, 1, 0, 0, 9, 200})
		f.Add([]byte{16, 0, 0, 0, 1, 0, 16, 4, 1, 0, 0, 5, 0, 16, attr, 1, 0, 0, 16, attr, 1, 0, 0, 9, 255, 6, 0})
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4096 {
			return
		}
		newFuzzed(t).run(in)
	})
}

// TestRandomMADs is FuzzHandle with random input.
func TestRandomMADs(t *testing.T) {
	for seed := range uint64(*seedsFlag) {
		rnd := rand.New(rand.NewPCG(seed, 0xf0))
		in := make([]byte, 3000)
		for i := range in {
			if in[i] = byte(rnd.Uint32()); rnd.IntN(2) == 0 {
				in[i] %= 20 // which is an action more often
			}
		}
		if t.Run("", func(t *testing.T) { newFuzzed(t).run(in) }); t.Failed() {
			t.Fatalf("it fails with seed %d", seed)
		}
	}
}

func (z *fuzzed) run(in []byte) {
	for z.in = in; len(z.in) > 0; {
		z.step()
		z.check()
	}
	z.finish()
}

// fuzzed is a machine and the rest of the input.
type fuzzed struct {
	t     *testing.T
	m     *Machine
	in    []byte
	now   time.Duration
	conns []*Conn
	sidrs []*SIDR
	peers [2]netip.Addr
	local netip.Addr
}

func newFuzzed(t *testing.T) *fuzzed {
	z := &fuzzed{t: t, m: New(Config{GUID: 5, IDBits: 4, Secret: secretOf(1), ACKDelay: 15}),
		local: netip.MustParseAddr("10.0.0.1"), peers: [2]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::3")}}
	if _, err := z.m.Listen(testService, netip.Addr{}, 3); err != nil {
		t.Fatal(err)
	}
	return z
}

func (z *fuzzed) byte() byte {
	if len(z.in) == 0 {
		return 0
	}
	b := z.in[0]
	z.in = z.in[1:]
	return b
}

// step makes the call that the next bytes encode.
func (z *fuzzed) step() {
	op := z.byte()
	if op >= 16 {
		z.mad(op)
		return
	}
	arg := z.byte()
	if op == 9 {
		z.now += time.Duration(arg) * 20 * time.Millisecond
		z.m.HandleTimeout(z.now)
		return
	}
	if op == 0 {
		if c, err := z.m.Connect(z.now, Path{Local: z.local, Remote: z.peers[arg&1]}, ConnectParams{Service: 7, MTU: 1, Params: Params{QPN: uint32(arg >> 4)}}); err == nil {
			z.conns = append(z.conns, c)
		}
		return
	}
	if op == 7 {
		if s, err := z.m.Resolve(z.now, Path{Local: z.local, Remote: z.peers[arg&1]}, SIDRParams{Service: 7}); err == nil {
			z.sidrs = append(z.sidrs, s)
		}
		return
	}
	if n := len(z.sidrs); op == 8 && n > 0 {
		if s := z.sidrs[int(arg>>1)%n]; arg&1 == 0 {
			_ = s.Reply(z.now, SIDRReply{QPN: uint32(arg)}) // whether it may is not the question
		} else {
			s.Close(z.now)
		}
	}
	if len(z.conns) == 0 {
		return
	}
	c := z.conns[int(arg)%len(z.conns)]
	var err error
	was := c.State()
	switch op {
	case 1:
		err = c.Accept(z.now, Params{QPN: uint32(arg >> 4)})
	case 2:
		err = c.Ready(z.now)
	case 3:
		err = c.Reject(z.now, wire.RejReason(arg), nil, nil)
	case 4:
		err = c.Delay(z.now, arg&31)
	case 5:
		err = c.Disconnect(z.now, nil)
	case 6:
		c.Close(z.now)
	case 10:
		err = c.Established(z.now)
	}
	if err != nil && c.State() != was {
		z.t.Fatalf("a call that fails: got state %v, want %v as before: %v", c.State(), was, err)
	}
}

// mad makes a MAD that may concern the machine. The input chooses among IDs that the machine knows,
// and sets the other fields.
func (z *fuzzed) mad(op byte) {
	var raw [wire.MADSize]byte
	attr := wire.CMREQ + wire.CMAttr(z.byte()%12)
	p := Path{Local: z.local, Remote: z.peers[op&1]}
	local, remote := z.byte(), z.byte()
	h := wire.NewCMHeader(attr, uint64(local>>4))
	h.AppendTo(raw[:0])
	data := raw[wire.MADHeaderSize:]
	binary.BigEndian.PutUint32(data[0:], uint32(local&15))
	binary.BigEndian.PutUint32(data[4:], uint32(remote))
	if attr == wire.CMREQ {
		req := wire.REQ{LocalCommID: uint32(local & 15), ServiceID: testService, LocalGUID: uint64(local >> 6), LocalQPN: uint32(remote >> 4), PKey: 0xffff, MTU: 1,
			RemoteCMTimeout: remote & 31, LocalCMTimeout: remote >> 1 & 31, MaxCMRetries: local >> 4, Primary: wire.CMPath{RemoteGID: z.local.As16(), ACKTimeout: remote >> 3}}
		req.AppendTo(data[:0])
	}
	if attr == wire.CMSIDRREQ {
		req := wire.SIDRREQ{RequestID: uint32(local & 15), ServiceID: testService}
		req.AppendTo(data[:0])
	}
	for n := z.byte() & 7; n > 0; n-- { // and some of it wrong
		at := z.byte()
		raw[at] = z.byte()
	}
	before := z.m.queued()
	z.m.Handle(z.now, p, raw[:])
	if n := z.m.queued() - before; n > 2 {
		z.t.Fatalf("%v: got %d MADs in answer, want at most 2", attr, n)
	}
}

// check takes the machine's MADs and events, and checks the bounds.
func (z *fuzzed) check() {
	for e, ok := z.m.Event(); ok; e, ok = z.m.Event() {
		switch e.Type {
		case EventRequest:
			z.conns = append(z.conns, e.Conn)
		case EventSIDRRequest:
			z.sidrs = append(z.sidrs, e.SIDR)
		}
	}
	for _, mad, ok := z.m.Transmit(); ok; _, mad, ok = z.m.Transmit() {
		if r, ok := wire.CMRoute(mad); !ok || len(mad) != wire.MADSize {
			z.t.Fatalf("sent: got %+v in %d bytes, want a CM message", r, len(mad))
		}
	}
	if s := z.m.Stats(); s.Requests > 3 || s.Conns > 15 || len(z.m.byID) > s.Conns || len(z.m.byQPN) > s.Conns || s.Timers > s.Conns+s.SIDRs {
		z.t.Fatalf("got %+v, %d remote IDs and %d remote QPNs, want at most 3 requests, 15 connections, and no more IDs, QPNs and timers than of those", s, len(z.m.byID), len(z.m.byQPN))
	}
}

// finish gives everything up, and waits until nothing is left.
func (z *fuzzed) finish() {
	for _, c := range z.conns {
		c.Close(z.now)
	}
	for _, s := range z.sidrs {
		s.Close(z.now)
	}
	for range 1000 {
		z.check()
		next := z.m.NextTimeout()
		if next == Never {
			break
		}
		z.now = max(z.now, next)
		z.m.HandleTimeout(z.now)
	}
	if s := z.m.Stats(); s.Conns+s.SIDRs+s.Requests+s.Retired+s.Timers+len(z.m.byID)+len(z.m.byQPN) > 0 {
		z.t.Fatalf("at the end: got %+v, want nothing held", s)
	}
}
