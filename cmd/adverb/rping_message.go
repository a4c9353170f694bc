package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/adverb-rdma/adverb/verbs"
)

// What the C program fixes.
const (
	rpingAdvertSize = 16

	// rpingMinSize is room for the text with the longest number, and its NUL. The C program
	// takes the size of a macro's name for that of its value, which comes to the same today.
	rpingMinSize = len("rdma-ping-2147483647: ") + 1
	rpingMaxSize = math.MaxUint16

	rpingFirstChar = 'A'
	rpingLastChar  = 'z'
)

// rpingAdvert is the message by which an end tells the other where it may read or write. As the
// server's go-ahead it is all zeros, and nobody looks at it.
type rpingAdvert struct {
	Remote verbs.RemoteAddr
	Size   uint32 // bytes
}

// AppendTo appends the message: big-endian, without padding.
func (a rpingAdvert) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, a.Remote.VA)
	b = binary.BigEndian.AppendUint32(b, uint32(a.Remote.RKey))
	return binary.BigEndian.AppendUint32(b, a.Size)
}

// decodeRpingAdvert takes apart a message of rpingAdvertSize bytes.
func decodeRpingAdvert(b []byte) rpingAdvert {
	return rpingAdvert{
		Remote: verbs.RemoteAddr{VA: binary.BigEndian.Uint64(b), RKey: verbs.RKey(binary.BigEndian.Uint32(b[8:]))},
		Size:   binary.BigEndian.Uint32(b[12:]),
	}
}

// fillRping writes the data of a round: its number, characters that begin one further in every
// round, and a NUL.
func fillRping(buf []byte, round int) {
	text := fmt.Appendf(buf[:0], "rdma-ping-%d: ", int32(round))
	const period = rpingLastChar - rpingFirstChar + 1
	for i := len(text); i < len(buf); i++ {
		buf[i] = rpingFirstChar + byte((round+i-len(text))%period)
	}
	buf[len(buf)-1] = 0
}

// cString is the text in a buffer, up to its NUL.
func cString(buf []byte) []byte {
	if i := bytes.IndexByte(buf, 0); i >= 0 {
		return buf[:i]
	}
	return buf
}
