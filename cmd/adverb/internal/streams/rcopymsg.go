package streams

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// The messages of rcopy. Their numbers are in the host's order in C, which is little-endian on all hosts
// that matter, and always here.
const (
	headerSize = 16
	maxPath    = 4096

	cmdOpen   = 1    // data is the mode; the path follows, with a NUL and padding
	cmdClose  = 2    // of the file
	cmdWrite  = 3    // a size of 8 bytes follows, then the file's contents
	cmdVerify = 0x40 // ours alone: asks for the SHA-256 of the file that is open, which follows the answer

	response = 0x80 // data is 0 or an errno
)

// header begins each message.
type header struct {
	command byte
	length  uint16 // of the message, the header included
	data    uint32
	id      uint64
}

func (h *header) append(b []byte) []byte {
	b = append(b, 0, h.command)
	b = binary.LittleEndian.AppendUint16(b, h.length)
	b = binary.LittleEndian.AppendUint32(b, h.data)
	return binary.LittleEndian.AppendUint64(b, h.id)
}

// readHeader reads a header. The error at the end of the stream is io.EOF.
func readHeader(r io.Reader) (h header, err error) {
	var b [headerSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	h = header{b[1], binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])}
	if b[0] != 0 || h.length < headerSize {
		return h, fmt.Errorf("invalid version %d or length %d", b[0], h.length)
	}
	return h, nil
}

// openMessage returns the message that opens a file.
func openMessage(path string, mode uint32) []byte {
	padded := (len(path) + 8) &^ 7
	h := header{command: cmdOpen, length: uint16(headerSize + padded), data: mode}
	return append(append(h.append(nil), path...), make([]byte, padded-len(path))...)
}

// readPath reads the path behind an open message's header.
func readPath(r io.Reader, h *header) (string, error) {
	n := int(h.length) - headerSize
	if n > maxPath {
		return "", fmt.Errorf("a path of %d bytes, limit %d", n, maxPath)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", err
	}
	path, _, ok := strings.Cut(string(b), "\x00")
	if !ok || path == "" {
		return "", fmt.Errorf("a path without an end, or of no bytes")
	}
	return path, nil
}

func writeMessage(size int64) []byte {
	h := header{command: cmdWrite, length: headerSize + 8}
	return binary.LittleEndian.AppendUint64(h.append(nil), uint64(size))
}
