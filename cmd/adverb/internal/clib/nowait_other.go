//go:build !unix

package clib

// noWait is for systems where opening a file may wait.
const noWait = 0
