package supervisor

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_AARCH64
	foreignBit = 0 // programs of 32 bits have an architecture of their own
	fstatat    = unix.SYS_FSTATAT
)

var legacyCalls, legacyMapCalls []numbered
