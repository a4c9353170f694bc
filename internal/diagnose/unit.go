package diagnose

import (
	"net/netip"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

// Unit is what a stream of iWARP consists of: an MPA frame that opens a connection, or an FPDU.
type Unit struct {
	Frame    int   // of the capture, in which it ends
	Time     int64 // of that frame
	Src, Dst netip.AddrPort
	Seq      uint32 // TCP's, of its first byte

	MPA    *mpa.Frame    // the MPA frame; nil for an FPDU
	Header *iwarp.Header // of the FPDU's segment; nil for an FPDU that is empty
	Body   []byte        // behind that header, as far as captured. It holds until the function returns that takes the Unit
	Size   int           // of Body, captured or not

	Cut     bool // its end was not captured
	Damaged bool // its CRC is wrong: the receiver takes nothing of it
	Resent  bool // TCP has sent the segment again in which it ends, or a part of that
	Gap     bool // what stands before it in the stream was not captured
}

// unit hands a Unit to who has asked for them.
func (a *Analyzer) unit(s *stream, u Unit, frame int, at int64) {
	if a.units == nil {
		return
	}
	u.Frame, u.Time, u.Src, u.Dst, u.Seq, u.Resent, u.Gap = frame, at, s.key.src, s.key.dst, s.begin, s.resent, s.gap
	s.gap = false
	a.units(&u)
}

// fpduUnit hands on an FPDU. b is its ULPDU, as far as captured, and size the length of that.
func (a *Analyzer) fpduUnit(s *stream, b []byte, size int, cut, damaged bool, frame int, at int64) {
	u := Unit{Cut: cut, Damaged: damaged}
	if size > 0 {
		h, n, err := iwarp.DecodeHeader(b)
		if err != nil {
			return // a finding says so
		}
		u.Header, u.Body, u.Size = &h, b[n:], size-n
	}
	a.unit(s, u, frame, at)
}
