package ucma

import (
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/adverb-rdma/adverb/internal/uapi"
	"github.com/adverb-rdma/adverb/verbs"
)

// Caller is the program, in a call that waits for its answer.
type Caller interface {
	// ReadMemory fills b from the program's memory, and WriteMemory writes b there.
	ReadMemory(addr uint64, b []byte) error
	WriteMemory(addr uint64, b []byte) error
	// File returns the opening of rdma_cm that is behind one of the program's descriptors. It fails with EBADF for a
	// number that is no descriptor, and with EINVAL for a descriptor of something else.
	File(fd uint32) (*File, error)
}

// ErrWouldBlock is the error of GET_EVENT while there is no event: see File.Readable.
var ErrWouldBlock = errors.New("there is no event")

// Do carries out a command, which the program has written with its header. The program is told that all of it was written
// or, where Do fails, the error of Errno.
func (f *File) Do(caller Caller, b []byte) error {
	var h uapi.CMHeader
	if err := uapi.Decode(b, &h); err != nil {
		return errors.Join(err, syscall.EINVAL)
	}
	in := b[uapi.CMHeaderSize:]
	switch {
	case h.Cmd >= uint32(len(commands)) || int(h.In) > len(in):
		return syscall.EINVAL
	case commands[h.Cmd] == nil:
		return syscall.ENOSYS
	case f.isClosed():
		return syscall.EIO
	}
	return commands[h.Cmd](f, &call{Caller: caller, b: in[:h.In], room: int(h.Out)})
}

func (f *File) isClosed() bool {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.closed
}

// commands are all that Linux has. It has no GET_OPTION either.
var commands = [uapi.CMJoinMcast + 1]func(*File, *call) error{
	uapi.CMCreateID:     (*File).create,
	uapi.CMDestroyID:    (*File).destroy,
	uapi.CMBindIP:       (*File).bindIP,
	uapi.CMResolveIP:    (*File).resolveIP,
	uapi.CMResolveRoute: (*File).resolveRoute,
	uapi.CMQueryRoute:   (*File).queryRoute,
	uapi.CMConnect:      (*File).connect,
	uapi.CMListen:       (*File).listen,
	uapi.CMAccept:       (*File).accept,
	uapi.CMReject:       (*File).reject,
	uapi.CMDisconnect:   (*File).disconnect,
	uapi.CMInitQPAttr:   (*File).initQPAttr,
	uapi.CMGetEvent:     (*File).getEvent,
	uapi.CMSetOption:    (*File).setOption,
	uapi.CMNotify:       (*File).notify,
	uapi.CMJoinIPMcast:  (*File).joinIPMcast,
	uapi.CMLeaveMcast:   (*File).leaveMcast,
	uapi.CMMigrateID:    (*File).migrate,
	uapi.CMQuery:        (*File).query,
	uapi.CMBind:         (*File).bindAddr,
	uapi.CMResolveAddr:  (*File).resolveAddr,
	uapi.CMJoinMcast:    (*File).joinMcast,
}

// call is a command that is being carried out.
type call struct {
	Caller
	b    []byte // the command
	room int    // for the response, in bytes
}

// in decodes the command.
func (k *call) in(v any) error {
	if err := uapi.Decode(k.b, v); err != nil {
		return errors.Join(err, syscall.EINVAL)
	}
	return nil
}

// inPrefix decodes a command that older programs write without its end.
func (k *call) inPrefix(least int, v any) error {
	if err := uapi.DecodePrefix(k.b, least, v); err != nil {
		return errors.Join(err, syscall.EINVAL)
	}
	return nil
}

// needs says that the program has room for n bytes of the response. Linux looks at that before anything else.
func (k *call) needs(n int) error {
	if k.room < n {
		return syscall.ENOSPC
	}
	return nil
}

// needsAll is needs for a response that has not grown.
func (k *call) needsAll(resp any) error { return k.needs(binary.Size(resp)) }

// out writes as much of a response as the program has room for.
func (k *call) out(addr uint64, resp any) error { return k.put(addr, uapi.Append(nil, resp)) }

func (k *call) put(addr uint64, b []byte) error {
	if err := k.WriteMemory(addr, b[:min(len(b), k.room)]); err != nil {
		return errors.Join(err, syscall.EFAULT)
	}
	return nil
}

// Errno returns the error number that Linux would give a program for an error.
func Errno(err error) syscall.Errno {
	if errors.Is(err, ErrWouldBlock) {
		return syscall.EAGAIN
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	for _, k := range []struct {
		kind  error
		errno syscall.Errno
	}{
		{verbs.ErrBusy, syscall.EBUSY},
		{verbs.ErrLimit, syscall.ENOMEM},
		{verbs.ErrQueueFull, syscall.ENOMEM},
		{verbs.ErrUnsupported, syscall.EOPNOTSUPP},
		{verbs.ErrNotFound, syscall.ENODEV},
		{verbs.ErrClosed, syscall.EIO},
	} {
		if errors.Is(err, k.kind) {
			return k.errno
		}
	}
	return syscall.EINVAL
}
