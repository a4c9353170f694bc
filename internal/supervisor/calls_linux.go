//go:build amd64 || arm64

package supervisor

import "golang.org/x/sys/unix"

// An op says how a system call is answered. The zero value is for calls that only a Rule notifies.
type op uint8

const (
	opOther op = iota

	// Calls that name a path.
	opOpen
	opOpenat
	opOpenat2
	opCreat
	opStat
	opLstat
	opFstatat
	opStatx
	opAccess
	opFaccessat // has no flags
	opFaccessat2
	opReadlink
	opReadlinkat
	opGetxattr
	opLgetxattr
	opListxattr
	opLlistxattr
	opStatfs

	// Calls that have other effects on replaced pages: see Filter.Map.
	opFork
	opClone
	opClone3
	opMadvise
	opMremap

	// Calls whose first argument is a descriptor in the range.
	opRead
	opReadv
	opWrite
	opWritev
	opSeek // lseek, pread, pwrite and their vectors: a device has no position
	opIoctl
	opFstat
	opDup
	opDup2
	opDup3
	opFcntl
)

// numbered is a system call that the filter notifies.
type numbered struct {
	number uint32
	op     op
}

// commonCalls are those that each architecture has. legacyCalls are those that only old architectures have.
var commonCalls = []numbered{
	{unix.SYS_WRITE, opWrite},
	{unix.SYS_READ, opRead},
	{unix.SYS_IOCTL, opIoctl},
	{unix.SYS_OPENAT, opOpenat},
	{fstatat, opFstatat},
	{unix.SYS_FSTAT, opFstat},
	{unix.SYS_STATX, opStatx},
	{unix.SYS_READLINKAT, opReadlinkat},
	{unix.SYS_FACCESSAT, opFaccessat},
	{unix.SYS_FACCESSAT2, opFaccessat2},
	{unix.SYS_OPENAT2, opOpenat2},
	{unix.SYS_FCNTL, opFcntl},
	{unix.SYS_DUP, opDup},
	{unix.SYS_DUP3, opDup3},
	{unix.SYS_READV, opReadv},
	{unix.SYS_WRITEV, opWritev},
	{unix.SYS_LSEEK, opSeek},
	{unix.SYS_PREAD64, opSeek},
	{unix.SYS_PWRITE64, opSeek},
	{unix.SYS_PREADV, opSeek},
	{unix.SYS_PWRITEV, opSeek},
	{unix.SYS_GETXATTR, opGetxattr},
	{unix.SYS_LGETXATTR, opLgetxattr},
	{unix.SYS_LISTXATTR, opListxattr},
	{unix.SYS_LLISTXATTR, opLlistxattr},
	{unix.SYS_STATFS, opStatfs},
}

// calls are all that the filter notifies, but for those of rules.
var calls = append(commonCalls[:len(commonCalls):len(commonCalls)], legacyCalls...)

// mapCalls are those that only a filter with Map notifies, beside legacyMapCalls.
var mapCalls = append([]numbered{
	{unix.SYS_MADVISE, opMadvise},
	{unix.SYS_CLONE, opClone},
	{unix.SYS_CLONE3, opClone3},
	{unix.SYS_MREMAP, opMremap},
}, legacyMapCalls...)

// mostNumber is above the number of each call in the table.
const mostNumber = 512

// ops finds the op of a call by its number.
var ops = func() (t [mostNumber]op) {
	for _, list := range [][]numbered{calls, mapCalls} {
		for _, c := range list {
			t[c.number] = c.op
		}
	}
	return t
}()

func opOf(number int32) op {
	if number < 0 || number >= mostNumber {
		return opOther
	}
	return ops[number]
}

// onDescriptor reports whether the first argument is a descriptor, by whose number the filter decides.
func (o op) onDescriptor() bool { return o >= opRead }
