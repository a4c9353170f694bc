//go:build linux

package uverbs

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// channel is a stream of events that a program reads: a completion channel, or the descriptor of asynchronous events. It is
// a pipe, of which the program has the reading end, so that reading, polling and O_NONBLOCK need no call of ours. Each
// event begins with 8 bytes that say which object it is of.
type channel struct {
	size int // bytes of an event

	mu     sync.Mutex
	w      int               // not of os.File, which makes a descriptor blocking that it hands out; -1 once closed
	late   [][]byte          // events for which the pipe had no room
	counts map[uint64]uint32 // events that the program has read or will read, by object
}

// newChannel returns a channel and the reading end of its pipe, which is the caller's.
func newChannel(size int) (*channel, *os.File, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("create an event channel: pipe2: %w", err)
	}
	_ = unix.SetNonblock(p[1], true) // our end alone
	c := &channel{size: size, w: p[1], counts: map[uint64]uint32{}}
	return c, os.NewFile(uintptr(p[0]), "events"), nil
}

// send sends an event.
func (c *channel) send(event []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w < 0 {
		return
	}
	c.counts[object(event)]++
	c.late = append(c.late, event)
	c.flush()
}

// flush writes as many events as the pipe takes.
func (c *channel) flush() {
	for len(c.late) > 0 {
		if _, err := unix.Write(c.w, c.late[0]); err != nil {
			return // full, or without a reader
		}
		c.late = c.late[1:]
	}
}

// forget takes back the events of an object that the program has not read, and returns how many it has.
func (c *channel) forget(obj uint64) (read uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	read = c.counts[obj]
	delete(c.counts, obj)
	if c.w < 0 {
		return read
	}
	events := append(c.drain(), c.late...)
	c.late = nil
	for _, e := range events {
		if object(e) == obj {
			read--
			continue
		}
		c.late = append(c.late, e)
	}
	c.flush()
	return read
}

// drain reads the events that are in the pipe.
func (c *channel) drain() (events [][]byte) {
	r, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.w), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(r)
	for {
		e := make([]byte, c.size)
		if n, err := unix.Read(r, e); err != nil || n != c.size {
			return events
		}
		events = append(events, e)
	}
}

func (c *channel) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w >= 0 {
		unix.Close(c.w)
		c.w = -1
	}
}

// retry writes events for which the pipe had no room. A program that asks for another has read some.
func (c *channel) retry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w >= 0 {
		c.flush()
	}
}

func object(event []byte) uint64 { return binary.NativeEndian.Uint64(event) }
