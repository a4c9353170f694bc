package cm

import (
	"container/list"
	"net/netip"
	"time"

	"github.com/adverb-rdma/adverb/internal/crowd"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Config tells a machine of its device.
type Config struct {
	GUID uint64 // of the channel adapter

	// Communication IDs are IDBase with its lower IDBits bits replaced. An IDBits of 0 stands for 32.
	IDBase uint32
	IDBits int

	// Secret is random, and nobody else knows it. By the secret communication IDs are hard to
	// guess, and differ from those of an earlier machine, as the transaction IDs do.
	Secret [16]byte

	// LastWords has a MAD sent to a peer if this program dies before revoke is called. It may be nil.
	LastWords func(p Path, mad []byte) (revoke func())

	// HasPKey reports whether the port is in the partition of a P_Key. If it is nil, the port is in the default one alone.
	HasPKey func(pkey uint16) bool

	// ACKDelay is the code of the channel adapter's acknowledgement delay.
	ACKDelay uint8
}

// Machine is the CM of one device.
type Machine struct {
	cfg Config
	ids idSource

	conns    map[uint32]*Conn                    // by own communication ID
	byID     map[remoteKey]*Conn                 // by the peer's communication ID, from REQ or REP on
	byQPN    map[remoteKey]*Conn                 // by the peer's QPN, until time-wait
	sidrs    map[uint32]*SIDR                    // sent, by request ID
	sidrReqs map[remoteKey]*SIDR                 // received, by request ID without a GUID
	services map[uint64]map[netip.Addr]*Listener // by service ID and address; the zero address listens at any
	timers   timers
	retired  list.List // of records that are kept only for late messages of their peers, the oldest first
	attempts *attempts // requests and half-open connections, of all listeners

	out       []outgoing
	nextOut   int
	events    []Event
	nextEvent int

	stats Stats
}

// New returns a machine.
func New(cfg Config) *Machine {
	if cfg.IDBits <= 0 || cfg.IDBits > 32 {
		cfg.IDBits = 32
	}
	cfg.ACKDelay = min(cfg.ACKDelay, maxTimeoutCode)
	m := &Machine{
		cfg:      cfg,
		conns:    map[uint32]*Conn{},
		byID:     map[remoteKey]*Conn{},
		byQPN:    map[remoteKey]*Conn{},
		sidrs:    map[uint32]*SIDR{},
		sidrReqs: map[remoteKey]*SIDR{},
		services: map[uint64]map[netip.Addr]*Listener{},
		attempts: crowd.New[attempt](maxAttempts, maxAttemptsOfSource),
	}
	m.ids.init(cfg.Secret)
	return m
}

// message is a MAD that has come in.
type message struct {
	path Path
	tid  uint64
	attr wire.CMAttr
	data []byte // of the MAD behind its header
}

// Handle takes a MAD that QP1 has received at now. p.Local is the address that it was sent to. The
// machine does not keep mad.
func (m *Machine) Handle(now time.Duration, p Path, mad []byte) {
	h, err := wire.DecodeMADHeader(mad)
	attr, ok := h.CM()
	if err != nil || !ok || len(mad) != wire.MADSize {
		m.stats.Malformed++
		return
	}
	m.stats.Received.add(attr)
	handlers[attr](m, now, &message{path: p, tid: h.TID, attr: attr, data: mad[wire.MADHeaderSize:]})
}

var handlers = [...]func(*Machine, time.Duration, *message){
	wire.CMREQ:     (*Machine).handleREQ,
	wire.CMMRA:     (*Machine).handleMRA,
	wire.CMREJ:     (*Machine).handleREJ,
	wire.CMREP:     (*Machine).handleREP,
	wire.CMRTU:     (*Machine).handleRTU,
	wire.CMDREQ:    (*Machine).handleDREQ,
	wire.CMDREP:    (*Machine).handleDREP,
	wire.CMSIDRREQ: (*Machine).handleSIDRREQ,
	wire.CMSIDRREP: (*Machine).handleSIDRREP,
	wire.CMLAP:     (*Machine).handleLAP,
	wire.CMAPR:     (*Machine).handleAPR,
}

// match says whether a message's communication IDs are those of a connection.
type match uint8

const (
	matched match = iota
	unknown       // no connection has the pair of IDs
	foreign       // the connection that has them is with another peer
)

// find looks up the connection with a pair of IDs: its own, and its peer's.
func (m *Machine) find(own, peers uint32, p Path) (*Conn, match) {
	c := m.conns[own]
	switch {
	case c == nil:
		return nil, unknown
	case !sameAddr(c.path.Remote, p.Remote):
		return nil, foreign
	case c.remoteID != peers || peers == 0:
		return nil, unknown
	}
	return c, matched
}

// lookup is find for messages that are counted, and not answered, if they match nothing. It returns
// nil for those.
func (m *Machine) lookup(msg *message, own, peers uint32) *Conn {
	c, found := m.find(own, peers, msg.path)
	m.count(msg, found)
	return c
}

func (m *Machine) count(msg *message, found match) {
	switch found {
	case unknown:
		m.stats.Unknown.add(msg.attr)
	case foreign:
		m.stats.Foreign++
	}
}
