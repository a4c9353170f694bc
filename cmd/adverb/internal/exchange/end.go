package exchange

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// End is one end of a connection, as the pingpong programs describe it to each other.
type End struct {
	LID uint16
	QPN verbs.QPN
	PSN verbs.PSN
	GID verbs.GID // zero if none was chosen
}

// The messages between the programs over TCP. Each message goes in one write, since the C programs read it in one.
const (
	MessageSize = 52 // "llll:qqqqqq:pppppp:" and 32 digits of GID, and a NUL
	doneMessage = "done\x00"
)

// Message is the message that describes the end.
func (e End) Message() []byte {
	b := make([]byte, 0, MessageSize)
	b = fmt.Appendf(b, "%04x:%06x:%06x:%x", e.LID, uint32(e.QPN), uint32(e.PSN), e.GID[:])
	return append(b, 0)
}

// ErrBadEnd is the error about a message that describes no end.
var ErrBadEnd = errors.New("that is no address: is the peer another program, or a pingpong program of another kind? start the same one at both ends")

// badEnd is the ErrBadEnd about the received bytes.
func badEnd(came []byte) error {
	const enough = 24 // bytes, enough to recognize them
	came = bytes.TrimRight(came, "\x00")
	return fmt.Errorf("read the peer's address: %q came: %w", came[:min(len(came), enough)], ErrBadEnd)
}

// strayByte returns the place of the first byte that no message has, in the begin of messages that came; -1 if there is
// none. Another program says less than a message, and then waits for an answer: its first bytes have to do.
func strayByte(b []byte) int {
	for i := 0; i < len(b); {
		text, _, _ := bytes.Cut(b[i:min(i+MessageSize, len(b))], []byte{0})
		if j := bytes.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF: ", r) }); j >= 0 {
			return i + j
		}
		i += MessageSize
	}
	return -1
}

// parseEnd reads a peer's message. The C programs read it by scanf, to which leading zeros and
// the fields' widths do not matter.
func parseEnd(b []byte) (End, error) {
	s, _, _ := strings.Cut(string(b), "\x00")
	f := strings.SplitN(s, ":", 4)
	if len(f) != 4 || len(f[3]) < 2*len(verbs.GID{}) {
		return End{}, ErrBadEnd
	}
	const maxQPN, maxPSN, maxLID = 1<<24 - 1, 1<<24 - 1, 1<<16 - 1
	var v [3]uint64
	for i, limit := range []uint64{maxLID, maxQPN, maxPSN} {
		n, err := strconv.ParseUint(f[i], 16, 32)
		if err != nil || n > limit {
			return End{}, ErrBadEnd
		}
		v[i] = n
	}
	e := End{LID: uint16(v[0]), QPN: verbs.QPN(v[1]), PSN: verbs.PSN(v[2])}
	if _, err := hex.Decode(e.GID[:], []byte(f[3][:2*len(e.GID)])); err != nil {
		return End{}, ErrBadEnd
	}
	return e, nil
}

// HasGID is the C programs' test for a GID: its lower half is not zero.
func (e End) HasGID() bool { return binary.BigEndian.Uint64(e.GID[8:]) != 0 }
