package streams

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"
)

// The messages of rcopy. Their numbers are in the host's order in C, which is little-endian on all hosts
// that matter, and always here.
const (
	headerSize = 16
	maxPath    = 4096

	cmdOpen  = 1    // data is the mode; the path follows, with a NUL and padding
	cmdClose = 2    // of the file
	cmdWrite = 3    // a size of 8 bytes follows, then the file's contents
	response = 0x80 // data is 0 or an errno

	// Ours alone.
	cmdVerify = 0x40 // asks for the SHA-256 of the file that is open, which follows the answer
	cmdTime   = 0x41 // the modification time of the file that is open: seconds and nanoseconds of 8 bytes follow
	cmdMkdir  = 0x42 // data is the mode; the path of a directory follows, as that of a file

	// idHello is the ID of a client's first command if the client is an adverb. A server that is one too answers with
	// idAdverb, where others answer with the same ID, and knows the commands above. Its answers may have words behind
	// their header, which say why.
	idHello  = 0x6164766572620001
	idAdverb = 0x6164766572620002

	maxWords = 1024
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
func openMessage(path string, mode uint32) []byte { return pathMessage(cmdOpen, path, mode) }

// pathMessage returns a message about a path.
func pathMessage(command byte, path string, mode uint32) []byte {
	padded := (len(path) + 8) &^ 7
	h := header{command: command, length: uint16(headerSize + padded), data: mode}
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

// timeMessage returns the message that gives the open file a modification time.
func timeMessage(t time.Time) []byte {
	b := (&header{command: cmdTime, length: headerSize + 16}).append(nil)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.Unix()))
	return binary.LittleEndian.AppendUint64(b, uint64(t.Nanosecond()))
}

func writeMessage(size int64) []byte {
	h := header{command: cmdWrite, length: headerSize + 8}
	return binary.LittleEndian.AppendUint64(h.append(nil), uint64(size))
}
