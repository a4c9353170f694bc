package mpa

import "encoding/binary"

// A receiver may ask for markers: every 512 bytes of the stream, counted from the first FPDU, four bytes say how
// far back the FPDU began. Markers are for receivers that take TCP segments out of order. A marker between two
// FPDUs belongs to the second: RFC 5044 §4.3.
const (
	markerSize     = 4
	markerInterval = 512
	betweenMarkers = markerInterval - markerSize

	// MaxMarkedULPDU is the largest ULPDU whose markers can all point to the beginning of its FPDU.
	MaxMarkedULPDU = 64000
	// MaxMarkedFPDU is the size of the largest FPDU with its markers.
	MaxMarkedFPDU = MaxFPDU + (MaxFPDU/betweenMarkers+1)*markerSize
)

// Marks is a place in a stream with markers. The zero value is that of the first FPDU.
type Marks struct {
	at int // bytes since the beginning of the latest marker
}

// gap returns how many bytes of an FPDU stand before its first marker.
func (m Marks) gap() int { return (markerInterval - m.at) % markerInterval }

// Lead returns how many bytes of markers stand before an FPDU that begins here.
func (m Marks) Lead() int {
	if m.gap() == 0 {
		return markerSize
	}
	return 0
}

// Size returns how large an FPDU of n bytes that begins here is with its markers.
func (m Marks) Size(n int) int {
	if gap := m.gap(); n > gap {
		n += (1 + (n-1-gap)/betweenMarkers) * markerSize
	}
	return n
}

// Skip moves the place behind an FPDU of n bytes, markers not counted.
func (m *Marks) Skip(n int) { m.at = (m.at + m.Size(n)) % markerInterval }

// Append appends an FPDU to b with its markers. Its CRC has no meaning yet: see SealMarked. The place moves
// behind it.
func (m *Marks) Append(b, fpdu []byte) []byte {
	start, next := len(b)+m.Lead(), m.gap()
	m.Skip(len(fpdu))
	for {
		n := min(next, len(fpdu))
		b = append(b, fpdu[:n]...)
		if fpdu = fpdu[n:]; len(fpdu) == 0 {
			return b
		}
		b = binary.BigEndian.AppendUint32(b, uint32(max(0, len(b)-start)))
		next = betweenMarkers
	}
}

// SealMarked writes the CRC to the end of an FPDU that has its markers, which the CRC covers: RFC 5044 §4.4.
func SealMarked(fpdu []byte) {
	body := len(fpdu) - CRCSize
	binary.LittleEndian.PutUint32(fpdu[body:], checksum(fpdu[:body]))
}

// Strip appends an FPDU to b without its markers. ok says that they are whole and point to its beginning. The
// place moves behind it.
func (m *Marks) Strip(b, marked []byte) (plain []byte, ok bool) {
	start, at, next := m.Lead(), 0, m.gap()
	from := len(b)
	ok = true
	for {
		n := min(next, len(marked)-at)
		b = append(b, marked[at:at+n]...)
		if at += n; at >= len(marked) {
			m.Skip(len(b) - from)
			return b, ok
		}
		if len(marked)-at <= markerSize { // a marker at the end would be the next FPDU's
			return b, false
		}
		if pointer := binary.BigEndian.Uint16(marked[at+2:]) &^ 3; int(pointer) != max(0, at-start) {
			ok = false
		}
		at += markerSize
		next = betweenMarkers
	}
}
