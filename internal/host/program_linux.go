//go:build !adverb_portable

package host

import (
	"slices"

	"golang.org/x/sys/unix"
)

// maxSteered is how many blocks a program knows, 1.8 million QPs. The kernel makes three instructions of 8
// bytes for each, and before Linux 6.7 its usual limit for all (net.core.optmem_max) is 20 KiB.
// Datagrams for further blocks are passed on.
const maxSteered = 600

// noSocket is no index: the kernel then goes by its hash.
const noSocket = 1<<32 - 1

// program returns the classic BPF program that picks the socket of a datagram. steer has the
// socket's index for each block, and other is that for all other blocks: one whose process is not stopped.
func program(steer map[uint32]int, other uint32) []unix.SockFilter {
	load := func(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }
	jumpEqual := func(k uint32, jt, jf uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: jt, Jf: jf, K: k}
	}
	const (
		loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		and      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		shift    = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K
		toX      = unix.BPF_MISC | unix.BPF_TAX
		fromX    = unix.BPF_MISC | unix.BPF_TXA
		returnK  = unix.BPF_RET | unix.BPF_K
		returnA  = unix.BPF_RET | unix.BPF_A
	)
	p := []unix.SockFilter{
		load(loadWord, destQPOffset),
		load(and, 1<<24-1),
		load(toX, 0),
		load(shift, blockBits),
		// A number of the control block stands for the socket of that index.
		jumpEqual(controlBlock, 0, 3),
		load(fromX, 0),
		load(and, 1<<blockBits-1),
		load(returnA, 0),
	}
	blocks := make([]uint32, 0, len(steer))
	for b := range steer {
		blocks = append(blocks, b)
	}
	slices.Sort(blocks)
	for _, b := range blocks[:min(len(blocks), maxSteered)] {
		p = append(p, jumpEqual(b, 0, 1), load(returnK, uint32(steer[b])))
	}
	return append(p, load(returnK, other))
}

// destQPOffset is where the BTH has the word with the destination QPN.
const destQPOffset = 4
