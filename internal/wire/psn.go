package wire

// A PSN is a packet sequence number. It has 24 bits and counts modulo 2^24. Of two PSNs, the later
// one is less than 2^23 ahead of the other. So a sender may never have more than 2^23 packets
// outstanding.
type PSN uint32

// PSNMask selects the 24 bits that a PSN has.
const PSNMask PSN = 1<<24 - 1

// Add returns the PSN n packets after p, or before p for a negative n.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & PSNMask }

// Diff returns p-q as the shortest signed distance, in [-2^23, 2^23): positive when p comes after q.
func (p PSN) Diff(q PSN) int {
	// With the 24 bits at the top, the arithmetic shift back extends the sign.
	return int(int32((p-q)<<8) >> 8)
}

// Less reports whether p comes before q.
func (p PSN) Less(q PSN) bool { return p.Diff(q) < 0 }

// LessEq reports whether p comes before q or is q.
func (p PSN) LessEq(q PSN) bool { return p.Diff(q) <= 0 }

// String returns p as six hexadecimal digits, like 0x05d592. The pingpong programs print PSNs in
// this form, so that a trace can be searched for them. (Wireshark shows the same number in
// decimal.)
func (p PSN) String() string { return string(appendHex(nil, uint64(p), 6)) }

// appendHex appends v as 0x and at least digits lower-case hexadecimal digits.
func appendHex(b []byte, v uint64, digits int) []byte {
	const hex = "0123456789abcdef"
	for digits < 16 && v>>(4*digits) != 0 {
		digits++
	}
	b = append(b, '0', 'x')
	for i := digits - 1; i >= 0; i-- {
		b = append(b, hex[v>>(4*i)&0xf])
	}
	return b
}
