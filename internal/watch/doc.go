// Package watch lets the user look into programs that have devices open: "adverb stat" and "adverb res".
//
// A program with an open device listens on an abstract unix socket, named after its user and its process ID. A client
// sends a line with its question, and gets a [Process] as JSON. The kernel tells both ends the identity of the other:
// a program answers its own user and root, and a client believes programs of its own user, and root those of all
// users that it can tell from others (package user).
//
// Neither end can be held up by the other: each conversation has a deadline, an answer a size, and few conversations
// run at a time. Nor can strangers hide programs by names like theirs: a socket's owner is found first. Ask reports
// the programs that could not be asked in time. A program chooses the text of its answer, so the tool removes
// characters from it that a terminal would obey ([Clean]).
//
// A program may have devices open for other processes ([OpenedFor]). The client then shows those processes, as far as they
// are of the program's user.
//
// Without abstract unix sockets, which is everywhere but on Linux, nobody listens.
package watch

import (
	"errors"
	"time"
)

// EnvOff names the environment variable that, set to 0, keeps a program from listening.
const EnvOff = "ADVERB_WATCH"

// Want is the question.
type Want string

const (
	WantStat   Want = "stat"    // the counters of devices and ports
	WantQPStat Want = "stat qp" // and those of QPs
	WantRes    Want = "res"     // the open objects
)

func (w Want) valid() bool { return w == WantStat || w == WantQPStat || w == WantRes }

// ErrUnsupported is the error of asking on a system where programs cannot listen.
var ErrUnsupported = errors.New("ask the programs of this host: that needs Linux's abstract unix sockets")

// This implementation chose these.
const (
	// socketDir begins the names of the sockets. The user's ID and the process's follow.
	socketDir = "@adverb/watch/"

	answerTime    = time.Second     // for a conversation, at both ends
	maxAnswer     = 32 << 20        // bytes
	maxRequest    = 64              // bytes
	conversations = 4               // that a program has at a time; further ones are turned away
	askAtOnce     = 64              // programs that are asked at a time
	askOfUser     = 16              // programs of a user that are asked at a time
	listTime      = 2 * time.Second // for the list of the host's sockets
	askTime       = 9 * time.Second // until the last question, the list included
	toldOfUser    = 8               // programs of a user for each of which the asker gets the reason of its silence
	told          = 64              // texts about missing answers
	maxObjects    = 10_000          // objects of a kind that a device lists; the rest is counted
	maxQPCounters = 2_000           // QPs whose counters a device lists
)
