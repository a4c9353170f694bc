package mem

import "github.com/adverb-rdma/adverb/verbs"

// A peer's program may be changing the memory that the peer lends. So a copy of such memory goes upward and by
// whole words at both of its ends. Where the two are aligned alike, that is one copy. Elsewhere it goes through a
// buffer, a piece at a time.

// A piece has sharedPiece bytes at most.
const sharedPiece = 4096

// alike reports whether one copy from src to dst is in order at both of its ends.
func alike(dst, src []byte) bool { return pairsInOrder && (addrOf(dst)-addrOf(src))%lineSize == 0 }

// PlaceShared is Place for bytes that others may be changing.
func (s Span) PlaceShared(src []byte) error { return s.PlaceFrom(Foreign(src)) }

// PlaceFrom is PlaceShared for the bytes of another span. It fails where the memory of either faults.
func (s Span) PlaceFrom(from Span) error {
	src := from.Bytes()
	dst := s.Bytes()[:len(src)]
	switch {
	case s.guard || from.guard:
		return guarded(copyShared, dst, src, nil)
	case alike(dst, src): // without the room of a piece
		place(dst, src)
	default:
		placeShared(dst, src)
	}
	return nil
}

// placeShared is place for bytes that others may be changing.
func placeShared(dst, src []byte) {
	if alike(dst, src) {
		place(dst, src)
		return
	}
	var buf [sharedPiece]byte
	n := 0 // bytes in buf
	for n+len(src) > len(buf) {
		// A piece ends with a line of src. The bytes of the piece that are stored end with a line of dst, and
		// the rest is kept. Neither is near the end, so that place has the last word.
		part := len(buf)/2 - int(addrOf(src)%lineSize)
		copyFrom(buf[n:n+part], src[:part])
		n, src = n+part, src[part:]
		whole := n - int((addrOf(dst)+uint64(n))%lineSize)
		copyTo(dst[:whole], buf[:whole])
		dst = dst[whole:]
		n = copy(buf[:], buf[whole:n])
	}
	copyFrom(buf[n:n+len(src)], src)
	place(dst, buf[:n+len(src)])
}

// ScatterShared is Scatter of bytes that others may be changing.
func (p *PD) ScatterShared(sg []verbs.SGE, off uint32, src []byte) error {
	if len(sg) == 1 {
		return p.scatter(nil, sg, off, src, true)
	}
	var buf [sharedPiece]byte
	for len(src) > 0 {
		part := len(src)
		if part > len(buf) {
			part = len(buf) - int(addrOf(src)%lineSize)
		}
		copyFrom(buf[:part], src[:part])
		if err := p.Scatter(sg, off, buf[:part]); err != nil {
			return err
		}
		off, src = off+uint32(part), src[part:]
	}
	return nil
}
