package capture

import (
	"testing"

	"golang.org/x/net/bpf"
)

func concat(parts ...any) (b []byte) {
	for _, p := range parts {
		switch p := p.(type) {
		case int: // a number of 16 bits
			b = append(b, byte(p>>8), byte(p))
		case []byte:
			b = append(b, p...)
		case string:
			b = append(b, p...)
		}
	}
	return b
}

func frameOf(kind int, payload []byte) []byte { return concat(make([]byte, 12), kind, payload) }

func overIPv4(protocol, options, fragment int, payload []byte) []byte {
	return concat([]byte{0x45 + byte(options), 0}, 0, 0, fragment, []byte{64, byte(protocol)}, 0, make([]byte, 8+4*options), payload)
}

func overIPv6(next int, payload []byte) []byte {
	return concat([]byte{0x60, 0, 0, 0}, len(payload), []byte{byte(next), 64}, make([]byte, 32), payload)
}

func toPort(port int, payload []byte) []byte { return concat(9, port, 0, 0, payload) }

func tcpTo(port, options int, payload string) []byte {
	return concat(9, port, make([]byte, 8), []byte{5<<4 + byte(options)<<4, 0x10}, make([]byte, 6+4*options), payload)
}

// The filter takes what the Decoder makes something of, and no more.
func TestFilter(t *testing.T) {
	code, err := filter(frameView, []uint16{7000, 7001})
	if err != nil {
		t.Fatal(err)
	}
	var list []bpf.Instruction
	for _, in := range code {
		list = append(list, in.Disassemble())
	}
	vm, err := bpf.NewVM(list)
	if err != nil {
		t.Fatal(err)
	}
	roce := toPort(4791, make([]byte, 20))
	inner := frameOf(typeIPv4, overIPv4(17, 1, 0, roce))
	for _, tt := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"RoCE v2", frameOf(typeIPv4, overIPv4(17, 0, 0x4000, roce)), true},
		{"RoCE v2 behind IP options", frameOf(typeIPv4, overIPv4(17, 3, 0x4000, roce)), true},
		{"RoCE v2 over IPv6", frameOf(typeIPv6, overIPv6(17, roce)), true},
		{"RoCE v1", frameOf(typeRoCEv1, make([]byte, 60)), true},
		{"a pause", frameOf(typePause, make([]byte, 46)), true},
		{"ARP", frameOf(typeARP, make([]byte, 46)), true},
		{"a tag that the kernel has left", frameOf(typeVLAN, make([]byte, 46)), true},
		{"DNS", frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(53, make([]byte, 20)))), false},
		{"a later fragment", frameOf(typeIPv4, overIPv4(17, 0, 0x00b9, roce)), false},
		{"VXLAN with RoCE", frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(portVXLAN, concat(make([]byte, 8), inner)))), true},
		{"VXLAN with RoCE over IPv6", frameOf(typeIPv6, overIPv6(17, toPort(portOldVXLAN, concat(make([]byte, 8), frameOf(typeIPv6, overIPv6(17, roce)))))), true},
		{"VXLAN with RoCE v1", frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(portVXLAN, concat(make([]byte, 8), frameOf(typeRoCEv1, make([]byte, 60)))))), true},
		{"VXLAN with DNS", frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(portVXLAN, concat(make([]byte, 8), frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(53, make([]byte, 20)))))))), false},
		{"Geneve with options and RoCE", frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(portGeneve, concat([]byte{3}, make([]byte, 7+12), inner)))), true},
		{"Geneve with HTTP", frameOf(typeIPv4, overIPv4(17, 0, 0, toPort(portGeneve, concat(make([]byte, 8), frameOf(typeIPv4, overIPv4(6, 0, 0, tcpTo(80, 0, "GET / HTTP"))))))), false},
		{"GRE", frameOf(typeIPv4, overIPv4(47, 0, 0, make([]byte, 40))), true},
		{"IP in IP", frameOf(typeIPv6, overIPv6(41, make([]byte, 40))), true},
		{"ICMP unreachable", frameOf(typeIPv4, overIPv4(1, 0, 0, []byte{3, 13, 0, 0})), true},
		{"a ping", frameOf(typeIPv4, overIPv4(1, 0, 0, []byte{8, 0, 0, 0})), false},
		{"ICMPv6 unreachable", frameOf(typeIPv6, overIPv6(58, []byte{1, 4, 0, 0})), true},
		{"a neighbour", frameOf(typeIPv6, overIPv6(58, []byte{135, 0, 0, 0})), false},
		{"an MPA request", frameOf(typeIPv4, overIPv4(6, 0, 0x4000, tcpTo(80, 3, "MPA ID Req Frame"))), true},
		{"HTTP", frameOf(typeIPv4, overIPv4(6, 0, 0x4000, tcpTo(80, 3, "GET / HTTP/1.1"))), false},
		{"an empty segment", frameOf(typeIPv4, overIPv4(6, 0, 0x4000, tcpTo(80, 3, ""))), false},
		{"an empty segment of a port that is followed", frameOf(typeIPv4, overIPv4(6, 0, 0x4000, tcpTo(7001, 3, ""))), true},
		{"LLDP", frameOf(0x88cc, make([]byte, 46)), false},
		{"cut short", frameOf(typeIPv4, []byte{0x45}), false},
	} {
		n, err := vm.Run(tt.frame)
		if err != nil || (n > 0) != tt.want {
			t.Errorf("%s: takes %d bytes, %v; want taken: %v", tt.name, n, err, tt.want)
		}
	}
}

// All jumps of the largest filter are short enough.
func TestFilterJumps(t *testing.T) {
	var ports []uint16
	for i := range uint16(maxFilterPorts) {
		ports = append(ports, 1000+i)
	}
	if _, err := filter(liveView, ports); err != nil {
		t.Fatal(err)
	}
	code, _ := filter(frameView, ports)
	if len(code) > 255 {
		t.Errorf("%d instructions: a jump from the first to the last has 8 bits", len(code))
	}
}
