package exchange

import (
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

// What the programs send each other over TCP. Each message goes in one write, since the C
// programs read it in one.
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

var errBadEnd = errors.New("the peer's message is no address: is it a pingpong program of another kind?")

// parseEnd reads a peer's message. The C programs read it by scanf, to which leading zeros and
// the fields' widths do not matter.
func parseEnd(b []byte) (End, error) {
	s, _, _ := strings.Cut(string(b), "\x00")
	f := strings.SplitN(s, ":", 4)
	if len(f) != 4 || len(f[3]) < 2*len(verbs.GID{}) {
		return End{}, errBadEnd
	}
	const maxQPN, maxPSN, maxLID = 1<<24 - 1, 1<<24 - 1, 1<<16 - 1
	var v [3]uint64
	for i, limit := range []uint64{maxLID, maxQPN, maxPSN} {
		n, err := strconv.ParseUint(f[i], 16, 32)
		if err != nil || n > limit {
			return End{}, errBadEnd
		}
		v[i] = n
	}
	e := End{LID: uint16(v[0]), QPN: verbs.QPN(v[1]), PSN: verbs.PSN(v[2])}
	if _, err := hex.Decode(e.GID[:], []byte(f[3][:2*len(e.GID)])); err != nil {
		return End{}, errBadEnd
	}
	return e, nil
}

// HasGID is the C programs' test for a GID: its lower half is not zero.
func (e End) HasGID() bool { return binary.BigEndian.Uint64(e.GID[8:]) != 0 }
