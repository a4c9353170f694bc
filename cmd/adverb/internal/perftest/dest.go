package perftest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// dest is one end of a QP, as the programs describe it to each other (struct pingpong_dest).
type dest struct {
	lid   uint16
	outs  uint32 // READs and atomics that the end answers at a time
	qpn   verbs.QPN
	psn   verbs.PSN
	rkey  verbs.RKey
	vaddr uint64 // where the peer is to write, or to read
	gid   verbs.GID
	srqn  uint32 // of XRC: the SRQ whose memory it is, and that takes SENDs
}

// The sizes of a dest in bytes. Over TCP it is a text with a NUL, and shorter where the ends have no
// GIDs. Over rdma_cm it is the C struct in network order.
const (
	textSize      = 108
	shortTextSize = 59
	binarySize    = 56
)

// encoding is how dests travel.
type encoding uint8

const (
	textWithGID encoding = iota
	textWithoutGID
	binaryStruct
)

func (e encoding) size() int { return [...]int{textSize, shortTextSize, binarySize}[e] }

// appendTo appends the message that describes d.
func (d *dest) appendTo(b []byte, e encoding) []byte {
	if e == binaryStruct {
		be := binary.BigEndian
		for _, v := range []uint32{uint32(d.lid), d.outs, uint32(d.qpn), uint32(d.psn), uint32(d.rkey), 0} { // the last is padding
			b = be.AppendUint32(b, v)
		}
		b = be.AppendUint64(b, d.vaddr)
		b = append(b, d.gid[:]...)
		b = be.AppendUint32(b, d.srqn)
		return be.AppendUint32(b, 0) // the index of the GID, which nobody reads
	}
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", d.lid, d.outs, uint32(d.qpn), uint32(d.psn), uint32(d.rkey), d.vaddr)
	if e == textWithoutGID {
		return append(fmt.Appendf(b, "%08x", d.srqn), 0)
	}
	for _, c := range d.gid {
		b = fmt.Appendf(b, "%02x:", c)
	}
	return append(fmt.Appendf(b, "%08x:", d.srqn), 0)
}

var errBadDest = errors.New("the peer's message is no address: is it the same program, with the same flags?")

// decodeDest reads a peer's message.
func decodeDest(b []byte, e encoding) (d dest, err error) {
	if len(b) != e.size() {
		return d, errBadDest
	}
	if e == binaryStruct {
		be := binary.BigEndian
		d = dest{lid: uint16(be.Uint32(b)), outs: be.Uint32(b[4:]), qpn: verbs.QPN(be.Uint32(b[8:])), psn: verbs.PSN(be.Uint32(b[12:])),
			rkey: verbs.RKey(be.Uint32(b[16:])), vaddr: be.Uint64(b[24:])}
		copy(d.gid[:], b[32:48])
		d.srqn = be.Uint32(b[48:])
		return d, d.check()
	}
	text, _, _ := strings.Cut(string(b), "\x00")
	fields := strings.Split(text, ":")
	want := 7
	if e == textWithGID {
		want += len(d.gid)
	}
	if len(fields) < want {
		return d, errBadDest
	}
	var v [6]uint64
	for i, bits := range []int{16, 32, 24, 24, 32, 64} {
		if v[i], err = strconv.ParseUint(fields[i], 16, bits); err != nil {
			return d, errBadDest
		}
	}
	d = dest{lid: uint16(v[0]), outs: uint32(v[1]), qpn: verbs.QPN(v[2]), psn: verbs.PSN(v[3]), rkey: verbs.RKey(v[4]), vaddr: v[5]}
	if e == textWithGID {
		for i := range d.gid {
			c, err := strconv.ParseUint(fields[len(v)+i], 16, 8)
			if err != nil {
				return dest{}, errBadDest
			}
			d.gid[i] = byte(c)
		}
	}
	srqn, err := strconv.ParseUint(fields[want-1], 16, 32)
	if err != nil {
		return dest{}, errBadDest
	}
	d.srqn = uint32(srqn)
	return d, d.check()
}

// check refuses numbers that no QP has.
func (d *dest) check() error {
	const max24 = 1<<24 - 1
	if d.qpn > max24 || d.psn > max24 || d.srqn > max24 {
		return errBadDest
	}
	return nil
}

// isIPv4 reports whether the GID is an IPv4 address.
func (d *dest) isIPv4() bool { return d.gid.Addr().Is4() }
