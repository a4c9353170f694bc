package capture

import (
	"golang.org/x/net/bpf"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// view says where a filter program finds the parts of a frame.
type view struct {
	kind    bpf.Instruction // loads the Ethernet type
	network uint32          // where the network header begins
}

var (
	// liveView is that of the kernel's packet sockets, for links of all kinds: offsets from SKF_NET_OFF on count from the
	// network header.
	liveView = view{bpf.LoadExtension{Num: bpf.ExtProto}, 0xfff00000}
	// frameView is that of an Ethernet frame without tags.
	frameView = view{bpf.LoadAbsolute{Off: 12, Size: 2}, ethernetSize}
)

// mpaWord is the beginning of the frames that open an iWARP connection.
const mpaWord = 0x4d504120 // "MPA "

// filter returns a program that takes the frames of which a [Decoder] makes something: RoCE, what tells of its network,
// and of TCP the beginnings of iWARP connections and all of some ports. It looks into VXLAN and Geneve, of which a host
// may carry much.
func filter(v view, ports []uint16) ([]bpf.RawInstruction, error) {
	var p program
	p.add(v.kind)
	p.when(bpf.JumpEqual, typeIPv4, "ipv4")
	p.when(bpf.JumpEqual, typeIPv6, "ipv6")
	for _, t := range []uint32{typeRoCEv1, typePause, typeARP, typeMPLS, typeVLAN, typeQinQ, typeOldQinQ} {
		p.when(bpf.JumpEqual, t, "take")
	}
	p.to("leave")

	// X becomes the offset of the transport header from the network header, and M[0] the protocol.
	p.label("ipv4")
	p.add(bpf.LoadAbsolute{Off: v.network + 6, Size: 2})
	p.when(bpf.JumpBitsSet, ipv4OffsetMask, "leave")
	p.add(bpf.LoadMemShift{Off: v.network}, bpf.LoadAbsolute{Off: v.network + 9, Size: 1}, bpf.StoreScratch{Src: bpf.RegA})
	p.to("outer")
	p.label("ipv6")
	p.add(bpf.LoadConstant{Dst: bpf.RegX, Val: ipv6Size}, bpf.LoadAbsolute{Off: v.network + 6, Size: 1}, bpf.StoreScratch{Src: bpf.RegA})

	p.label("outer")
	p.when(bpf.JumpNotEqual, protocolUDP, "transport")
	p.add(bpf.LoadIndirect{Off: v.network + 2, Size: 2})
	p.when(bpf.JumpEqual, portGeneve, "geneve")
	p.when(bpf.JumpEqual, portVXLAN, "vxlan")
	p.when(bpf.JumpEqual, portOldVXLAN, "vxlan")
	p.to("transport")
	p.label("geneve")
	p.add(bpf.LoadIndirect{Off: v.network + udpSize, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0x3f}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2})
	p.to("inner")
	p.label("vxlan")
	p.add(bpf.LoadConstant{Dst: bpf.RegA})
	p.label("inner") // A is the size of the tunnel's options
	p.add(bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: udpSize + vxlanSize + ethernetSize}, bpf.TAX{})
	p.add(bpf.LoadIndirect{Off: v.network - 2, Size: 2})
	p.when(bpf.JumpEqual, typeIPv4, "inner ipv4")
	p.when(bpf.JumpEqual, typeIPv6, "inner ipv6")
	for _, t := range []uint32{typeRoCEv1, typeVLAN, typeQinQ} {
		p.when(bpf.JumpEqual, t, "take")
	}
	p.to("leave")
	p.label("inner ipv4")
	p.add(bpf.LoadIndirect{Off: v.network + 9, Size: 1}, bpf.StoreScratch{Src: bpf.RegA})
	p.add(bpf.LoadIndirect{Off: v.network, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 2}, bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.TAX{})
	p.to("transport")
	p.label("inner ipv6")
	p.add(bpf.LoadIndirect{Off: v.network + 6, Size: 1}, bpf.StoreScratch{Src: bpf.RegA})
	p.add(bpf.TXA{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: ipv6Size}, bpf.TAX{})

	p.label("transport")
	p.add(bpf.LoadScratch{Dst: bpf.RegA})
	p.when(bpf.JumpEqual, protocolUDP, "udp")
	p.when(bpf.JumpEqual, protocolTCP, "tcp")
	p.when(bpf.JumpEqual, protocolICMP, "icmp")
	p.when(bpf.JumpEqual, protocolICMPv6, "icmpv6")
	for _, n := range []uint32{protocolGRE, protocolIPv4, protocolIPv6, protocolHopByHop, protocolRouting, protocolDestination} {
		p.when(bpf.JumpEqual, n, "take")
	}
	p.to("leave")
	p.label("udp")
	p.add(bpf.LoadIndirect{Off: v.network + 2, Size: 2})
	p.when(bpf.JumpEqual, wire.UDPPort, "take")
	p.to("leave")
	p.label("icmp")
	p.add(bpf.LoadIndirect{Off: v.network, Size: 1})
	p.when(bpf.JumpEqual, icmpUnreachable, "take")
	p.when(bpf.JumpEqual, icmpExceeded, "take")
	p.to("leave")
	p.label("icmpv6")
	p.add(bpf.LoadIndirect{Off: v.network, Size: 1})
	p.when(bpf.JumpLessThan, icmpv6Informs, "take")
	p.to("leave")

	p.label("tcp")
	for _, at := range []uint32{0, 2} {
		p.add(bpf.LoadIndirect{Off: v.network + at, Size: 2})
		for _, port := range ports {
			p.when(bpf.JumpEqual, uint32(port), "take")
		}
	}
	p.add(bpf.LoadIndirect{Off: v.network + 12, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0}, bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2}, bpf.ALUOpX{Op: bpf.ALUOpAdd}, bpf.TAX{})
	p.add(bpf.LoadIndirect{Off: v.network, Size: 4})
	p.when(bpf.JumpEqual, mpaWord, "take")

	p.label("leave")
	p.add(bpf.RetConstant{})
	p.label("take")
	p.add(bpf.RetConstant{Val: maxFrame})
	return bpf.Assemble(p.resolve())
}

// Types of ICMP messages.
const (
	icmpUnreachable = 3
	icmpExceeded    = 11
	icmpv6Informs   = 128 // the first that is no error
)

// program is a filter program, whose jumps name labels.
type program struct {
	code   []bpf.Instruction
	labels map[string]int
	jumps  map[int]string
}

func (p *program) add(in ...bpf.Instruction) { p.code = append(p.code, in...) }

func (p *program) label(name string) {
	if p.labels == nil {
		p.labels = map[string]int{}
	}
	p.labels[name] = len(p.code)
}

// to jumps to a label, which stands further on.
func (p *program) to(label string) { p.jump(bpf.Jump{}, label) }

// when jumps to a label if a test of register A holds.
func (p *program) when(test bpf.JumpTest, val uint32, label string) {
	p.jump(bpf.JumpIf{Cond: test, Val: val}, label)
}

func (p *program) jump(in bpf.Instruction, label string) {
	if p.jumps == nil {
		p.jumps = map[int]string{}
	}
	p.jumps[len(p.code)] = label
	p.add(in)
}

// resolve returns the program with the distances of its jumps. A conditional jump that is too far goes over one that is
// not conditional, so none may be.
func (p *program) resolve() []bpf.Instruction {
	for at, label := range p.jumps {
		skip := p.labels[label] - at - 1
		switch in := p.code[at].(type) {
		case bpf.Jump:
			p.code[at] = bpf.Jump{Skip: uint32(skip)}
		case bpf.JumpIf:
			in.SkipTrue = uint8(skip)
			p.code[at] = in
		}
	}
	return p.code
}

// maxFilterPorts bounds the TCP ports of a filter: the jumps over their tests have 8 bits.
const maxFilterPorts = 32
