package supervisor

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	// foreignBit marks the calls of x32, which have the architecture of amd64 and other structures.
	foreignBit = 0x40000000
	fstatat    = unix.SYS_NEWFSTATAT
)

var legacyCalls = []numbered{
	{unix.SYS_OPEN, opOpen},
	{unix.SYS_CREAT, opCreat},
	{unix.SYS_STAT, opStat},
	{unix.SYS_LSTAT, opLstat},
	{unix.SYS_ACCESS, opAccess},
	{unix.SYS_READLINK, opReadlink},
	{unix.SYS_DUP2, opDup2},
}

var legacyMapCalls = []numbered{{unix.SYS_FORK, opFork}}
