package pingpong

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/verbs"
)

// xsrqEnd is an end of xsrq_pingpong: a target and an initiator, which share a first PSN, and the SRQ that the peer is to
// send to.
type xsrqEnd struct {
	lid        uint16
	recv, send verbs.QPN // of the target and of the initiator
	psn        verbs.PSN
	srqn       verbs.SRQN
	gid        verbs.GID // zero if none was chosen
}

// The messages over TCP.
const (
	xsrqMessageSize = 66 // "llll:rrrrrr:ssssss:pppppp:nnnnnn:" and 32 digits of GID, and a NUL
	xsrqFarewell    = "END\x00"
)

// message is the message that describes the end.
func (e *xsrqEnd) message() []byte {
	b := fmt.Appendf(make([]byte, 0, xsrqMessageSize), "%04x:%06x:%06x:%06x:%06x:%x", e.lid, uint32(e.recv), uint32(e.send), uint32(e.psn), uint32(e.srqn), e.gid[:])
	return append(b, 0)
}

// parseXSRQEnd reads a peer's message. The C program reads it by scanf, to which the widths of the fields do not matter.
func parseXSRQEnd(b []byte) (e xsrqEnd, err error) {
	text, _, _ := bytes.Cut(b, []byte{0})
	f := strings.Split(string(text), ":")
	if len(f) != 6 {
		return e, exchange.ErrBadEnd
	}
	var v [5]uint64
	for i, bits := range []int{16, 24, 24, 24, 24} {
		if v[i], err = strconv.ParseUint(f[i], 16, bits); err != nil {
			return e, exchange.ErrBadEnd
		}
	}
	gid := strings.TrimLeft(f[5], " ")
	if len(gid) != 2*len(e.gid) {
		return e, exchange.ErrBadEnd
	}
	if _, err := hex.Decode(e.gid[:], []byte(gid)); err != nil {
		return xsrqEnd{}, exchange.ErrBadEnd
	}
	e.lid, e.recv, e.send, e.psn, e.srqn = uint16(v[0]), verbs.QPN(v[1]), verbs.QPN(v[2]), verbs.PSN(v[3]), verbs.SRQN(v[4])
	return e, nil
}

// hasGID is the C program's test for a GID: its lower half is not zero.
func (e *xsrqEnd) hasGID() bool { return binary.BigEndian.Uint64(e.gid[8:]) != 0 }

// xsrqEndFormat is the C program's line about an end.
const xsrqEndFormat = "%8s: LID %04x, QPN RECV %06x SEND %06x, PSN %06x, SRQN %06x, GID %s\n"

func (x *xsrq) printEnd(side string, e *xsrqEnd) {
	x.inv.Printf(xsrqEndFormat, side, e.lid, uint32(e.recv), uint32(e.send), uint32(e.psn), uint32(e.srqn), e.gid)
}
