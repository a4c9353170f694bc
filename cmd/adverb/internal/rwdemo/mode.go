package rwdemo

import (
	"fmt"
	"os"

	"github.com/adverb-rdma/adverb/verbs"
)

// Mode is the ends' operation on each other's memory.
type Mode string

// The modes.
const (
	Read  Mode = "read"
	Write Mode = "write"
)

// Valid reports whether there is such a mode.
func (m Mode) Valid() bool { return m == Read || m == Write }

// Access returns the rights to the two regions: no more than the mode needs.
func (m Mode) Access() (local, remote verbs.Access) {
	if m == Read {
		return verbs.AccessLocalWrite, verbs.AccessRemoteRead
	}
	return 0, verbs.AccessLocalWrite | verbs.AccessRemoteWrite
}

// Opcode is the operation on the peer's region.
func (m Mode) Opcode() verbs.Opcode {
	if m == Read {
		return verbs.OpRDMARead
	}
	return verbs.OpRDMAWrite
}

// Operating is the line that a program prints when it posts the operation.
func (m Mode) Operating() string {
	if m == Read {
		return "received MSG_MR. reading message from remote memory..."
	}
	return "received MSG_MR. writing message to remote memory..."
}

// Own returns which of an end's two regions its own text is in: the one that the peer reads, or the
// one that its own WRITE takes the text from.
func (m Mode) Own(local, remote *verbs.MR) *verbs.MR {
	if m == Read {
		return remote
	}
	return local
}

// Peers returns which of an end's two regions the peer's text comes to.
func (m Mode) Peers(local, remote *verbs.MR) *verbs.MR {
	if m == Read {
		return local
	}
	return remote
}

// The programs' output.
const (
	SendCompleted = "send completed successfully."
	RemoteBuffer  = "remote buffer: "
)

// Text is the text that an end shows to the other.
func Text(client bool) string {
	side := "passive/server"
	if client {
		side = "active/client"
	}
	return fmt.Sprintf("message from %s side with pid %d", side, os.Getpid())
}
