// Package agent runs commands in a guest of the lab. The package contains the protocol, the guest's
// end ([Serve]) and the host's end ([Start]).
//
// Each TCP connection runs one command. The host sends a request, and may send signals after the
// request. While the command runs, the guest sends the command's stdout and stderr. At the end, the
// guest sends the status and closes the connection. If the connection ends earlier, the guest kills
// the command and all processes that the command started.
package agent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Port is the TCP port of the agent in a guest. Programs under test must not use it.
const Port = 1

const maxFrame = 64 << 20 // bytes; a request may contain a file

// These are the kinds of frames. A frame is its kind (1 byte), the length of its body (4 bytes, big
// endian), and the body.
const (
	frameRequest = 'q' // JSON of a Request
	frameSignal  = 's' // one byte
	frameStdout  = 'o'
	frameStderr  = 'e'
	frameStatus  = 'x' // JSON of a Status
)

// Request names the command that the agent is to run.
type Request struct {
	Argv  []string `json:",omitempty"`
	Env   []string `json:",omitempty"` // in addition to the agent's environment
	Stdin []byte   `json:",omitempty"`

	// AwaitTCP is a TCP port, or 0. If AwaitTCP is set, the agent runs no command, and sends the
	// status when a socket listens on the port.
	AwaitTCP int `json:",omitempty"`
}

// Status says how a command ended.
type Status struct {
	Code   int    // exit status, or -1
	Signal string `json:",omitempty"` // the signal that ended the command, such as "killed"
	Err    string `json:",omitempty"` // why the command did not run
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

// Ready is the line that the agent prints on the guest's console when it accepts connections.
const Ready = "adverb lab: the guest is ready"
