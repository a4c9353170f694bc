package stage

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/adverb-rdma/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/verbs"
)

// lesson is a play: how it differs from the usual settings, and what the programs do.
type lesson struct {
	name     string
	set      func(*Settings)
	connects bool // the play begins with two QPs that do not exist; else they are in RTS
	play     func(*Stage) error
}

// lessons are in the order in which they teach.
var lessons []lesson

func init() { // a lesson's play leads back to the list
	lessons = []lesson{
		{name: "send", play: playSend},
		{name: "write", set: func(s *Settings) { s.Bytes = 256 }, play: func(s *Stage) error { s.b.show(useShared); return s.each(2, s.write) }},
		{name: "read", set: func(s *Settings) { s.Bytes = 2500 }, play: playRead},
		{name: "atomic", play: playAtomic},
		{name: "mtu", set: func(s *Settings) { s.Bytes = 3000 }, play: playMTU},
		{name: "connect", connects: true, play: playConnect},
		{name: "loss", set: func(s *Settings) { s.Bytes = 3072 }, play: func(s *Stage) error { s.b.show(useShared); return s.each(2, s.write) }},
		{name: "selective", set: func(s *Settings) { s.Bytes, s.Adverb = 3072, 1 }, play: func(s *Stage) error { s.b.show(useShared); return s.each(2, s.write) }},
		{name: "rnr", set: func(s *Settings) { s.RNRRetry = 2 }, play: playRNR},
		{name: "keys", play: playKeys},
		{name: "routing", set: func(s *Settings) { s.Bytes, s.Routing, s.Jitter = 8192, 1, 30 }, play: func(s *Stage) error { s.b.show(useShared); return s.each(1, s.write) }},
		{name: "free", set: func(s *Settings) { s.Bytes = 2048 }, play: playFree},
	}
}

func lessonNamed(name string) (*lesson, bool) {
	for i := range lessons {
		if lessons[i].name == name {
			return &lessons[i], true
		}
	}
	return nil, false
}

// Lessons returns the names of the lessons, in the order in which they teach.
func Lessons() (names []string) {
	for i := range lessons {
		names = append(names, lessons[i].name)
	}
	return names
}

// post has A post a work request about n bytes of a region of its own, and shows the regions that it is about. What fails
// leaves no trace, so that a play without it is the same.
func (s *Stage) post(wr verbs.SendWR, own string, n int, remote string) error {
	if n > 0 {
		wr.SGList = []verbs.SGE{s.a.region(own).SGE(0, n)}
	}
	if remote != "" && wr.Remote == (verbs.RemoteAddr{}) {
		wr.Remote = s.b.region(remote).Remote(0)
	}
	if err := s.a.post(wr); err != nil {
		return err
	}
	s.a.show(own)
	s.b.show(remote)
	return nil
}

func (s *Stage) send() error {
	return s.post(verbs.SendWR{Op: verbs.OpSend}, useSource, s.play.Bytes, "")
}

func (s *Stage) write() error { return s.writeBytes(s.play.Bytes) }

func (s *Stage) writeBytes(n int) error {
	return s.post(verbs.SendWR{Op: verbs.OpRDMAWrite}, useSource, n, useShared)
}

func (s *Stage) read() error {
	return s.post(verbs.SendWR{Op: verbs.OpRDMARead}, useLanding, s.play.Bytes, useShared)
}

const addend = 5

func (s *Stage) fetchAdd() error {
	return s.post(verbs.SendWR{Op: verbs.OpAtomicFetchAdd, CompareAdd: addend}, useLanding, 8, useCounter)
}

// postMore posts what a decision asks for.
func (s *Stage) postMore(a Action) error {
	switch a {
	case PostSend:
		return s.send()
	case PostWrite:
		return s.write()
	case PostRead:
		return s.read()
	}
	return s.fetchAdd()
}

// each has A do something so many times, when its send queue has room.
func (s *Stage) each(n int, do func() error) error {
	for range n {
		s.then(act{when: s.a.hasRoom, do: do})
	}
	return nil
}

// completed returns a condition: a program has polled so many completions.
func (n *node) completed(count int) func() bool { return func() bool { return len(n.done) >= count } }

func playSend(s *Stage) error {
	s.a.show(useSource)
	s.b.show(useInbox)
	s.then(act{do: func() error { return s.b.postReceive(s.play.Bytes) }})
	s.then(act{do: s.send})
	return nil
}

func playRead(s *Stage) error {
	fill(s.b.region(useShared).Bytes(), "B")
	s.b.show(useShared)
	s.a.show(useLanding)
	s.then(act{do: s.read})
	return nil
}

func playAtomic(s *Stage) error {
	s.a.show(useLanding)
	s.b.show(useCounter)
	s.then(act{do: s.fetchAdd})
	swap := func() error {
		return s.post(verbs.SendWR{Op: verbs.OpAtomicCmpSwap, CompareAdd: counterStart + addend, Swap: 100}, useLanding, 8, useCounter)
	}
	s.then(act{when: s.a.completed(1), do: swap})
	s.then(act{when: s.a.completed(2), do: swap})
	return nil
}

func playMTU(s *Stage) error {
	s.b.show(useShared)
	s.then(act{do: s.write})
	s.then(act{when: s.a.completed(1), do: func() error { return s.writeBytes(min(s.play.MTU, s.play.Bytes)) }})
	s.then(act{when: s.a.completed(2), do: s.read})
	return nil
}

// rnrLate is how late B posts its receive in the lesson of RNR NAKs.
const rnrLate = 300 * time.Microsecond

func playRNR(s *Stage) error {
	s.b.show(useInbox)
	s.then(act{do: s.send})
	s.then(act{after: rnrLate, do: func() error { return s.b.postReceive(s.play.Bytes) }})
	s.then(act{when: s.a.completed(1), do: s.send})
	return nil
}

func playKeys(s *Stage) error {
	s.b.show(useShared)
	s.then(act{do: s.write})
	s.then(act{when: s.a.completed(1), do: func() error {
		to := s.b.region(useShared).Remote(0)
		to.RKey++
		return s.post(verbs.SendWR{Op: verbs.OpRDMAWrite, Remote: to}, useSource, s.play.Bytes, useShared)
	}})
	s.then(act{do: s.write})
	return nil
}

func playFree(s *Stage) error {
	s.a.show(useSource)
	s.b.show(useInbox, useShared)
	s.then(act{do: func() error { return s.b.postReceive(s.play.Bytes) }})
	return nil
}

func playConnect(s *Stage) error {
	for _, n := range s.nodes() {
		if err := n.manageConnections(); err != nil {
			return err
		}
	}
	s.b.show(useInbox)
	a, b := s.a, s.b
	s.then(act{do: func() (err error) {
		if err = errors.Join(a.createQP(), a.toINIT()); err == nil {
			a.conn, err = a.cm.Connect(s.now, a.path(), cm.ConnectParams{Service: service, Params: a.params(), MTU: uint8(mtuCode(s.play.MTU)), RetryCount: uint8(s.play.Retry)})
		}
		return err
	}})
	var request, reply cm.Event
	s.then(act{when: b.awaits(cm.EventRequest), do: func() error {
		request = b.take()
		b.conn = request.Conn
		return errors.Join(b.createQP(), b.toINIT())
	}})
	s.then(act{do: func() error { return b.postReceive(s.play.Bytes) }})
	s.then(act{do: func() error { return b.toRTR(b.peerOf(request.Params)) }})
	s.then(act{do: func() error { return errors.Join(b.toRTS(), b.conn.Accept(s.now, b.params())) }})
	s.then(act{when: a.awaits(cm.EventReply), do: func() error {
		reply = a.take()
		return a.toRTR(a.peerOf(reply.Params))
	}})
	s.then(act{do: func() error { return errors.Join(a.toRTS(), a.conn.Ready(s.now)) }})
	s.then(act{do: s.send})
	s.then(act{when: func() bool { return len(a.done) > 0 && len(b.done) > 0 }, do: func() error { return a.conn.Disconnect(s.now, nil) }})
	return nil
}

func mtuCode(bytes int) verbs.MTU {
	m := verbs.MTU256
	for m.Bytes() < bytes {
		m++
	}
	return m
}

// check returns why memory is not what the completions promise, or nil. What has not completed promises nothing.
func (s *Stage) check() error {
	source, shared, inbox, landing := s.a.region(useSource).Bytes(), s.b.region(useShared).Bytes(), s.b.region(useInbox).Bytes(), s.a.region(useLanding).Bytes()
	n := s.play.Bytes
	var written, adds int
	for _, c := range s.a.done {
		switch {
		case c.Status != verbs.WCSuccess:
		case c.Op == verbs.WCRDMAWrite:
			written++
		case c.Op == verbs.WCFetchAdd:
			adds++
		}
	}
	least := n
	if s.play.Lesson == "mtu" && written < 2 {
		least = min(n, s.play.MTU)
	}
	if written > 0 && !bytes.Equal(shared[:least], source[:least]) {
		return fmt.Errorf("%d WRITEs have succeeded, and B's memory differs from A's", written)
	}
	for _, c := range s.b.done {
		if c.Status == verbs.WCSuccess && c.Op == verbs.WCRecv && c.ByteLen > 0 {
			slot := int(c.ID) % inboxSlots * (len(inbox) / inboxSlots)
			if !bytes.Equal(inbox[slot:slot+int(c.ByteLen)], source[:c.ByteLen]) {
				return fmt.Errorf("receive %d has succeeded, and its bytes differ from A's", c.ID)
			}
		}
	}
	if s.play.Lesson == "read" && len(s.a.done) > 0 && s.a.done[0].Status == verbs.WCSuccess && s.a.done[0].Op == verbs.WCRDMARead && written == 0 && adds == 0 && !bytes.Equal(landing[:n], shared[:n]) {
		return errors.New("the READ has succeeded, and its bytes differ from B's")
	}
	if v := s.b.region(useCounter).Load64(0); s.play.Lesson != "atomic" && v < counterStart+addend*uint64(adds) {
		return fmt.Errorf("%d FETCH_ADDs have succeeded, and B's number is %d", adds, v)
	}
	return nil
}
