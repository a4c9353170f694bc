package wire

import (
	"encoding/binary"
	"math/bits"
	"strconv"
)

// AETH is the acknowledge extended transport header.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // message sequence number of the last message completed, 24 bits
}

// DecodeAETH reads an AETH from the front of b. Its only error is [ErrShort].
func DecodeAETH(b []byte) (h AETH, err error) {
	if len(b) < AETHSize {
		return h, ErrShort
	}
	h.decode(b)
	return h, nil
}

func (h *AETH) decode(b []byte) { *h = AETHOf(binary.BigEndian.Uint32(b)) }

// AETHOf returns the AETH whose 4 bytes make a word in network order.
func AETHOf(word uint32) AETH { return AETH{Syndrome(word >> 24), word & MaxMSN} }

// Word is the opposite of [AETHOf].
func (h *AETH) Word() uint32 { return uint32(h.Syndrome)<<24 | h.MSN&MaxMSN }

// AppendTo appends the header's 4 bytes to b.
func (h *AETH) AppendTo(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, h.Word())
}

// A Syndrome is the first byte of an AETH. Bits 6:5 say which kind of acknowledgement it is. Bits
// 4:0 hold the credit code of an ACK, the timer code of an RNR NAK or the error of a NAK. Bit 7 is
// reserved.
type Syndrome uint8

// A SyndromeKind is the kind of acknowledgement in bits 6:5 of a syndrome.
type SyndromeKind uint8

const (
	KindACK      SyndromeKind = 0 // done
	KindRNR      SyndromeKind = 1 // receiver not ready: come again after the timer
	KindReserved SyndromeKind = 2 // not in use
	KindNAK      SyndromeKind = 3 // an error, see NAKCode
)

const (
	syndromeKindShift = 5
	syndromeKindMask  = 0x3
	syndromeValueMask = 0x1f
)

// SyndromeACK returns the syndrome of an ACK with a credit code, see [EncodeCredits] and
// [CreditsUnlimited].
func SyndromeACK(credits uint8) Syndrome { return makeSyndrome(KindACK, credits) }

// SyndromeRNR returns the syndrome of an RNR NAK with a timer code, see [RNRTimer].
func SyndromeRNR(timer uint8) Syndrome { return makeSyndrome(KindRNR, timer) }

// SyndromeNAK returns the syndrome of a NAK.
func SyndromeNAK(code NAKCode) Syndrome { return makeSyndrome(KindNAK, uint8(code)) }

func makeSyndrome(k SyndromeKind, v uint8) Syndrome {
	return Syndrome(uint8(k)<<syndromeKindShift | v&syndromeValueMask)
}

// Kind returns which kind of acknowledgement s is.
func (s Syndrome) Kind() SyndromeKind { return SyndromeKind(s >> syndromeKindShift & syndromeKindMask) }

// Value returns the lower five bits: the credit code of an ACK, the timer code of an RNR NAK, the
// code of a NAK.
func (s Syndrome) Value() uint8 { return uint8(s & syndromeValueMask) }

// NAKCode returns the error of a NAK. It means nothing for other kinds.
func (s Syndrome) NAKCode() NAKCode { return NAKCode(s.Value()) }

// String returns the syndrome spelled out, such as "ACK credits=31", "RNR NAK timer=0.64ms" or "NAK
// remote access error".
func (s Syndrome) String() string { return string(s.appendTo(nil)) }

func (s Syndrome) appendTo(b []byte) []byte {
	switch s.Kind() {
	case KindACK:
		return strconv.AppendUint(append(b, "ACK credits="...), uint64(s.Value()), 10)
	case KindRNR:
		ms := RNRTimer(s.Value()).Seconds() * 1e3
		return append(strconv.AppendFloat(append(b, "RNR NAK timer="...), ms, 'f', 2, 64), "ms"...)
	case KindNAK:
		return append(append(b, "NAK "...), s.NAKCode().String()...)
	}
	return appendHex(append(b, "reserved syndrome "...), uint64(s), 2)
}

// A NAKCode is the error that a NAK reports.
type NAKCode uint8

const (
	NAKSequenceError          NAKCode = 0 // a packet is missing; send again from the PSN in the BTH
	NAKInvalidRequest         NAKCode = 1 // wrong opcode, length or sequence of opcodes
	NAKRemoteAccessError      NAKCode = 2 // key, range or permission does not fit
	NAKRemoteOperationalError NAKCode = 3 // the responder has failed, and not by the request's fault
	NAKInvalidRDRequest       NAKCode = 4 // reliable datagram only
)

var nakNames = [...]string{
	NAKSequenceError:          "PSN sequence error",
	NAKInvalidRequest:         "invalid request",
	NAKRemoteAccessError:      "remote access error",
	NAKRemoteOperationalError: "remote operational error",
	NAKInvalidRDRequest:       "invalid RD request",
}

// String returns the error in words.
func (c NAKCode) String() string {
	if int(c) < len(nakNames) {
		return nakNames[c]
	}
	return "reserved NAK code " + strconv.Itoa(int(c))
}

// CreditsUnlimited is the credit code that carries no count: the responder does not limit the
// requester.
const CreditsUnlimited = 31

// creditCounts holds the number of receive buffers that each credit code of an ACK stands for.
var creditCounts = [CreditsUnlimited]int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// EncodeCredits returns the largest credit code whose count does not exceed n. For a negative n it
// returns 0.
func EncodeCredits(n int) uint8 {
	if n < 2 {
		return uint8(max(0, n))
	}
	octave := bits.Len(uint(n)) - 1 // each has two codes: one for a power of two, and one for that and half of it
	return uint8(min(2*octave+n>>(octave-1)&1, len(creditCounts)-1))
}

// DecodeCredits returns the count of receive buffers that a credit code stands for. valid is false
// for [CreditsUnlimited] and codes above it.
func DecodeCredits(code uint8) (n int, valid bool) {
	if int(code) >= len(creditCounts) {
		return 0, false
	}
	return creditCounts[code], true
}
