package verbs

import (
	"strconv"
	"strings"
	"time"
)

// AdaptiveRouting is how an RC QP uses a network whose switches choose a way for each packet by itself, so that
// packets overtake one another. Cards have the like as a setting of the device (mlx5: adaptive_routing_forced_en).
// The specification of RoCEv2 does not know adaptive routing. The packets that Send makes are within the
// specification: any peer takes them.
type AdaptiveRouting struct {
	// Send has each packet of a WRITE be a WRITE ONLY with an address of its own (RETH), and with the mark, so that
	// the peer can place it whenever it comes. The peer counts as many messages. WRITEs with immediate data, SENDs,
	// READs and atomics go as ever, and so does all that shared memory takes to a process of this host. A peer that
	// does not accept packets out of order takes each of them for a loss, unless it is an adverb.
	Send bool

	// Accept has packets that come before their turn wait for it, as far as 1023 packets ahead, and 512 packets at
	// most. A WRITE ONLY with the mark does not wait and does not count: it is placed at once, before packets that
	// were sent earlier have come. A program that watches memory must not conclude from a byte that those before it
	// are there. Completions, and messages that cost a receive, keep their order. A gap is not taken for a loss at
	// once, but only if it stays for Patience.
	Accept bool

	// Mark is the reserved bit of the BTH that packets of this form have set, or several such bits. The specification
	// reserves the lower seven bits of the ninth byte, which are 0x007f here, and the lower six of the fifth, which
	// are 0x3f00. The ICRC covers only the former. Vendors differ. 0 stands for DefaultRoutingMark.
	Mark uint16

	// Paths is the number of UDP source ports that the QP sends from: 1 to MaxRoutingPaths, and at most as many as
	// the device has, which is 4. 0 stands for 1. Switches with several equal ways (ECMP) choose by that port, so
	// one QP can fill several. It takes effect if the peer is an adverb. Requests and acknowledgements take the
	// paths in turn, as the acknowledgements that come back allow. A path that loses much is left, and tried now
	// and then. READ responses stay on one. With several paths packets overtake one another. The cost of that is
	// least with Send here and Accept there.
	Paths int

	// Patience is the time for which a gap is not reported (NAK, PSN sequence error). 0 stands for
	// DefaultRoutingPatience. It counts where the peer is no adverb: adverbs tell each other which packets
	// have come.
	Patience time.Duration
}

const (
	// DefaultRoutingMark is the uppermost of the reserved bits that the ICRC covers.
	DefaultRoutingMark = 0x40
	// DefaultRoutingPatience is longer than queues of most switches hold a packet back.
	DefaultRoutingPatience = time.Millisecond
	// MaxRoutingPaths is the most that Paths may be.
	MaxRoutingPaths = 8
	// MaxRoutingPatience is the longest Patience. The peer would repeat everything by its timeout.
	MaxRoutingPatience = 4 * time.Second

	reservedBits = 0x3f7f
)

// ProviderRouting is for implementers of providers: a ProviderQP implements it if it knows adaptive routing: see
// QP.SetAdaptiveRouting.
type ProviderRouting interface {
	// SetAdaptiveRouting is given valid values, with those that stand for defaults filled in. The QP is RC.
	SetAdaptiveRouting(r AdaptiveRouting) error
}

// SetAdaptiveRouting chooses how an RC QP uses a network that routes packets one by one. It may be called in any
// state. Send counts for work requests that are posted later, and Accept for packets that come later. RESET brings
// back the device's default: none of it, unless ADVERB_ROUTING names some.
//
// The error is ErrInvalid for a mark with bits that are not reserved, for Paths outside of 0 to MaxRoutingPaths and for a
// Patience outside of 0 to MaxRoutingPatience. It is ErrUnsupported for other QPs than RC, and for devices on
// which it is a setting of the card, or none.
func (qp *QP) SetAdaptiveRouting(r AdaptiveRouting) error {
	const verb = "set adaptive routing of"
	if err := qp.check(verb); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return wrap(verb, qp.name, err)
	}
	p, ok := qp.p.(ProviderRouting)
	switch {
	case qp.typ != QPTypeRC:
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "a %v QP does not repeat lost packets, so there is nothing that a gap could wait for", qp.typ))
	case !ok:
		return wrap(verb, qp.name, Errorf(ErrUnsupported, "the device leaves no choice; software RoCE devices do"))
	}
	return wrap(verb, qp.name, p.SetAdaptiveRouting(r))
}

// complete fills in the defaults, and checks the values.
func (r *AdaptiveRouting) complete() error {
	if r.Mark&^reservedBits != 0 {
		return invalidf("the mark %#x has bits with a meaning, such as those that ask for an acknowledgement (0x80) or tell of congestion (0xc000): "+
			"choose some of %#x, which are reserved", r.Mark, reservedBits)
	}
	if r.Patience < 0 || r.Patience > MaxRoutingPatience {
		return invalidf("a patience of %v: it is 0 to %v", r.Patience, MaxRoutingPatience)
	}
	if r.Paths < 0 || r.Paths > MaxRoutingPaths {
		return invalidf("%d paths: they are 1 to %d", r.Paths, MaxRoutingPaths)
	}
	if r.Paths == 0 {
		r.Paths = 1
	}
	if r.Mark == 0 {
		r.Mark = DefaultRoutingMark
	}
	if r.Patience == 0 {
		r.Patience = DefaultRoutingPatience
	}
	return nil
}

// ParseAdaptiveRouting reads the value of ADVERB_ROUTING and of command lines: "send", "accept", "mark=BITS",
// "paths=NUMBER" and "patience=DURATION", with commas, such as "send,accept,paths=4". The defaults are filled
// in. The error is ErrInvalid.
func ParseAdaptiveRouting(s string) (AdaptiveRouting, error) {
	var r AdaptiveRouting
	for word := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(word, "=")
		var err error
		switch {
		case word == "send":
			r.Send = true
		case word == "accept":
			r.Accept = true
		case name == "mark":
			var bits uint64
			bits, err = strconv.ParseUint(value, 0, 16)
			r.Mark = uint16(bits)
		case name == "paths":
			r.Paths, err = strconv.Atoi(value)
			if err == nil && r.Paths == 0 { // which complete would take for the default
				return r, invalidf("adaptive routing %q: paths are 1 to %d", word, MaxRoutingPaths)
			}
		case name == "patience":
			r.Patience, err = time.ParseDuration(value)
		default:
			return r, invalidf("adaptive routing %q: there are send, accept, mark=BITS, paths=NUMBER and patience=DURATION, with commas", word)
		}
		if err != nil {
			return r, invalidf("adaptive routing %q: %v", word, err)
		}
	}
	return r, r.complete()
}
