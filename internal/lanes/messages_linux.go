//go:build !adverb_portable

package lanes

import (
	"encoding/binary"
	"net"
	"time"

	"github.com/adverb-rdma/adverb/internal/handover"
	"github.com/adverb-rdma/adverb/internal/shm"
)

// The messages between the two ends of a lane: see doc.go.
const (
	messageSize = 1 + 3*8 // kind; name, size, offset; or slot, QPNs, key
	replySize   = 1 + 8*8 // kind; name; or slot and rights, generation, base, length, name, size, whether it may be changed, offset

	fileLent      = 1
	fileWithdrawn = 2
	accessAsked   = 3

	fileMapped    = 1
	accessGranted = 2
	accessRevoked = 3
)

// takeAnswers takes note of the files that the receiver of a lane has mapped, and of the access that it grants. It
// returns when the process at the other end has ended or closed its device, or this one has.
func takeAnswers(c *net.UnixConn, o *shm.Out) {
	c.SetDeadline(time.Time{})
	for {
		b, fds, err := handover.Receive(c, replySize)
		if err != nil && err != handover.ErrNoDescriptor { // without the memory a grant is none
			return
		}
		var words [8]uint64
		for i := range words {
			words[i] = binary.NativeEndian.Uint64(b[1+8*i:])
		}
		switch {
		case b[0] == fileMapped && len(fds) == 0:
			o.Mapped(words[0])
		case b[0] == accessGranted && len(fds) <= 1:
			g := shm.Granted{
				Slot: uint32(words[0]), Rights: uint32(words[0] >> 32), Gen: words[1], Base: words[2], Len: words[3],
				File: shm.File{ID: words[4], FD: -1, Size: int64(words[5]), Off: int64(words[7])}, Write: words[6] != 0,
			}
			if len(fds) == 1 {
				g.File.FD = fds[0]
			} else {
				g.Rights = 0
			}
			o.Answered(g)
		case b[0] == accessRevoked && len(fds) == 0:
			o.Revoked(uint32(words[0]), words[1])
		default:
			handover.CloseAll(fds)
			return
		}
		handover.CloseAll(fds)
	}
}

// answerSender sends words to the sender of a lane, with a descriptor unless fd is negative. It does not block.
func answerSender(c *net.UnixConn, kind byte, fd int, words ...uint64) error {
	b := []byte{kind}
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	b = append(b, make([]byte, replySize-len(b))...)
	if fd < 0 {
		return handover.Send(c, b)
	}
	return handover.Send(c, b, fd)
}

// tellGrant tells the sender of a lane of access that was granted, or revoked.
func tellGrant(c *net.UnixConn, g shm.Granted, revoked bool) error {
	switch {
	case revoked:
		return answerSender(c, accessRevoked, -1, uint64(g.Slot), g.Gen)
	case g.Rights == 0:
		return answerSender(c, accessGranted, -1, uint64(g.Slot))
	}
	write := uint64(0)
	if g.Write {
		write = 1
	}
	return answerSender(c, accessGranted, g.File.FD, uint64(g.Rights)<<32|uint64(g.Slot), g.Gen, g.Base, g.Len, g.File.ID, uint64(g.File.Size), write, uint64(g.File.Off))
}

// takeFiles maps the files that the sender of a lane lends, and passes on the sender's requests for access. It returns when
// takeAnswers would.
func takeFiles(c *net.UnixConn, in *shm.In, wake func()) {
	c.SetDeadline(time.Time{})
	for {
		b, fds, err := handover.Receive(c, messageSize)
		if err == handover.ErrNoDescriptor && b[0] == fileLent {
			continue // the sender goes on by copies
		}
		if err != nil {
			return
		}
		long := func(i int) uint64 { return binary.NativeEndian.Uint64(b[1+8*i:]) }
		f := shm.File{ID: long(0), FD: -1, Size: int64(long(1)), Off: int64(long(2))}
		switch {
		case b[0] == accessAsked && len(fds) == 0:
			word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[1+4*i:]) }
			in.Asked(shm.Ask{Slot: word(0), From: word(1), To: word(2), Key: word(3)})
		case b[0] == fileWithdrawn && len(fds) == 0:
			in.Withdrawn(f.ID)
			wake() // to unmap the file
		case b[0] == fileLent && len(fds) == 1:
			f.FD = fds[0]
			if in.Map(f) == nil { // else the sender goes on by copies
				err = answerSender(c, fileMapped, -1, f.ID)
			}
			handover.CloseAll(fds)
		default:
			handover.CloseAll(fds)
			return
		}
		if err != nil {
			return
		}
	}
}

// tellFile tells the receiver of a lane of a file that is lent, or withdrawn. It does not block: a receiver that
// is stopped reads nothing.
func tellFile(c *net.UnixConn, f shm.File, withdrawn bool) error {
	b, fds := []byte{fileLent}, []int{f.FD}
	if withdrawn {
		b[0], fds = fileWithdrawn, nil
	}
	for _, w := range []uint64{f.ID, uint64(f.Size), uint64(f.Off)} {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return handover.Send(c, b, fds...)
}

// tellAsk asks the receiver of a lane for access. It does not block.
func tellAsk(c *net.UnixConn, a shm.Ask) error {
	b := []byte{accessAsked}
	for _, w := range []uint32{a.Slot, a.From, a.To, a.Key} {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return handover.Send(c, append(b, make([]byte, messageSize-len(b))...))
}
