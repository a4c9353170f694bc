package verbs

import "fmt"

// QPN is a queue pair number, 24 bits.
type QPN uint32

func (q QPN) String() string { return fmt.Sprintf("0x%06x", uint32(q)) }

// PSN is a packet sequence number, 24 bits.
type PSN uint32

func (p PSN) String() string { return fmt.Sprintf("0x%06x", uint32(p)) }

// max24 is the largest QPN and PSN.
const max24 = 1<<24 - 1

// LKey is the key by which local work requests name a memory region.
type LKey uint32

func (k LKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// RKey is the key by which a peer names a memory region.
type RKey uint32

func (k RKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// PKey is a partition key. RoCE devices have one, 0xffff.
type PKey uint16

func (k PKey) String() string { return fmt.Sprintf("0x%04x", uint16(k)) }

// QKey is the queue key of datagram QPs.
type QKey uint32

func (k QKey) String() string { return fmt.Sprintf("0x%08x", uint32(k)) }

// GUID is a globally unique identifier of a device (EUI-64), most significant byte first.
type GUID [8]byte

// String prints the GUID as ibv_devinfo does: 0098:00ff:fe00:1001.
func (g GUID) String() string {
	return fmt.Sprintf("%02x%02x:%02x%02x:%02x%02x:%02x%02x", g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7])
}

// names maps the values of an enumeration to the C library's spelling.
type names[T ~uint8 | ~uint16 | ~uint32 | ~int] struct {
	prefix string // printed before the number of an unknown value
	of     map[T]string
}

func (n names[T]) name(v T) string {
	if s, ok := n.of[v]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", n.prefix, int(v))
}

// flagNames prints a bit mask as the C spelling of its bits, joined by "|".
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
