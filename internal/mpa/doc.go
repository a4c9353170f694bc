// Package mpa is the framing that iWARP puts between TCP and its own protocols: Marker PDU Aligned
// Framing (RFC 5044, with the enhanced set-up of RFC 6581). It has the two frames that open a
// connection, the terms on which the ends agree by them, and the frames of data after that (FPDUs).
//
//	initiator                               responder
//	Offer.Request  ---- MPA request ---->   DecodeFrame, Answer
//	Offer.Settle   <---- MPA reply ------   Frame.AppendTo
//	               ===== FPDUs =========
//
// The package is pure: bytes go in, bytes and decisions come out. Markers are sent to a peer that wants them, and
// taken from one that was asked for them.
package mpa
