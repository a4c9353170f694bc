// Package agent is how the lab runs commands in a guest: the protocol, the end in the guest
// ([Serve]) and the end on the host ([Start]).
//
// One TCP connection runs one command. The host sends a request, and may send signals; the guest
// sends what the command writes to stdout and stderr as it comes, then the status, and closes. If
// the connection ends before that, the guest kills the command and all that it started.
package agent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Port is the TCP port of the agent in a guest. Tools must leave it alone.
const Port = 1

const maxFrame = 64 << 20 // bytes: a request holds files

// Kinds of frames: a kind (1 byte), a length (4, big endian), and so many bytes.
const (
	frameRequest = 'q' // JSON of a Request
	frameSignal  = 's' // one byte
	frameStdout  = 'o'
	frameStderr  = 'e'
	frameStatus  = 'x' // JSON of a Status
)

// Request says what to run.
type Request struct {
	Argv  []string `json:",omitempty"`
	Env   []string `json:",omitempty"` // added to the agent's own
	Stdin []byte   `json:",omitempty"`

	// AwaitTCP, if not 0, runs nothing: the status comes when a TCP socket listens on that port.
	AwaitTCP int `json:",omitempty"`
}

// Status says how a command ended.
type Status struct {
	Code   int    // exit status, or -1
	Signal string `json:",omitempty"` // that ended it, as "killed"
	Err    string `json:",omitempty"` // it did not run: why
}

func (s Status) String() string {
	switch {
	case s.Err != "":
		return s.Err
	case s.Signal != "":
		return "signal: " + s.Signal
	}
	return fmt.Sprintf("exit status %d", s.Code)
}

func writeFrame(w io.Writer, kind byte, body []byte) error {
	frame := make([]byte, 5, 5+len(body))
	frame[0] = kind
	binary.BigEndian.PutUint32(frame[1:], uint32(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

func writeJSON(w io.Writer, kind byte, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFrame(w, kind, body)
}

func readFrame(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("read frame of the lab's agent: %d bytes, limit %d", n, maxFrame)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}

// Ready is the line that the agent prints on the guest's console when it can be called.
const Ready = "adverb lab: the guest is ready"
