//go:build !adverb_portable

package soft_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/adverb-rdma/adverb/verbs"
)

// envMember makes the test binary a member: a process with a device of the name that is the
// variable's value. It takes orders from standard input and reports on standard output. Each is a
// line of JSON.
const envMember = "ADVERB_TEST_MEMBER"

func init() {
	if name := os.Getenv(envMember); name != "" {
		newMemberProcess(name).run()
		os.Exit(0)
	}
}

// order is an order to a member. The first order is to connect.
type order struct {
	Peers   []address // all members; a member exchanges messages with all but itself
	Self    int
	Retry   verbs.Retry
	Group   verbs.GID // a multicast group to attach to and to send to, if not zero
	Stop    bool      // send a last message to each peer, and no more
	Quit    bool      // end: everybody is done
	Connect bool
	Await   *progress `json:",omitempty"` // progress to be reported as Reached
	GSI     *gsiOrder `json:",omitempty"` // see process_gsi_linux_test.go

	Hostile  int    // a member, counted from 1, whose messages may be anything
	Scribble uint64 // a seed: scribble over all lanes until the end
}

// progress is how many messages a member is to receive from now on, over RC and from the group,
// before it reports Reached.
type progress struct {
	Number    int // reported as Reached
	RC, Mcast uint64
}

// address says how to reach a member. It has an RC QP for each other member, and a UD QP.
type address struct {
	GID verbs.GID
	RC  []verbs.QPN
	UD  verbs.QPN
}

// report is a member's report to the test.
type report struct {
	Address *address   `json:",omitempty"`
	Started bool       `json:",omitempty"` // messages of each peer have arrived
	Reached int        `json:",omitempty"` // the number of the progress that was asked for
	Done    bool       `json:",omitempty"` // all has been sent and received, of peers that have not failed
	NoGroup string     `json:",omitempty"` // why there is no multicast
	Failed  *failure   `json:",omitempty"`
	Wrong   string     `json:",omitempty"` // events that ought never to happen
	Count   *count     `json:",omitempty"` // the last report
	GSI     *gsiReport `json:",omitempty"` // from a process with a QP1
}

type failure struct {
	Peer   int
	Status string
}

type count struct {
	RCSent, RCReceived, UDAnswered, UDRepeated, McastSent, McastReceived uint64
}

// These limit the messages of a member.
const (
	maxPeers   = 16
	rcDepth    = 4
	rcRecv     = 2 * rcDepth
	rcMax      = 9000 // bytes: three packets
	udMax      = 1024
	udSend     = 256
	udRecv     = 512
	udPatience = 100 * time.Millisecond // until a request is sent again
	udPace     = 2 * time.Millisecond   // between requests to one peer
	mcastPace  = 5 * time.Millisecond
	testQKey   = 0x1234
)

// memberProcess is the member itself. One goroutine does everything, and another reads orders.
type memberProcess struct {
	pd     *verbs.PD
	cq     *verbs.CQ
	gid    verbs.GID
	memory *verbs.MR
	used   int // bytes of memory
	rc     []*rcPeer
	ud     udEnd
	orders chan order
	out    *json.Encoder
	count  count

	goal   count // to be reported as Reached
	number int   // of the goal; 0 is none

	self, hostile                    int
	began, started, stop, done, quit bool
}

// rcPeer is a connection to another member.
type rcPeer struct {
	index      int
	qp         *verbs.QP
	out, in    int // offsets in memory of send and receive slots
	sent, busy uint64
	got        uint64
	lastSent   bool
	lastGot    bool
	failed     bool

	// The UD request under way to the same member.
	to      verbs.QPN
	request uint64
	askedAt time.Time
	waiting bool
}

type udEnd struct {
	qp         *verbs.QP
	ah, group  *verbs.AH
	out, in    int
	next, busy int // of the send ring
	mcastAt    time.Time
	mcast      uint64
	mcastFrom  [maxPeers]uint64 // the next number expected
}

func newMemberProcess(device string) *memberProcess {
	dev := must(verbs.Open(device))
	m := &memberProcess{orders: make(chan order, 16), out: json.NewEncoder(os.Stdout)}
	m.pd, m.cq, m.gid = must(dev.AllocPD()), must(dev.CreateCQ(8192)), must(dev.GID(1, 0)).GID
	m.memory = must(m.pd.AllocMR(maxPeers*(rcDepth+rcRecv)*rcMax+(udSend+udRecv)*(udMax+verbs.GRHSize), verbs.AccessLocalWrite))
	cap := verbs.QPCap{MaxSendWR: rcDepth, MaxRecvWR: rcRecv, MaxSendSGE: 1, MaxRecvSGE: 1}
	addr := address{GID: m.gid}
	for i := range maxPeers {
		p := &rcPeer{index: i, out: m.room(rcDepth * rcMax), in: m.room(rcRecv * rcMax)}
		p.qp = must(m.pd.CreateQP(verbs.QPInitAttr{SendCQ: m.cq, RecvCQ: m.cq, Cap: cap}))
		check(p.qp.Init(1, 0))
		m.rc = append(m.rc, p)
		addr.RC = append(addr.RC, p.qp.QPN())
	}
	u := &m.ud
	u.out, u.in = m.room(udSend*udMax), m.room(udRecv*(udMax+verbs.GRHSize))
	u.qp = must(m.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeUD, SendCQ: m.cq, RecvCQ: m.cq,
		Cap: verbs.QPCap{MaxSendWR: udSend, MaxRecvWR: udRecv, MaxSendSGE: 1, MaxRecvSGE: 1}}))
	check(u.qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: testQKey},
		verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey))
	for slot := range udRecv {
		m.postUD(slot)
	}
	check(u.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTR}, verbs.MaskState))
	check(u.qp.Modify(&verbs.QPAttr{State: verbs.QPStateRTS}, verbs.MaskState|verbs.MaskSQPSN))
	u.ah = must(m.pd.CreateAH(verbs.AHAttr{DGID: m.gid}))
	addr.UD = u.qp.QPN()
	go m.readOrders()
	m.say(report{Address: &addr})
	return m
}

func (m *memberProcess) room(n int) int {
	at := m.used
	m.used += n
	return at
}

func (m *memberProcess) say(r report) { check(m.out.Encode(r)) }

func (m *memberProcess) wrong(format string, args ...any) {
	m.say(report{Wrong: fmt.Sprintf(format, args...)})
}

func (m *memberProcess) readOrders() {
	d := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var o order
		if err := d.Decode(&o); err != nil {
			if err != io.EOF {
				fmt.Fprintln(os.Stderr, err)
			}
			os.Exit(3) // the test is gone
		}
		m.orders <- o
	}
}

// A work request ID says of which kind the work request is, for which peer, and in which slot.
const (
	idRCSend = iota
	idRCRecv
	idUDSend
	idUDRecv
)

func wrID(kind, peer, slot int) uint64 { return uint64(kind)<<32 | uint64(peer)<<16 | uint64(slot) }

func (m *memberProcess) run() {
	wcs := make([]verbs.WC, 64)
	for !m.quit {
		select {
		case o := <-m.orders:
			m.follow(o)
			continue
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), udPace)
		n, err := m.cq.Wait(ctx, wcs)
		cancel()
		if err != nil && ctx.Err() == nil {
			check(err)
		}
		for i := range wcs[:n] {
			m.complete(&wcs[i])
		}
		if m.began {
			m.ask(time.Now())
			m.look()
		}
	}
	m.say(report{Count: &m.count})
}

func (m *memberProcess) follow(o order) {
	switch {
	case o.Connect:
		m.connect(o)
	case o.Await != nil:
		m.number = o.Await.Number
		m.goal = count{RCReceived: m.count.RCReceived + o.Await.RC, McastReceived: m.count.McastReceived + o.Await.Mcast}
	case o.Stop:
		m.stop = true
		for _, p := range m.rc {
			m.sendRC(p)
		}
	case o.Scribble != 0:
		go scribble(o.Scribble)
	case o.Quit:
		m.quit = true
	}
}

func (m *memberProcess) connect(o order) {
	m.self, m.hostile = o.Self, o.Hostile-1
	var peers []*rcPeer
	for i, peer := range o.Peers {
		if i == m.self {
			continue
		}
		p := m.rc[i]
		p.to = peer.UD
		// Each pair has PSNs of its own. So a packet that comes to the wrong QP does not fit there.
		psn := func(from, to int) verbs.PSN { return verbs.PSN(from<<12 | to<<4) }
		check(p.qp.RTR(verbs.Peer{QPN: peer.RC[m.self], PSN: psn(i, m.self), GID: peer.GID}, verbs.Path{}))
		check(p.qp.RTS(psn(m.self, i), o.Retry))
		for slot := range rcRecv {
			m.postRC(p, slot)
		}
		peers = append(peers, p)
	}
	m.rc = peers
	if !o.Group.IsZero() {
		if err := m.ud.qp.AttachMcast(o.Group); err != nil {
			m.say(report{NoGroup: err.Error()})
			return
		}
		m.ud.group = must(m.pd.CreateAH(verbs.AHAttr{DGID: o.Group}))
	}
	m.began = true
	for _, p := range m.rc {
		m.sendRC(p)
	}
}

func (m *memberProcess) postRC(p *rcPeer, slot int) {
	must(p.qp.PostRecv([]verbs.RecvWR{{ID: wrID(idRCRecv, p.index, slot), SGList: []verbs.SGE{m.memory.SGE(p.in+slot*rcMax, rcMax)}}}))
}

func (m *memberProcess) postUD(slot int) {
	const size = udMax + verbs.GRHSize
	must(m.ud.qp.PostRecv([]verbs.RecvWR{{ID: wrID(idUDRecv, 0, slot), SGList: []verbs.SGE{m.memory.SGE(m.ud.in+slot*size, size)}}}))
}

// sendRC fills the send queue.
func (m *memberProcess) sendRC(p *rcPeer) {
	for !p.failed && !p.lastSent && p.busy < rcDepth {
		slot := int(p.sent % rcDepth)
		p.lastSent = m.stop
		kind := kindRC
		if p.lastSent {
			kind = kindRCLast
		}
		at := p.out + slot*rcMax
		n := text{kind, m.self, p.index, p.sent}.write(m.memory.Bytes()[at:], rcMax)
		must(p.qp.PostSend([]verbs.SendWR{{ID: wrID(idRCSend, p.index, slot), Op: verbs.OpSend, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{m.memory.SGE(at, n)}}}))
		p.sent++
		p.busy++
	}
}

// sendUD sends a datagram. If the send queue is full, it does nothing.
func (m *memberProcess) sendUD(t text, ah *verbs.AH, to verbs.QPN) {
	u := &m.ud
	if u.busy == udSend {
		return
	}
	at := u.out + u.next*udMax
	n := t.write(m.memory.Bytes()[at:], udMax)
	must(u.qp.PostSend([]verbs.SendWR{{ID: wrID(idUDSend, 0, u.next), Op: verbs.OpSend, Flags: verbs.SendSignaled, AH: ah,
		RemoteQPN: to, RemoteQKey: testQKey, SGList: []verbs.SGE{m.memory.SGE(at, n)}}}))
	u.next = (u.next + 1) % udSend
	u.busy++
}

// ask sends the UD requests that are due. Each peer gets one at a time, again and again until it
// answers.
func (m *memberProcess) ask(now time.Time) {
	for _, p := range m.rc {
		switch {
		case p.failed: // orders are not to be sent again and again
			continue
		case !p.waiting && !m.stop && now.Sub(p.askedAt) >= udPace:
			p.request++
			p.waiting = true
		case p.waiting && now.Sub(p.askedAt) >= udPatience:
			m.count.UDRepeated++
		default:
			continue
		}
		if p.waiting {
			p.askedAt = now
			m.sendUD(text{kindRequest, m.self, p.index, p.request}, m.ud.ah, p.to)
		}
	}
	if m.ud.group != nil && !m.stop && now.Sub(m.ud.mcastAt) >= mcastPace {
		m.ud.mcastAt = now
		m.sendUD(text{kindGroup, m.self, 0, m.ud.mcast}, m.ud.group, 0xffffff)
		m.ud.mcast++
		m.count.McastSent++
	}
}

// look reports Started, Reached and Done once this member is so far.
func (m *memberProcess) look() {
	started, done := true, m.stop
	for _, p := range m.rc {
		if p.failed {
			continue
		}
		started = started && p.got > 0 && p.request > 1
		done = done && p.lastGot && p.lastSent && p.busy == 0 && !p.waiting
	}
	if started && !m.started {
		m.started = true
		m.say(report{Started: true})
	}
	if m.number != 0 && m.count.RCReceived >= m.goal.RCReceived && m.count.McastReceived >= m.goal.McastReceived {
		m.say(report{Reached: m.number})
		m.number = 0
	}
	if done && !m.done {
		m.done = true
		m.say(report{Done: true})
	}
}

func (m *memberProcess) peer(index int) *rcPeer {
	for _, p := range m.rc {
		if p.index == index {
			return p
		}
	}
	return nil
}

func (m *memberProcess) complete(wc *verbs.WC) {
	kind, peer, slot := int(wc.ID>>32), int(wc.ID>>16&0xffff), int(wc.ID&0xffff)
	p := m.peer(peer)
	if wc.Status != verbs.WCSuccess {
		switch {
		case kind == idUDSend || kind == idUDRecv:
			m.wrong("UD: %v", wc.Err())
		case !p.failed:
			p.failed = true
			m.say(report{Failed: &failure{peer, wc.Status.String()}})
		}
		return
	}
	switch kind {
	case idRCSend:
		p.busy--
		m.count.RCSent++
		m.sendRC(p)
	case idRCRecv:
		m.gotRC(p, slot, int(wc.ByteLen))
	case idUDSend:
		m.ud.busy--
	case idUDRecv:
		m.gotUD(wc, slot)
	}
}

func (m *memberProcess) gotRC(p *rcPeer, slot, n int) {
	t, err := readText(m.memory.Bytes()[p.in+slot*rcMax:][:n], rcMax)
	switch {
	case p.index == m.hostile:
	case err != nil:
		m.wrong("RC message %d of %d: %v", p.got, p.index, err)
	case t.from != p.index || t.to != m.self || t.n != p.got || p.lastGot || t.kind != kindRC && t.kind != kindRCLast:
		m.wrong("RC message %+v, want number %d from %d to %d", t, p.got, p.index, m.self)
	}
	p.lastGot = t.kind == kindRCLast
	p.got++
	m.count.RCReceived++
	m.postRC(p, slot)
}

func (m *memberProcess) gotUD(wc *verbs.WC, slot int) {
	const size = udMax + verbs.GRHSize
	t, err := readText(m.memory.Bytes()[m.ud.in+slot*size:][:wc.ByteLen][verbs.GRHSize:], udMax)
	m.postUD(slot)
	var p *rcPeer
	if err == nil {
		p = m.peer(t.from)
	}
	switch {
	case err != nil:
		m.wrong("datagram of QP %v: %v", wc.SrcQPN, err)
	case !m.began, p == nil && t.from == m.self && t.kind == kindGroup: // a member receives its own messages to the group too
	case p == nil || wc.SrcQPN != p.to || t.to != m.self && t.kind != kindGroup:
		m.wrong("datagram %+v from QP %v to %d", t, wc.SrcQPN, m.self)
	case t.kind == kindRequest:
		m.sendUD(text{kindAnswer, m.self, t.from, t.n}, m.ud.ah, p.to)
	case t.kind == kindAnswer:
		if p.waiting && t.n == p.request {
			p.waiting = false
			m.count.UDAnswered++
		}
	case t.kind == kindGroup:
		if t.n < m.ud.mcastFrom[t.from] {
			m.wrong("multicast %+v came again, or late: next is %d", t, m.ud.mcastFrom[t.from])
		}
		m.ud.mcastFrom[t.from] = t.n + 1
		m.count.McastReceived++
	}
}

// text is the contents of a message. They determine all its bytes, and its length.
type text struct {
	kind     int
	from, to int
	n        uint64
}

const (
	kindRC = 1 + iota
	kindRCLast
	kindRequest
	kindAnswer
	kindGroup

	textHeader = 16
)

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// write writes the message, at most limit bytes, and returns its length.
func (t text) write(b []byte, limit int) int {
	b[0], b[1] = byte(t.kind), 0xad
	binary.BigEndian.PutUint16(b[2:], 0xbeef)
	binary.BigEndian.PutUint16(b[4:], uint16(t.from))
	binary.BigEndian.PutUint16(b[6:], uint16(t.to))
	binary.BigEndian.PutUint64(b[8:], t.n)
	x := mix(t.n + uint64(t.kind)<<56 + uint64(t.from)<<48 + uint64(t.to)<<40)
	n := textHeader + int(x%uint64(limit-textHeader+1))
	for i := textHeader; i < n; i++ {
		if i%8 == 0 {
			x = mix(x + 0x9e3779b97f4a7c15)
		}
		b[i] = byte(x >> (8 * (i % 8)))
	}
	return n
}

// readText reads a message and checks every byte of it.
func readText(b []byte, limit int) (text, error) {
	if len(b) < textHeader {
		return text{}, fmt.Errorf("%d bytes", len(b))
	}
	t := text{
		kind: int(b[0]), from: int(binary.BigEndian.Uint16(b[4:])), to: int(binary.BigEndian.Uint16(b[6:])),
		n: binary.BigEndian.Uint64(b[8:]),
	}
	want := make([]byte, limit)
	if n := t.write(want, limit); !bytes.Equal(b, want[:n]) {
		return t, fmt.Errorf("%+v: %d bytes, which are not the %d that were sent", t, len(b), n)
	}
	return t, nil
}
