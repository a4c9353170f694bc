package wire

// A DecodeError says why bytes are not a packet, or not the message that a packet should carry. The
// values are single bytes, which Go converts to the error interface without allocating. Hostile
// packets may arrive at line rate and must not make garbage.
type DecodeError uint8

const (
	ErrShort       DecodeError = iota + 1 // ends before its headers and ICRC do
	ErrOpcode                             // opcode that this package does not know
	ErrTVer                               // transport header version other than 0
	ErrPad                                // pad count greater than the number of bytes behind the headers
	ErrLength                             // not a multiple of 4 bytes long
	ErrShortMAD                           // management datagram, or a part of one, that ends before its fields do
	ErrIPCMVersion                        // IP CM header of another version, or for another kind of address
	ErrLinkVersion                        // LRH or GRH of another version
)

var decodeErrors = [...]string{
	ErrShort:  "decode packet: datagram ends before its headers and ICRC do",
	ErrOpcode: "decode packet: unknown opcode in the BTH",
	ErrTVer:   "decode packet: transport header version in the BTH is not 0",
	ErrPad:    "decode packet: pad count in the BTH exceeds the payload",
	ErrLength: "decode packet: length of the datagram is not a multiple of 4",

	ErrShortMAD:    "decode management datagram: it ends before its fields do",
	ErrIPCMVersion: "decode IP CM header: version is not 0, or IP version is neither 4 nor 6",
	ErrLinkVersion: "decode packet: version of the LRH is not 0, or that of the GRH not 6",
}

func (e DecodeError) Error() string {
	if int(e) < len(decodeErrors) && e != 0 {
		return decodeErrors[e]
	}
	return "decode packet: unknown error"
}
