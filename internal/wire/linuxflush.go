package wire

// Linux's rdma_rxe (from 6.2 on; seen of 6.12) takes the ICRC of a FLUSH over the headers from the BTH on, and then over the same
// bytes once more, unmasked: its table of opcodes does not say where the payload of a FLUSH begins, so that of none begins at the BTH
// and has the length of the headers. It drops other FLUSHes, and others drop those of Linux.

// FlushLen is the length of a FLUSH, from its BTH to its ICRC.
const FlushLen = BTHSize + FETHSize + RETHSize + ICRCSize

// SealLinuxFlush gives a FLUSH that is sealed the ICRC that Linux wants.
func SealLinuxFlush(datagram []byte) {
	putICRC(datagram, updateCRC(foundICRC(datagram), datagram[:len(datagram)-ICRCSize]))
}

// UnsealLinuxFlush undoes SealLinuxFlush, so that the FLUSH of a Linux verifies. It reports whether the datagram may be one.
func UnsealLinuxFlush(datagram []byte) bool {
	if len(datagram) != FlushLen || Opcode(datagram[0]) != RCFlush {
		return false
	}
	const poly = 0xedb88320 // its top bit is set, so the top bit tells whether a step has added it
	c := ^foundICRC(datagram)
	for i := FlushLen - ICRCSize - 1; i >= 0; i-- {
		for range 8 {
			if c>>31 != 0 {
				c = (c^poly)<<1 | 1
			} else {
				c <<= 1
			}
		}
		c ^= uint32(datagram[i])
	}
	putICRC(datagram, ^c)
	return true
}
