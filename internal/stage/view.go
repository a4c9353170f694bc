package stage

import (
	"fmt"
	"strings"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/verbs"
)

// View is all that there is to see between two steps. Its names are those of JSON. Times are in nanoseconds since the play
// began, and -1 where there is none.
type View struct {
	Step     int          `json:"step"`
	Now      int64        `json:"now"`
	Over     bool         `json:"over"`
	Cut      bool         `json:"cut"`
	Settings Settings     `json:"settings"`
	Link     string       `json:"link"` // the play as the fragment of a URL
	Hosts    [2]HostView  `json:"hosts"`
	Packets  []PacketView `json:"packets"` // the latest, and all that are under way
	Earlier  int          `json:"earlier"` // how many packets Packets leaves out
	Log      []Entry      `json:"log"`     // of the latest step, and of decisions since
}

// HostView is a host.
type HostView struct {
	Name     string       `json:"name"`
	Addr     string       `json:"addr"`
	QPN      string       `json:"qpn"` // empty: there is no QP
	State    string       `json:"state"`
	Sends    []SendView   `json:"sends"`
	Receives []RecvView   `json:"receives"`
	CQ       []CQEView    `json:"cq"`   // wait for a poll
	Done     []CQEView    `json:"done"` // the latest that were polled
	PSNs     PSNView      `json:"psns"`
	Flight   []FlightView `json:"flight"`
	Timers   []TimerView  `json:"timers"`
	Regions  []RegionView `json:"regions"`
	CM       string       `json:"cm,omitempty"` // state of the connection
	ToPoll   int64        `json:"toPoll"`
}

// SendView is a work request in a send queue.
type SendView struct {
	ID      uint64 `json:"id"`
	Op      string `json:"op"`
	Bytes   int    `json:"bytes"`
	First   int    `json:"first"` // PSN
	Packets int    `json:"packets"`
	Sent    int    `json:"sent"`
	Acked   int    `json:"acked"`
}

// RecvView is a work request in a receive queue.
type RecvView struct {
	ID    uint64 `json:"id"`
	Bytes int    `json:"bytes"`
	Got   int    `json:"got"`   // bytes of the message under way
	InUse bool   `json:"inUse"` // taken by a message
}

// CQEView is an entry of a CQ.
type CQEView struct {
	ID     uint64 `json:"id"`
	Op     string `json:"op"`
	Status int    `json:"status"`
	Name   string `json:"name"`
	Bytes  int    `json:"bytes"`
	Cause  string `json:"cause,omitempty"`
}

// PSNView is what an end numbers and expects.
type PSNView struct {
	Una      int    `json:"una"`
	Next     int    `json:"next"`
	New      int    `json:"new"`
	Window   uint64 `json:"window"`
	RTT      int64  `json:"rtt"` // 0: unknown
	Retries  int    `json:"retries"`
	RNR      int    `json:"rnr"`
	Credits  int64  `json:"credits"` // -1: no limit
	Expected int    `json:"expected"`
	MSN      int    `json:"msn"`
	Refused  bool   `json:"refused"`
	Held     []int  `json:"held"`
	SACKs    bool   `json:"sacks"`
}

// FlightView is a run of packets that are not acknowledged.
type FlightView struct {
	First    int  `json:"first"` // PSN
	Packets  int  `json:"packets"`
	Lost     bool `json:"lost"`
	Arrived  bool `json:"arrived"`
	Repeated bool `json:"repeated"`
}

// TimerView is a timer that runs. Its names are ack, probe, rnr, pace, loss and gap.
type TimerView struct {
	Name string `json:"name"`
	At   int64  `json:"at"`
}

// RegionView is a region.
type RegionView struct {
	Use    string `json:"use"`
	Addr   uint64 `json:"-"`
	Hex    string `json:"addr"`
	LKey   string `json:"lkey"`
	RKey   string `json:"rkey"`
	Access string `json:"access"`
	Data   []byte `json:"data"` // base64
}

// PacketView is a packet, in short.
type PacketView struct {
	N       int    `json:"n"`
	From    string `json:"from"`
	Sent    int64  `json:"sent"`
	Due     int64  `json:"due"`
	Ended   int64  `json:"ended"`
	Fate    Fate   `json:"fate"`
	CopyOf  int    `json:"copyOf,omitempty"`
	Delayed bool   `json:"delayed,omitempty"`
	Damaged bool   `json:"damaged,omitempty"`
	Kind    string `json:"kind"` // data, answer, trouble or manage
	Name    string `json:"name"`
	PSN     int    `json:"psn"`
	Bytes   int    `json:"bytes"` // of payload
	What    string `json:"what"`  // what its other headers say
	Again   bool   `json:"again,omitempty"`
}

const (
	viewPackets = 200
	viewDone    = 12
)

// View returns what there is to see.
func (s *Stage) View() View {
	v := View{Step: s.play.Steps, Now: int64(s.now), Over: s.over, Cut: s.cut, Settings: s.play.Settings, Link: s.play.Encode(), Packets: []PacketView{}, Log: []Entry{}}
	for i, n := range s.nodes() {
		v.Hosts[i] = n.view()
	}
	v.Earlier = max(0, len(s.packets)-viewPackets)
	for _, p := range s.packets[v.Earlier:] {
		v.Packets = append(v.Packets, viewPacket(p))
	}
	from := len(s.log)
	for from > 0 && s.log[from-1].Step == s.play.Steps {
		from--
	}
	v.Log = append(v.Log, s.log[from:]...)
	return v
}

// Log returns all that has happened.
func (s *Stage) Log() []Entry { return s.log }

func (n *node) view() HostView {
	v := HostView{Name: n.name, Addr: n.addr.String(), State: "", Sends: []SendView{}, Receives: []RecvView{}, CQ: []CQEView{}, Done: []CQEView{},
		Flight: []FlightView{}, Timers: []TimerView{}, Regions: []RegionView{}, ToPoll: timeOf(n.pollAt)}
	for _, r := range n.regions {
		if r.shown {
			v.Regions = append(v.Regions, RegionView{Use: r.use, Addr: r.mr.Addr(), Hex: fmt.Sprintf("%#x", r.mr.Addr()), LKey: r.mr.LKey().String(),
				RKey: r.mr.RKey().String(), Access: strings.ReplaceAll(r.mr.Access().String(), "ACCESS_", ""), Data: r.mr.Bytes()})
		}
	}
	for i := max(0, len(n.done)-viewDone); i < len(n.done); i++ {
		v.Done = append(v.Done, viewCQE(&n.done[i].WC))
	}
	if n.conn != nil {
		v.CM = n.conn.State().String()
	}
	v.PSNs.Held, v.PSNs.Credits = []int{}, -1
	if n.qp == nil {
		return v
	}
	l := n.look()
	v.QPN, v.State = n.qp.QPN().String(), stateName(l.State)
	for _, w := range l.Sends {
		v.Sends = append(v.Sends, SendView{w.ID, opName(w.Op), int(w.Length), int(w.First), int(w.Packets), int(w.Sent), int(w.Acked)})
	}
	if l.InUse {
		v.Receives = append(v.Receives, RecvView{ID: l.Receive, Got: int(l.Received), InUse: true})
	}
	for _, r := range l.Receives {
		v.Receives = append(v.Receives, RecvView{ID: r.ID, Bytes: int(r.Length)})
	}
	for i := range l.SendCQ {
		v.CQ = append(v.CQ, viewCQE(&l.SendCQ[i]))
	}
	v.PSNs = PSNView{Una: int(l.Una), Next: int(l.Nxt), New: int(l.Max), Window: l.Window, RTT: int64(l.RTT), Retries: int(l.Retries), RNR: int(l.RNRRetries),
		Credits: l.Credits, Expected: int(l.Expected), MSN: int(l.MSN), Refused: l.Refused, Held: []int{}, SACKs: l.PeerSACKs}
	for _, p := range l.Held {
		v.PSNs.Held = append(v.PSNs.Held, int(p))
	}
	for _, f := range l.Unacknowledged {
		v.Flight = append(v.Flight, FlightView{int(f.First), int(f.Packets), f.Lost, f.Arrived, f.Repeated})
	}
	waits := "pace"
	if l.Timers.Receiver {
		waits = "rnr"
	}
	for _, t := range []TimerView{{"ack", timeOf(l.Timers.Ack)}, {"probe", timeOf(l.Timers.Probe)}, {waits, timeOf(l.Timers.Wait)},
		{"loss", timeOf(l.Timers.Loss)}, {"gap", timeOf(l.GapTimer)}} {
		if t.At >= 0 {
			v.Timers = append(v.Timers, t)
		}
	}
	return v
}

func timeOf(t time.Duration) int64 {
	if t == never {
		return -1
	}
	return int64(t)
}

func viewCQE(wc *verbs.WC) CQEView {
	v := CQEView{ID: wc.ID, Op: wcName(wc.Op), Status: int(wc.Status), Name: wc.Status.String(), Bytes: int(wc.ByteLen)}
	if wc.Cause != nil {
		v.Cause = wc.Cause.Error()
	}
	return v
}

// viewPacket describes a packet. Its bytes are as they were sent, or damaged.
func viewPacket(p *Packet) PacketView {
	v := PacketView{N: p.N, From: p.From.name, Sent: int64(p.Sent), Due: int64(p.Due), Ended: int64(p.Ended), Fate: p.Fate, CopyOf: p.CopyOf,
		Delayed: p.Delayed, Damaged: p.Damaged}
	var w wire.Packet
	if err := w.Decode(p.data); err != nil {
		v.Kind, v.Name = "trouble", err.Error()
		return v
	}
	v.Kind, v.Name, v.PSN, v.Bytes = "data", strings.TrimPrefix(w.Opcode.String(), "RC "), int(w.PSN), len(w.Payload)
	h := w.Opcode.Headers()
	var what []string
	say := func(format string, args ...any) { what = append(what, fmt.Sprintf(format, args...)) }
	switch {
	case h&wire.HeaderDETH != 0:
		v.Kind = "manage"
		if m, err := wire.DecodeMADHeader(w.Payload); err == nil {
			if attr, ok := m.CM(); ok {
				v.Name = "CM " + attr.String()
			}
		}
	case h&wire.HeaderAETH != 0:
		v.Kind = "answer"
		say("%v, MSN %d", w.AETH.Syndrome, w.AETH.MSN)
		if isNAK(w.AETH.Syndrome) {
			v.Kind = "trouble"
		}
	case w.Opcode.IsResponse():
		v.Kind = "answer"
	}
	if h&wire.HeaderRETH != 0 {
		say("address %#x, rkey 0x%08x, %d bytes", w.RETH.VA, w.RETH.RKey, w.RETH.Length)
	}
	if h&wire.HeaderAtomicETH != 0 {
		say("address %#x", w.AtomicETH.VA)
	}
	if h&wire.HeaderAtomicAckETH != 0 {
		say("value before: %d", w.AtomicAckETH.Orig)
	}
	if w.AckReq {
		say("asks for an ACK")
	}
	v.What = strings.Join(what, "; ")
	v.Again = p.again
	return v
}

// cameBefore reports whether an earlier request packet of the same end has the PSN of p, which is the latest packet.
func (s *Stage) cameBefore(p *Packet) bool {
	var w, o wire.Packet
	isRequest := func(p *Packet, w *wire.Packet) bool {
		return w.Decode(p.data) == nil && w.Opcode.IsRequest() && w.Opcode.Headers()&wire.HeaderDETH == 0
	}
	if !isRequest(p, &w) {
		return false
	}
	for _, q := range s.packets[max(0, p.N-1-viewPackets) : p.N-1] {
		if q.From == p.From && q.CopyOf == 0 && isRequest(q, &o) && o.PSN == w.PSN {
			return true
		}
	}
	return false
}

func isNAK(s wire.Syndrome) bool { return s.Kind() != wire.KindACK }
