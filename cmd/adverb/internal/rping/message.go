package rping

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/adverb-rdma/adverb/verbs"
)

// The C program fixes these.
const (
	advertSize = 16

	// minSize is room for the text with the longest number, and its NUL. The C program computes it
	// from the name of a macro in place of the macro's value, which gives the same number.
	minSize = len("rdma-ping-2147483647: ") + 1
	maxSize = math.MaxUint16

	firstChar = 'A'
	lastChar  = 'z'
)

// advert is the message by which the client tells the server where it may read or write. The
// server's go-ahead is an advert of zeros, whose content does not matter.
type advert struct {
	Remote verbs.RemoteAddr
	Size   uint32 // bytes
}

// AppendTo appends the message: big-endian, without padding.
func (a advert) AppendTo(b []byte) []byte {
	b, _ = a.Remote.AppendBinary(b) // which cannot fail
	return binary.BigEndian.AppendUint32(b, a.Size)
}

// decodeAdvert decodes a message of advertSize bytes.
func decodeAdvert(b []byte) advert {
	a := advert{Size: binary.BigEndian.Uint32(b[verbs.RemoteAddrSize:])}
	_ = a.Remote.UnmarshalBinary(b[:verbs.RemoteAddrSize]) // of the right length
	return a
}

// fillData writes the data of a round: the round's number, characters that start one character
// further in each round, and a NUL.
func fillData(buf []byte, round int) {
	text := fmt.Appendf(buf[:0], "rdma-ping-%d: ", int32(round))
	const period = lastChar - firstChar + 1
	for i := len(text); i < len(buf); i++ {
		buf[i] = firstChar + byte((round+i-len(text))%period)
	}
	buf[len(buf)-1] = 0
}
