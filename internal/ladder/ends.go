package ladder

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// cmIDs are the numbers by which a message of the connection manager names its sender.
type cmIDs struct {
	attr          wire.CMAttr
	local, remote uint32 // communication IDs
	qpn           uint32 // of the sender; 0 if the message does not say it
}

const noQPN = 1 << 24 // the end for the QPs of an address that are not known

// endID names an end: an address or, where packets go from an address to itself, a QP or a TCP port of it.
type endID struct {
	addr netip.Addr
	qpn  uint32
	port uint16 // of iWARP
}

// ends finds out from where to where each packet goes.
type ends struct {
	ladder *Ladder
	index  map[endID]int
	self   map[netip.Addr]bool     // addresses that send to themselves
	peers  map[endID]uint32        // of such an address: the QP at the other end of a QP
	comms  map[commID]uint32       // the QP for which a communication ID stands
	pairs  map[commID]uint32       // the peer's communication ID
	dests  map[netip.Addr][]uint32 // the QPs that packets to itself go to, up to three
}

type commID struct {
	addr netip.Addr
	id   uint32
}

// findEnds sets From and To of all records.
func findEnds(l *Ladder, all []record) {
	e := &ends{l, map[endID]int{}, map[netip.Addr]bool{}, map[endID]uint32{}, map[commID]uint32{}, map[commID]uint32{}, map[netip.Addr][]uint32{}}
	for i := range all {
		if r := &all[i]; !r.twin && r.src == r.dst {
			e.learn(r)
		}
	}
	e.meet()
	for i := range all {
		r := &all[i]
		if r.twin {
			continue
		}
		from, to := endID{addr: r.src}, endID{addr: r.dst}
		switch {
		case !e.self[r.src] || r.src != r.dst:
		case r.isIWARP():
			from.port, to.port = r.srcPort, r.dstPort
		default:
			from.qpn, to.qpn = e.between(r)
		}
		r.From, r.To = e.end(from), e.end(to)
	}
	e.name()
}

// learn takes from a packet between two QPs of one address which QPs there are.
func (e *ends) learn(r *record) {
	e.self[r.src] = true
	if r.isIWARP() {
		return
	}
	switch id := (commID{r.src, r.cm.local}); r.cm.attr {
	case wire.CMREQ:
		e.comms[id] = r.cm.qpn
	case wire.CMREP:
		e.comms[id] = r.cm.qpn
		e.pairs[id], e.pairs[commID{r.src, r.cm.remote}] = r.cm.remote, r.cm.local
	}
	if r.QPN <= 1 {
		return
	}
	if list := e.dests[r.src]; len(list) < 3 && !slices.Contains(list, r.QPN) { // only whether there are two matters
		e.dests[r.src] = append(list, r.QPN)
	}
}

// meet joins the QPs that talk to each other: as the connection manager says, or because there are two in all.
func (e *ends) meet() {
	for id, other := range e.pairs {
		a, b := e.comms[id], e.comms[commID{id.addr, other}]
		if a != 0 && b != 0 {
			e.peers[endID{addr: id.addr, qpn: a}], e.peers[endID{addr: id.addr, qpn: b}] = b, a
		}
	}
	for addr, list := range e.dests {
		if len(list) != 2 {
			continue
		}
		a, b := endID{addr: addr, qpn: list[0]}, endID{addr: addr, qpn: list[1]}
		if e.peers[a] == 0 && e.peers[b] == 0 {
			e.peers[a], e.peers[b] = b.qpn, a.qpn
		}
	}
}

// between returns the QPs between which a packet of an address to itself goes, noQPN for one that is not known.
func (e *ends) between(r *record) (from, to uint32) {
	known := func(q uint32) uint32 {
		if q == 0 {
			return noQPN
		}
		return q
	}
	if r.QPN > 1 {
		if r.srcQPN > 1 {
			return r.srcQPN, r.QPN
		}
		return known(e.peers[endID{addr: r.src, qpn: r.QPN}]), r.QPN
	}
	from = e.comms[commID{r.src, r.cm.local}]
	to = e.comms[commID{r.src, r.cm.remote}]
	if from == 0 && to != 0 {
		from = e.peers[endID{addr: r.src, qpn: to}]
	}
	if to == 0 && from != 0 {
		to = e.peers[endID{addr: r.src, qpn: from}]
	}
	return known(from), known(to)
}

// end returns the index of an end. Ends stand in the order in which they first send or are sent to.
func (e *ends) end(id endID) int {
	i, ok := e.index[id]
	if !ok {
		i = len(e.ladder.Ends)
		e.index[id] = i
		e.ladder.Ends = append(e.ladder.Ends, End{Addr: id.addr, QPN: id.qpn, Port: id.port})
	}
	return i
}

// name gives each end a letter and its address.
func (e *ends) name() {
	for i := range e.ladder.Ends {
		end := &e.ladder.Ends[i]
		name := "unknown address"
		if end.Addr.IsValid() {
			name = capture.AddrString(end.Addr)
		}
		switch {
		case end.QPN == noQPN:
			end.QPN, name = 0, name+", other QPs"
		case end.Port != 0:
			name += fmt.Sprintf(", port %d", end.Port)
		case end.QPN != 0:
			name += fmt.Sprintf(", QP 0x%06x", end.QPN)
		}
		end.Name = name
	}
}

// Letter returns the short name of an end: A to Z, AA and on.
func Letter(i int) string {
	var b strings.Builder
	if i >= 26 {
		b.WriteString(Letter(i/26 - 1))
	}
	b.WriteByte(byte('A' + i%26))
	return b.String()
}
