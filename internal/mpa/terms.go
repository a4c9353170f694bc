package mpa

import (
	"errors"
	"fmt"
)

// Offer has the abilities and the wishes of one end of a connection.
type Offer struct {
	CRC         bool
	Markers     bool // in the stream that the peer sends
	IRD, ORD    int  // READs that it answers at a time, and wants to have outstanding
	PrivateData []byte
}

// Terms are the terms on which the ends have agreed.
type Terms struct {
	Initiator bool
	CRC       bool
	IRD, ORD  int
	// MarkersIn says that the peer sends markers, and MarkersOut that it wants to have them.
	MarkersIn, MarkersOut bool
	// RTR is the message that the initiator sends first, or 0. Without one the responder waits all the
	// same until something has come, or for a while: RFC 5044 has the initiator speak first.
	RTR RTR
	// PeerIRD and PeerORD are the peer's values, for the program. Without the enhanced set-up the
	// peer names none, and they are -1.
	PeerIRD, PeerORD int
}

// ownRTR are the kinds of first message that this implementation can send, and understands.
const ownRTR = RTRFPDU | RTRWrite | RTRRead

// Request returns the frame that asks for a connection: enhanced, and open to the responder's sending
// first.
func (o *Offer) Request() Frame {
	return Frame{
		Revision: Revision2, CRC: o.CRC, Markers: o.Markers, Enhanced: true, IRD: depth(o.IRD), ORD: depth(max(o.ORD, ownReads)),
		PeerToPeer: true, RTR: ownRTR, PrivateData: o.PrivateData,
	}
}

// ownReads is how many READs a device sends for itself at a time, whatever its program wants. The peer is told of so many
// at least, since siw answers no more than it was told.
const ownReads = 1

func depth(n int) uint16 { return uint16(max(0, min(n, MaxDepth))) }

// ErrRejected is the error of a reply that says no.
var ErrRejected = errors.New("the peer has rejected the connection")

// Settle takes the reply to o.Request. A reply that says no has ErrRejected as error.
func (o *Offer) Settle(reply *Frame) (Terms, error) {
	t := Terms{Initiator: true, CRC: o.CRC || reply.CRC, MarkersIn: o.Markers, MarkersOut: reply.Markers,
		IRD: o.IRD, ORD: o.ORD, PeerIRD: -1, PeerORD: -1}
	switch {
	case !reply.Reply:
		return t, errors.New("the peer has answered the MPA request by a request of its own")
	case reply.Reject:
		return t, ErrRejected
	case reply.Revision != Revision1 && reply.Revision != Revision2:
		return t, unknownRevision(reply)
	case !reply.Enhanced:
		return t, nil
	}
	t.PeerIRD, t.PeerORD = int(reply.IRD), int(reply.ORD)
	t.ORD = min(o.ORD, t.PeerIRD)
	if t.PeerORD > o.IRD {
		return t, fmt.Errorf("the peer wants to have %d READs outstanding, and this end answers %d at a time", t.PeerORD, o.IRD)
	}
	if reply.PeerToPeer {
		t.RTR = choose(reply.RTR)
		if t.RTR == 0 {
			return t, errors.New("the peer has chosen no message by which this end should say that it is ready")
		}
	}
	return t, nil
}

func unknownRevision(f *Frame) error {
	return fmt.Errorf("the peer speaks revision %d of MPA, and adverb 1 and 2", f.Revision)
}

// choose returns one message of a set, the cheapest first.
func choose(of RTR) RTR {
	for _, r := range []RTR{RTRWrite, RTRRead, RTRFPDU} {
		if of&r != 0 {
			return r
		}
	}
	return 0
}

// CheckRequest says why a request cannot be served, whatever the program thinks of it.
func CheckRequest(request *Frame) error {
	switch {
	case request.Reply:
		return errors.New("the peer has begun with an MPA reply")
	case request.Revision != Revision1 && request.Revision != Revision2:
		return unknownRevision(request)
	}
	return nil
}

// Answer returns the reply that says yes to a request which CheckRequest has let pass, and the terms.
func (o *Offer) Answer(request *Frame) (Frame, Terms) {
	t := Terms{CRC: o.CRC || request.CRC, MarkersIn: o.Markers, MarkersOut: request.Markers, IRD: o.IRD, ORD: o.ORD, PeerIRD: -1, PeerORD: -1}
	f := Frame{Reply: true, Revision: request.Revision, CRC: t.CRC, Markers: o.Markers, PrivateData: o.PrivateData}
	if !request.Enhanced {
		return f, t
	}
	t.PeerIRD, t.PeerORD = int(request.IRD), int(request.ORD)
	t.ORD, t.IRD = min(o.ORD, t.PeerIRD), min(o.IRD, t.PeerORD)
	f.Enhanced, f.IRD, f.ORD = true, depth(t.IRD), depth(max(t.ORD, min(ownReads, t.PeerIRD)))
	if request.PeerToPeer {
		t.RTR = choose(request.RTR)
		f.PeerToPeer, f.RTR = true, t.RTR
	}
	return f, t
}

// Refuse returns the reply that says no to a request.
func Refuse(request *Frame, privateData []byte) Frame {
	f := Frame{Reply: true, Reject: true, Revision: min(max(request.Revision, Revision1), Revision2), CRC: request.CRC, PrivateData: privateData}
	if request.Enhanced {
		f.Enhanced = true
		f.IRD, f.ORD = request.ORD, request.IRD
	}
	return f
}
