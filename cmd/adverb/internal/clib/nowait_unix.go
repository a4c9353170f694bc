//go:build unix

package clib

import "syscall"

// noWait has the opening of a pipe or of a device wait for nobody. Regular files do not know it.
const noWait = syscall.O_NONBLOCK
