//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/shm"
)

// What the two ends of a lane tell each other by its socket: see lanes_linux.go.

// takeAnswers takes note of the files that the receiver of a lane has mapped, and of the access that it grants. It
// returns when the process at the other end has ended or closed its device, or this one has.
func takeAnswers(c *net.UnixConn, o *shm.Out) {
	c.SetDeadline(time.Time{})
	for {
		b, fds, err := receiveFiles(c, fileAnswer)
		if err != nil && err != errNoDescriptor { // without the memory a grant is none
			return
		}
		var words [7]uint64
		for i := range words {
			words[i] = binary.NativeEndian.Uint64(b[1+8*i:])
		}
		switch {
		case b[0] == fileMapped && len(fds) == 0:
			o.Mapped(words[0])
		case b[0] == accessGranted && len(fds) <= 1:
			g := shm.Granted{
				Slot: uint32(words[0]), Rights: uint32(words[0] >> 32), Gen: words[1], Base: words[2], Len: words[3],
				File: shm.File{ID: words[4], FD: -1, Size: int64(words[5])}, Write: words[6] != 0,
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
			closeAll(fds)
			return
		}
		closeAll(fds)
	}
}

// answerSender tells the sender of a lane words, and hands it a descriptor unless that is negative. It does not block.
func answerSender(c *net.UnixConn, kind byte, fd int, words ...uint64) error {
	b := []byte{kind}
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	return sendNow(c, append(b, make([]byte, fileAnswer-len(b))...), rights)
}

// tellGrant tells the sender of a lane what it was granted, or that it was revoked.
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
	return answerSender(c, accessGranted, g.File.FD, uint64(g.Rights)<<32|uint64(g.Slot), g.Gen, g.Base, g.Len, g.File.ID, uint64(g.File.Size), write)
}

// takeFiles maps the files that the sender of a lane lends, and passes on what it asks for. It returns when
// takeAnswers would.
func takeFiles(c *net.UnixConn, in *shm.In, wake func()) {
	c.SetDeadline(time.Time{})
	for {
		b, fds, err := receiveFiles(c, fileMessage)
		if err == errNoDescriptor && b[0] == fileLent {
			continue // the sender goes on by copies
		}
		if err != nil {
			return
		}
		f := shm.File{ID: binary.NativeEndian.Uint64(b[1:]), FD: -1, Size: int64(binary.NativeEndian.Uint64(b[9:]))}
		switch {
		case b[0] == accessAsked && len(fds) == 0:
			word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[1+4*i:]) }
			in.Asked(shm.Ask{Slot: word(0), From: word(1), To: word(2), Key: word(3)})
		case b[0] == fileWithdrawn && len(fds) == 0:
			in.Withdrawn(f.ID)
			wake() // to unmap it
		case b[0] == fileLent && len(fds) == 1:
			f.FD = fds[0]
			if in.Map(f) == nil { // else the sender goes on by copies
				err = answerSender(c, fileMapped, -1, f.ID)
			}
			closeAll(fds)
		default:
			closeAll(fds)
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
	b, rights := []byte{fileLent}, []byte(nil)
	if withdrawn {
		b[0] = fileWithdrawn
	} else {
		rights = unix.UnixRights(f.FD)
	}
	return sendNow(c, binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, f.ID), uint64(f.Size)), rights)
}

// tellAsk asks the receiver of a lane for access. It does not block.
func tellAsk(c *net.UnixConn, a shm.Ask) error {
	b := []byte{accessAsked}
	for _, w := range []uint32{a.Slot, a.From, a.To, a.Key} {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return sendNow(c, b, nil)
}

// sendNow sends a message, unless it would have to wait.
func sendNow(c *net.UnixConn, b, rights []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.Sendmsg(int(fd), b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, failed)
}

// errNoDescriptor says that descriptors came, and that this process has none to spare for them.
var errNoDescriptor = errors.New("too many open files to receive another one")

// receiveFiles receives a message of size bytes, and the descriptors that come with it. With errNoDescriptor the message
// is there, and none of them.
func receiveFiles(c *net.UnixConn, size int) (b []byte, fds []int, err error) {
	b = make([]byte, size+1)
	oob := make([]byte, unix.CmsgSpace(4*(laneFiles+1))) // to see that there are too many
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, nil, err
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	for i := range cmsgs {
		if got, err := unix.ParseUnixRights(&cmsgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	if n != size {
		closeAll(fds)
		return nil, nil, errMessage
	}
	if flags&unix.MSG_CTRUNC != 0 {
		closeAll(fds)
		return b[:n], nil, errNoDescriptor
	}
	return b[:n], fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
