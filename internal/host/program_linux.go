//go:build !adverb_portable

package host

import (
	"maps"
	"slices"

	"golang.org/x/net/bpf"
)

// A program knows up to maxSteered blocks, or fewSteered where the kernel takes no more. Datagrams for further
// blocks are passed on. A program may have 4096 instructions, of which a block takes two. They become three of
// 8 bytes in the kernel, whose usual limit for all of a socket's programs (net.core.optmem_max) is 128 KiB, and
// 20 KiB before Linux 6.7.
const (
	maxSteered = 2000
	fewSteered = 600
)

// noSocket is the index of no socket. The kernel then chooses a socket by its hash.
const noSocket = 1<<32 - 1

// destQPOffset is the offset of the word that ends with the destination QPN, in the BTH.
const destQPOffset = 4

// program returns the classic BPF program that picks the socket of a datagram. It begins at the
// UDP payload, which is the BTH, and returns the index of the socket. steer holds the index for
// each block that a process has claimed, and program takes the first most of them. All other blocks go
// to the index other: it should be that of a process which is not stopped.
//
// A datagram that is too short to have a QPN ends the program at the load, and goes to index 0.
func program(steer map[uint32]int, most int, other uint32) []bpf.Instruction {
	p := []bpf.Instruction{
		bpf.LoadAbsolute{Off: destQPOffset, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 1<<24 - 1},
		bpf.TAX{}, // the QPN
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: blockBits},
		// A QPN of the control block stands for the socket of that index.
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: controlBlock, SkipTrue: 3},
		bpf.TXA{},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 1<<blockBits - 1},
		bpf.RetA{},
	}
	blocks := slices.Sorted(maps.Keys(steer))
	for _, b := range blocks[:min(len(blocks), most)] {
		p = append(p,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: b, SkipTrue: 1},
			bpf.RetConstant{Val: uint32(steer[b])})
	}
	return append(p, bpf.RetConstant{Val: other})
}
