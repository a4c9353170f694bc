package fabric

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// chain is subnets in a row, with a router between each two of them. Each subnet is a switch with two adapters, of
// which the first has the manager.
type chain struct {
	*Fabric
	switches []*Switch
	hosts    [][2]*Port
	managers []*Manager
	routers  []*Router
}

func prefix(i int) uint64 { return 0xfec0<<48 | uint64(i+1) }

func newChain(t *testing.T, subnets int) *chain {
	t.Helper()
	c := &chain{Fabric: New()}
	connect := func(a, b *Port) {
		t.Helper()
		if err := c.Connect(a, b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range subnets {
		s := c.Switch(fmt.Sprintf("switch%d", i), 8)
		c.switches = append(c.switches, s)
		var h [2]*Port
		for j := range h {
			h[j] = c.Adapter(fmt.Sprintf("host%d.%d", i, j))
			connect(h[j], s.Port(1+j))
		}
		m := h[0].Manager(0, 0)
		m.SetPrefix(prefix(i))
		c.hosts, c.managers = append(c.hosts, h), append(c.managers, m)
		if i > 0 {
			c.join(t, i-1, i)
		}
	}
	c.Settle()
	return c
}

// join puts a router between two subnets.
func (c *chain) join(t *testing.T, a, b int) *Router {
	t.Helper()
	r := c.Router("router", 2)
	for i, s := range []*Switch{c.switches[a], c.switches[b]} {
		free := 1
		for s.Port(free).peer != nil {
			free++
		}
		if err := c.Connect(r.Port(1+i), s.Port(free)); err != nil {
			t.Fatal(err)
		}
	}
	c.routers = append(c.routers, r)
	return r
}

// global makes a packet with a GRH.
func global(from *Port, dgid [16]byte, dlid uint16, hopLimit uint8, payload int) []byte {
	h := wire.LRH{LNH: wire.LNHGlobal, DLID: dlid, SLID: from.State().LID}
	n := wire.BTHSize + payload + wire.ICRCSize
	h.Length = uint16(wire.LRHSize+wire.GRHSize+n) / 4
	b := h.AppendTo(nil)
	g := wire.GRH{Length: uint16(n), NextHeader: wire.GRHNextHeader, HopLimit: hopLimit, SGID: from.GID(), DGID: dgid}
	b = g.AppendTo(b)
	bth := wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: 0x123456, PSN: 9}
	b = bth.AppendTo(b)
	b = append(b, make([]byte, payload+wire.ICRCSize)...)
	f := wire.NewGlobalFlow(g.SGID, g.DGID, 0, 0)
	f.Seal(0, b[wire.LRHSize+wire.GRHSize:])
	return b
}

func TestRouters(t *testing.T) {
	c := newChain(t, 3)
	a, b := c.hosts[0][1], c.hosts[2][1]
	if p := prefixOf(a.GID()); p != prefix(0) {
		t.Errorf("the first subnet has the prefix %#x, want %#x", p, prefix(0))
	}
	r, err := a.Path(b.GID(), 0)
	want := wire.PathRecord{SGID: a.GID(), DGID: b.GID(), SLID: a.State().LID, DLID: c.routers[0].Port(1).State().LID, HopLimit: 255, Reversible: true,
		PKey: 0xffff, MTU: 5, Rate: 16, Lifetime: 18}
	if err != nil || r != want {
		t.Fatalf("path %+v, %v; want %+v", r, err, want)
	}
	if near, err := a.Path(c.hosts[0][0].GID(), 0); err != nil || near.HopLimit != 0 || near.DLID != c.hosts[0][0].State().LID {
		t.Errorf("within the subnet: path %+v, %v; want the port's LID, and hop limit 0", near, err)
	}
	if _, err := a.Path([16]byte{0: 0xfe, 1: 0xc0, 7: 9}, 0); err != SAError(wire.SAStatusBadGID) {
		t.Errorf("a path to a subnet that is not there: %v, want that the GID is unknown", err)
	}
	const n = 20
	sent := global(a, b.GID(), r.DLID, 3, 4096)
	for range n { // more than a port's buffer takes
		if err := a.Send(bytes.Clone(sent)); err != nil {
			t.Fatal(err)
		}
	}
	c.Settle()
	came := 0
	for p, ok := b.Recv(); ok; p, ok = b.Recv() {
		came++
		c.Settle()
		h, _ := wire.DecodeLRH(p)
		g, _ := wire.DecodeGRH(p[wire.LRHSize:])
		if h.DLID != b.State().LID || h.SLID != c.routers[1].Port(2).State().LID || g.HopLimit != 1 {
			t.Fatalf("a packet comes from LID %d to %d with hop limit %d; want from the router's LID, two routers later", h.SLID, h.DLID, g.HopLimit)
		}
		f := wire.NewGlobalFlow(g.SGID, g.DGID, 0, 0)
		if !f.Verify(0, p[wire.LRHSize+wire.GRHSize:]) || !bytes.Equal(p[wire.LRHSize+wire.GRHSize:], sent[wire.LRHSize+wire.GRHSize:]) {
			t.Fatal("behind two routers the packet differs, or its ICRC is wrong")
		}
	}
	if came != n {
		t.Errorf("%d packets come, want %d", came, n)
	}
}

// What a router does not forward.
func TestRouterDiscards(t *testing.T) {
	c := newChain(t, 2)
	a, b, out := c.hosts[0][1], c.hosts[1][1], c.routers[0]
	lid := out.Port(1).State().LID
	reach := func(p []byte) bool {
		if err := a.Send(p); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		n := b.Pending()
		for b.Pending() > 0 {
			b.Recv()
			c.Settle()
		}
		return n > 0
	}
	local := b.GID()
	binary.BigEndian.PutUint64(local[:], firstPrefix)
	unknown := b.GID()
	unknown[15]++
	for name, p := range map[string][]byte{
		"without a GRH":         packet(a, lid, 8, 1),
		"of hop limit 1":        global(a, b.GID(), lid, 1, 8),
		"of hop limit 0":        global(a, b.GID(), lid, 0, 8),
		"to a link-local GID":   global(a, local, lid, 9, 8),
		"to nobody":             global(a, unknown, lid, 9, 8),
		"from a link-local GID": linkLocalSource(global(a, b.GID(), lid, 9, 8)),
		"to an unknown subnet":  global(a, [16]byte{0: 0xfe, 1: 0xc0, 7: 9, 15: 1}, lid, 9, 8),
		"to a group":            global(a, [16]byte{0: 0xff, 1: 0x15, 15: 1}, lid, 9, 8),
	} {
		if reach(p) {
			t.Errorf("a router forwards a packet %s", name)
		}
	}
	if n := out.Port(1).Stats.Discarded + out.Port(2).Stats.Discarded; n != 8 {
		t.Errorf("the router counts %d packets that it discards, want 8", n)
	}
	if !reach(global(a, b.GID(), lid, 2, 8)) {
		t.Error("a router does not forward a packet of hop limit 2")
	}
}

// linkLocalSource gives a packet a source in the link-local subnet.
func linkLocalSource(p []byte) []byte {
	binary.BigEndian.PutUint64(p[wire.LRHSize+8:], firstPrefix)
	return p
}

// Of two routers the other is taken when one fails. A router loses packets whose LID nobody tells it.
func TestRouterFails(t *testing.T) {
	c := newChain(t, 2)
	c.join(t, 0, 1)
	c.Settle()
	a, b := c.hosts[0][1], c.hosts[1][1]
	send := func() (lid uint16, came bool) {
		t.Helper()
		r, err := a.Path(b.GID(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Send(global(a, b.GID(), r.DLID, 9, 8)); err != nil {
			t.Fatal(err)
		}
		c.Settle()
		_, came = b.Recv()
		return r.DLID, came
	}
	first, ok := send()
	if !ok {
		t.Error("nothing comes")
	}
	for i, r := range c.routers {
		if r.Port(1).State().LID == first {
			c.routers[i].Fail()
		}
	}
	c.Settle()
	second, ok := send()
	if !ok || second == first {
		t.Errorf("when the router at LID %d has failed, the path leads to LID %d, and packets come: %v", first, second, ok)
	}
	for _, r := range c.routers {
		r.Fail()
	}
	c.Settle()
	if _, err := a.Path(b.GID(), 0); err != SAError(wire.SAStatusBadGID) {
		t.Errorf("without routers: %v, want that the GID is unknown", err)
	}
	for _, r := range c.routers {
		r.Repair()
	}
	c.Settle()
	if _, ok := send(); !ok {
		t.Error("with the routers again nothing comes")
	}
	c.hosts[1][0].SetOff(true) // subnet administration behind the router does not answer
	c.Poll()
	c.Settle()
	if _, ok := send(); ok {
		t.Error("a packet comes whose LID nobody has told")
	}
}

// A question to subnet administration whose answer waits for credits is not lost: neither a port's nor a router's.
func TestAnswerWaits(t *testing.T) {
	c := newChain(t, 2)
	manager, a, b := c.hosts[0][0], c.hosts[0][1], c.hosts[1][1]
	r, err := manager.Path(b.GID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	const n = 100 // more than the buffers up to b take
	sent := 0
	fill := func() {
		t.Helper()
		for i := range n {
			if err := manager.Send(global(manager, b.GID(), r.DLID, 9, 4096)); err != nil {
				t.Fatal(err)
			}
			if sent++; i == 0 {
				c.Settle() // the router asks for the way
			}
		}
		c.Settle()
	}
	fill()
	if _, err := a.Path(b.GID(), 0); err == nil {
		t.Error("an answer comes, want it behind packets that wait for credits")
	}
	came := 0
	c.Wait = func() {
		if _, ok := b.Recv(); ok {
			came++
		}
	}
	if _, err := a.Path(b.GID(), 0); err != nil || came == 0 {
		t.Errorf("after %d packets were received: %v, want a path", came, err)
	}

	fill()
	if err := b.Send(global(b, a.GID(), c.routers[0].Port(2).State().LID, 9, 8)); err != nil {
		t.Fatal(err)
	}
	c.Settle()
	if a.Pending() > 0 {
		t.Error("the router has an answer, want it behind packets that wait for credits")
	}
	for _, ok := b.Recv(); ok; _, ok = b.Recv() {
		came++
		c.Settle()
	}
	if a.Pending() != 1 || came != sent {
		t.Errorf("%d packets came to one port and %d to the other, want 1 and %d", a.Pending(), came, sent)
	}
}
