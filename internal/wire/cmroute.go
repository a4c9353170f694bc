package wire

import "encoding/binary"

// A Route is what the processes that share a GSI need to know of a CM message to hand it to the right one of them.
type Route struct {
	Attr      CMAttr
	ServiceID uint64 // of a REQ and a SIDR_REQ, which are for whoever listens
	// CommID is, in all other messages, the receiver's communication ID, or in a SIDR_REP the ID of the request. It is 0
	// when the sender did not know it: a peer that gives up while its REQ is unanswered sends such a REJ.
	CommID uint32
}

// CMRoute reads from a management datagram where it goes. It is not ok for what is no CM message. It allocates nothing
// and reads no more than it must: many MADs are only passed on.
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
