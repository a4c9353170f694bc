package verbs

import "fmt"

// QPN is the number of a queue pair: 24 bits on InfiniBand and RoCE.
type QPN uint32

// String prints six hexadecimal digits, as in 0x000011.
func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

// PSN is a packet sequence number: 24 bits, and 0 follows 2^24-1.
type PSN uint32

// String prints six hexadecimal digits, as in 0x000011.
func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// max24 is the largest QPN and PSN.
const max24 = 1<<24 - 1

// SRQN is the number of an XRC SRQ, 24 bits: messages of XRC QPs name one.
type SRQN uint32

// String prints six hexadecimal digits, as in 0x000011.
func (n SRQN) String() string { return fmt.Sprintf("0x%06x", uint32(n)) }

// LKey is the key by which an SGE names a memory region of this device.
type LKey uint32

// String prints eight hexadecimal digits.
func (k LKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// RKey is the key by which a peer names a memory region or a memory window.
type RKey uint32

// String prints eight hexadecimal digits.
func (k RKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// PKey is a partition key: QPs talk only within a partition. On RoCE there is one, 0xffff.
type PKey uint16

// String prints four hexadecimal digits.
func (k PKey) String() string { return fmt.Sprintf("0x%04x", uint16(k)) }

// QKey is the queue key of a UD QP. A datagram must carry the Q_Key of the QP that it is for.
type QKey uint32

// String prints eight hexadecimal digits.
func (k QKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// GUID is a globally unique identifier of a device (EUI-64), most significant byte first.
type GUID [8]byte

// String prints the GUID as ibv_devinfo does, as in 0098:00ff:fe00:1001.
func (g GUID) String() string {
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7])
}

// names are the names that the C library has for the values of an enumeration.
type names[T ~int8 | ~uint8 | ~uint16 | ~uint32 | ~int] struct {
	prefix string // printed before the number of an unknown value
	of     map[T]string
}

func (n names[T]) name(v T) string {
	if s, ok := n.of[v]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", n.prefix, int(v))
}

// flagNames joins the names of the bits that are set in v by "|". Bits without a name are printed as
// one number.
func flagNames(v uint64, bits []flagName) string {
	if v == 0 {
		return "0"
	}
	s := ""
	for _, b := range bits {
		if v&b.bit == 0 {
			continue
		}
		if s != "" {
			s += "|"
		}
		s += b.name
		v &^= b.bit
	}
	if v != 0 {
		if s != "" {
			s += "|"
		}
		s += fmt.Sprintf("%#x", v)
	}
	return s
}

type flagName struct {
	bit  uint64
	name string
}
