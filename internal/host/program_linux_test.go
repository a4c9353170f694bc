//go:build !adverb_portable

package host

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// datagramTo returns an RC datagram to a QP. The byte before the QPN, which is in the same word, is
// 0xff.
func datagramTo(qpn uint32) []byte {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: qpn}, Payload: []byte("payload")}
	b := p.AppendTo(nil)
	b[destQPOffset] = 0xff // FECN, BECN and reserved bits
	return b
}

// run runs a program over a datagram and returns the index, as the kernel does.
func run(t testing.TB, p []bpf.Instruction, b []byte) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(p)
	if err != nil {
		t.Fatal(err)
	}
	index, err := vm.Run(b)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(index)
}

func TestProgram(t *testing.T) {
	const (
		standIn = 7
		highest = controlBlock - 1
	)
	steer := map[uint32]int{1: 0, 2: 1, 0xabc: 300, 0x800: 2, highest: 3}
	ud := wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, DestQP: 0xabc<<blockBits | 5}, Payload: make([]byte, 8)}
	tests := []struct {
		name     string
		datagram []byte
		want     uint32
	}{
		{"the first QP of a block", datagramTo(1 << blockBits), 0},
		{"the last QP of a block", datagramTo(2<<blockBits - 1), 0},
		{"the block after it", datagramTo(2 << blockBits), 1},
		{"a high index", datagramTo(0xabc<<blockBits | 0x123), 300},
		{"the top bit of the QPN", datagramTo(0x800 << blockBits), 2},
		{"the highest block", datagramTo(highest<<blockBits | 0xfff), 3},
		{"a UD datagram", ud.AppendTo(nil), 300},
		{"a block without an owner", datagramTo(3 << blockBits), standIn},
		{"QP0", datagramTo(0), standIn},
		{"REQ to QP1", mad(wire.CMREQ, 0x1060000, 1), standIn},
		{"REP to QP1", mad(wire.CMREP, 2<<(32-(24-blockBits)), 1), standIn}, // the program looks at the QPN only, not at the communication ID
		{"probe of index 0", datagramTo(controlBlock << blockBits), 0},
		{"probe of index 5", datagramTo(controlBlock<<blockBits | 5), 5},
		{"probe of the last index", datagramTo(controlBlock<<blockBits | 0xffe), 0xffe},
		{"multicast QPN", datagramTo(1<<24 - 1), 0xfff},
		{"nothing but a QPN", binary.BigEndian.AppendUint32(make([]byte, destQPOffset), 0xabc<<blockBits), 300},
		{"one byte too few for a QPN", make([]byte, destQPOffset+3), 0},
		{"four bytes", make([]byte, 4), 0},
		{"empty", nil, 0},
	}
	for _, tt := range tests {
		if got := run(t, program(steer, maxSteered, standIn), tt.datagram); got != tt.want {
			t.Errorf("%s: index %d, want %d", tt.name, got, tt.want)
		}
	}
	// Before the first survey no block is known. Only probes find their way.
	for _, tt := range []struct{ qpn, want uint32 }{{0xabc << blockBits, noSocket}, {1, noSocket}, {controlBlock<<blockBits | 9, 9}} {
		if got := run(t, program(nil, 0, noSocket), datagramTo(tt.qpn)); got != tt.want {
			t.Errorf("without blocks, QPN %#06x: index %#x, want %#x", tt.qpn, got, tt.want)
		}
	}
}

// A datagram for QP1 goes to the process that stands in for all at the address.
func TestProgramSpecialBlock(t *testing.T) {
	p := program(map[uint32]int{specialBlock: 4, 9: 1}, maxSteered, 2)
	if got := run(t, p, mad(wire.CMREQ, 0x1060000, 1)); got != 4 {
		t.Errorf("REQ to QP1: index %d, want 4", got)
	}
	if got := run(t, p, datagramTo(10<<blockBits)); got != 2 {
		t.Errorf("a block without an owner: index %d, want 2", got)
	}
}

// However many blocks there are, the program stays within the kernel's limit of 4096 instructions.
func TestProgramFull(t *testing.T) {
	const other = 1000
	steer := map[uint32]int{}
	for b := uint32(1); b < controlBlock; b++ {
		steer[b] = int(b % 100)
	}
	p := program(steer, maxSteered, other)
	raw, err := bpf.Assemble(p)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(raw); n > 4096 || n != 9+2*maxSteered {
		t.Errorf("%d blocks make %d instructions, want %d", len(steer), n, 9+2*maxSteered)
	}
	for b, want := range map[uint32]uint32{1: 1, maxSteered: maxSteered % 100, maxSteered + 1: other, controlBlock - 1: other} {
		if got := run(t, p, datagramTo(b<<blockBits)); got != want {
			t.Errorf("block %d: index %d, want %d", b, got, want)
		}
	}
}
