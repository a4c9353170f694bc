package diagnose

import (
	"fmt"
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Limits of the state that is kept.
const (
	maxFlows    = 4096    // queue pairs, one direction each
	minRing     = 64      // packets of a flow that are remembered: a power of 2
	maxRing     = 2048    // at most
	maxRingSum  = 1 << 20 // of all flows
	maxGaps     = 32      // of a flow
	maxPairs    = 1 << 14 // of host addresses
	maxPerHosts = 256     // flows between two hosts among which a response finds its own

	maxSpan = 1 << 23 // PSNs of one READ, by the specification
	jump    = 1 << 16 // a step in PSNs that is a new beginning, and no gap
	longAgo = 1024    // PSNs before the first open one, which nobody repeats
)

type flowKey struct {
	src, dst netip.Addr
	qpn      uint32 // destination
}

// A flow is the packets from one host to one queue pair of another: its peer's requests, and its peer's responses to
// its own.
type flow struct {
	key         flowKey
	kind        capture.Version
	hosts       *hosts
	peer        *flow // the other direction of the same connection, if known
	conn        *conn
	newer       *flow // of the list by last use
	older       *flow
	places      [numRules]*Finding
	first, last int64 // times
	gone        bool  // forgotten, but for its findings
	explained   bool  // another finding says why its requests are not answered

	packets, requests, responses, repeats int
	service                               wire.Service
	pKey                                  uint16
	srcPort                               uint16
	srcMAC, dstMAC                        [6]byte // 0 where the capture has none
	dscps                                 uint64  // of its requests, a bit for each
	pcps                                  uint8   // the same, of their VLAN tags
	maxPayload                            int     // of a request or a READ's response
	pathMTU                               int     // that packets in the middle of a message show; 0 if none was there

	// Of the requests.
	started   bool
	began     wire.PSN // the first that was captured, and when
	beganAt   int64
	loose     bool // a READ of unknown length was last: the next PSN is not known
	nxt       wire.PSN
	una       wire.PSN // the first that is not acknowledged
	prev      wire.PSN // of the latest request
	ulpKnown  bool     // the first messages have told which protocol it carries
	inMessage bool     // the latest new request does not end its message
	flushed   bool     // that was a FLUSH with the ICRC of the specification: one as Linux wants it may come behind
	ring      []sent
	gaps      []gap
	fills     [16]fill // the latest packets that came after a NAK for them
	fill      int
	cause     cause // of the repeats under way
	nakPSN    wire.PSN
	nakFrame  int // of the latest NAK for a sequence error
	nakSame   int // NAKs in a row for the same PSN
	rnrPSN    wire.PSN
	rnrFrame  int
	rnrSame   int
	rnrMost   int
	rnrTimer  uint8
	rnrLast   bool // the latest answer was an RNR NAK
	sackPSN   wire.PSN
	sackFrame int
	sackGaps  int // selective acknowledgements that named a missing packet
	gapFrame  int // of the latest response to a READ before which others are missing

	// Repeats after a timeout, which an answer has ended: losses, unless a second answer shows that both copies arrived.
	ended     bool
	endedPSN  wire.PSN
	endedAt   []int // frames
	endedWait int64

	// Since the latest answer.
	silentTries    int
	silentFrames   []int
	silentPSN      wire.PSN
	silentInterval int64
	silentFirst    int64
	silentLast     int64
	silentLate     bool  // the receiver's own capture has all copies
	rtt            int64 // the least time from a request to its acknowledgement; 0 is not known
	silentLen      int

	vain       int // repeats of what had been answered, since the latest answer
	vainFirst  int64
	vainFrames []int

	// Answers that are for none of its requests, while no request has been answered.
	stray       int // in a row with the same PSN
	strayPSN    wire.PSN
	strayNAK    bool
	strayFlow   *flow
	strayFrames []int
	strayTo     *flow // on which the latest answer of this one was counted so

	answers      int
	answered     int // the longest payload of a request that was acknowledged
	lastAnswer   int64
	nakked       bool // a NAK ended it
	disconnected bool
	peerLeft     bool     // the other end has disconnected
	leftFrame    int      // when requests were open
	leftLast     wire.PSN // the last of them
	leftOpen     int      // how many
	leftReq      int      // frame of the latest
	openReads    int
	lossNear     int // losses close behind another one
	lossLast     int // requests up to the latest one
	losses       int
	readTimes    []int64
	reqFrame     int // of the latest request
	reqAckAsked  bool

	respNxt   wire.PSN // the next response to a READ
	respOpen  bool     // the latest one does not end its message
	respFrame int      // its frame
	unasked   gap      // responses that are missing, and were not asked for again so far
	unaskedOf int      // how many; 0 is none
}

// sent is a request that was captured.
type sent struct {
	psn     wire.PSN
	op      wire.Opcode
	asks    bool // for an acknowledgement, or is answered in any case
	valid   bool
	respond bool // the first response has come
	cut     bool // its headers were not captured to their end
	frame   int
	payload int
	tries   int
	at      int64 // of the latest copy
	answer  int64 // when the packet was acknowledged, if an acknowledgement named its PSN
	va      uint64
	rkey    uint32
	length  uint32
	srqn    uint32 // of XRC
}

// A fill is a packet that came after it was missed.
type fill struct {
	psn   wire.PSN
	frame int
	nak   bool // the NAK was for this very PSN
}

// A gap is a range of PSNs that were not captured, though later ones were.
type gap struct {
	from, to wire.PSN // [from, to)
	at       int64
	frame    int
}

func (g gap) String() string {
	if g.to == g.from.Add(1) {
		return "PSN " + g.from.String()
	}
	return words("PSN %v to %v", g.from, g.to.Add(-1))
}

// A cause is why requests are repeated.
type cause uint8

const (
	byNothing cause = iota
	byNAK
	bySelective
	byRNR
	byReadGap
	byTimeout
	byNeedless // they had been answered
)

// where names the flow for people.
func (f *flow) where(n *names) string {
	s := fmt.Sprintf("%s, to QP 0x%06x", n.hosts(f.key.src, f.key.dst), f.key.qpn)
	if f.peer != nil {
		s += fmt.Sprintf(" from QP 0x%06x", f.peer.key.qpn)
	}
	return s
}

// filter is a display filter for the flow's packets.
func (f *flow) filter(n *names) string {
	return and(n.filterHosts(f.kind, f.key.src, f.key.dst), fmt.Sprintf("infiniband.bth.destqp == %#x", f.key.qpn))
}

// acknowledged reports whether the flow's requests are acknowledged.
func (f *flow) acknowledged() bool {
	return f.service == wire.ServiceRC || f.service == wire.ServiceXRC
}

// both is a display filter for the packets of both directions.
func (f *flow) both(n *names) string {
	one := f.filter(n)
	if f.peer == nil || one == "" {
		return one
	}
	return "(" + one + ") || (" + f.peer.filter(n) + ")"
}

func (f *flow) entry(psn wire.PSN) *sent {
	if len(f.ring) == 0 {
		return nil
	}
	e := &f.ring[int(psn)&(len(f.ring)-1)]
	if !e.valid || e.psn != psn {
		return nil
	}
	return e
}

// start returns the packet that opened the message of a PSN: that has the address and the key.
func (f *flow) start(psn wire.PSN) *sent {
	for range len(f.ring) {
		e := f.entry(psn)
		if e == nil {
			return nil
		}
		if e.op.StartsMessage() {
			return e
		}
		psn = psn.Add(-1)
	}
	return nil
}

// put remembers a request. The ring grows while more is open than it holds.
func (a *Analyzer) put(f *flow, s sent) *sent {
	if len(f.ring) == 0 {
		if a.ringSum+minRing > maxRingSum {
			return nil
		}
		f.ring = make([]sent, minRing)
		a.ringSum += minRing
	}
	slot := &f.ring[int(s.psn)&(len(f.ring)-1)]
	if slot.valid && slot.psn != s.psn && !slot.psn.Less(f.una) && len(f.ring) < maxRing && a.ringSum+len(f.ring) <= maxRingSum {
		a.ringSum += len(f.ring)
		old := f.ring
		f.ring = make([]sent, 2*len(old))
		for _, e := range old {
			if e.valid {
				f.ring[int(e.psn)&(len(f.ring)-1)] = e
			}
		}
		slot = &f.ring[int(s.psn)&(len(f.ring)-1)]
	}
	*slot = s
	return slot
}

// inGap takes a PSN out of the gaps, and returns the gap that it was in.
func (f *flow) inGap(psn wire.PSN) (g gap, ok bool) {
	for i := range f.gaps {
		g = f.gaps[i]
		if psn.Less(g.from) || !psn.Less(g.to) {
			continue
		}
		switch {
		case g.to.Diff(g.from) == 1:
			f.gaps = append(f.gaps[:i], f.gaps[i+1:]...)
		case psn == g.from:
			f.gaps[i].from = psn.Add(1)
		case psn == g.to.Add(-1):
			f.gaps[i].to = psn
		default:
			f.gaps[i].to = psn
			if len(f.gaps) < maxGaps {
				f.gaps = append(f.gaps, gap{psn.Add(1), g.to, g.at, g.frame})
			}
		}
		return g, true
	}
	return g, false
}

// mtu returns the path MTU, or 0 if it is not known.
func (f *flow) mtu() int {
	if f.pathMTU == 0 && f.peer != nil {
		return f.peer.pathMTU
	}
	return f.pathMTU
}

// readSpan returns how many PSNs the responses to a READ take. It is 0 if the path MTU is not known.
func (f *flow) readSpan(length uint32) int {
	const least = 256
	switch mtu := f.mtu(); {
	case length <= least:
		return 1
	case mtu == 0:
		return 0
	default:
		return int(min((uint64(length)+uint64(mtu)-1)/uint64(mtu), maxSpan))
	}
}
