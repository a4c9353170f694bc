package wire

import "encoding/binary"

// A Route says to which of the processes that share a GSI a CM message must be handed.
type Route struct {
	Attr      CMAttr
	ServiceID uint64 // of a REQ and a SIDR_REQ, which are for a listener
	// CommID is the receiver's communication ID in all other messages but a SIDR_REP, where it is
	// the ID of the request. It is 0 if the sender did not know it. A peer that gives up while its
	// REQ is unanswered sends such a REJ.
	CommID uint32
}

// CMRoute reads the route of a management datagram. ok is false if the datagram is no CM message. CMRoute allocates
// nothing and reads no more than it must, since many MADs are only passed on.
func CMRoute(mad []byte) (r Route, ok bool) {
	if len(mad) < MADSize {
		return r, false
	}
	h, err := DecodeMADHeader(mad)
	if err != nil {
		return r, false
	}
	attr, ok := h.CM()
	if !ok {
		return r, false
	}
	r.Attr = attr
	data := mad[MADHeaderSize:]
	switch attr {
	case CMREQ:
		r.ServiceID = binary.BigEndian.Uint64(data[reqServiceID:])
	case CMSIDRREQ:
		r.ServiceID = binary.BigEndian.Uint64(data[sidrReqServiceID:])
	case CMSIDRREP:
		r.CommID = binary.BigEndian.Uint32(data[sidrRequestID:])
	default:
		r.CommID = binary.BigEndian.Uint32(data[cmRemoteCommID:])
	}
	return r, true
}
