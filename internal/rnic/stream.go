package rnic

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	// One write takes about writeLimit bytes, and about stagedLimit where they are copied first: that copy should
	// still be in the cache when the kernel makes its own.
	writeLimit  = 512 << 10
	stagedLimit = 256 << 10
	// A buffer that is borrowed for reading has readSize bytes. Payload of directMin bytes or more is read
	// straight to its place. The bytes behind such payload get besideDirect bytes of the buffer: the next
	// header, and little payload that must be copied.
	readSize     = 2 * mpa.MaxFPDU
	directMin    = 4096
	besideDirect = 1024
	// turnSize bounds the bytes that are read before others get the lock.
	turnSize = 4 << 20
	// The end of a connection waits for the peer's last answer, up to askTime, and then for its end. A peer that
	// gives neither has lingerTime in all.
	lingerTime = 2 * time.Second
	askTime    = lingerTime / 2
	// A peer that answers no READs cannot be asked. It has pauseTime to receive all bytes that this end has sent.
	pauseTime = 100 * time.Millisecond
	// An initiator whose peer says nothing wakes it after wakeTime, and wakes times in all, each after twice the time.
	wakeTime = 100 * time.Millisecond
	wakes    = 6
	// A responder whose initiator has not said that it is ready takes it for ready after speakTime.
	speakTime = time.Second
)

// errAgain is the error of a socket that has no bytes, or takes none, at the moment.
var errAgain = errors.New("not now")

// socket is how a stream moves bytes. The caller of all but the waits holds the QP's lock.
type socket interface {
	// readv fills the buffers as far as bytes are there, and writev takes bytes from them as far as there
	// is room. Neither blocks. Where memory faults, they move less, or nothing with mem.ErrFault.
	readv(bufs [][]byte) (int, error)
	writev(bufs [][]byte) (int, error)
	// start has the stream read whenever bytes may be there, from now on.
	start()
	// awaitRoom has the stream write when there is room again.
	awaitRoom()
	// closeWrite ends the stream behind the bytes that were written.
	closeWrite() error
	close() error
	// looks says that readv reads from the socket itself, and not only bytes that a goroutine has fetched.
	looks() bool
}

// stream is the connection of a QP. The QP's lock guards it.
type stream struct {
	q       *qp
	sock    socket
	ended   func(error) // or nil, once it was called
	failure error       // of the QP at the moment when it let go
	limit   int         // of a write: writeLimit or stagedLimit
	vec     *iwarp.Vec  // with the FPDUs that were cut and not written, or nil
	buf     []byte      // with the beginning of an FPDU, or nil
	blocked bool        // the socket takes no more, and is to say when it does
	shut    bool        // nothing will be written any more
	quiet   bool        // nothing can come any more
	linger  *time.Timer
	until   time.Time   // the end of lingering
	waker   *time.Timer // runs wake, or speak; nil once the peer has spoken
	woken   int         // how often wake has run

	keepAliveConn keepAliveConn // or nil, where the connection is not TCP's
	local, remote net.Addr      // for the log
}

var (
	vecs    = sync.Pool{New: func() any { return new(iwarp.Vec) }}
	buffers = sync.Pool{New: func() any { return new([readSize]byte) }}
)

// Attach gives a connection to the QP with a number, and takes it to RTS. early has the bytes that came
// behind the MPA frame. ended is called once, on a goroutine of its own, when the peer has ended the
// connection, or the QP's end of it is done: with nil in order, else with the cause. After an error the
// connection is the caller's.
func (d *Device) Attach(n verbs.QPN, conn net.Conn, terms mpa.Terms, early []byte, ended func(error)) error {
	q, err := d.find(n)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.attach(conn, terms, early, ended)
}

// attach is Device.Attach for this QP. The caller holds q.mu.
func (q *qp) attach(conn net.Conn, terms mpa.Terms, early []byte, ended func(error)) error {
	switch {
	case q.closed:
		return errGone
	case q.s != nil:
		return verbs.Errorf(verbs.ErrState, "the QP has a connection")
	}
	if err := q.t.Attach(terms); err != nil {
		return err
	}
	s := &stream{q: q, ended: ended, limit: writeLimit, local: conn.LocalAddr(), remote: conn.RemoteAddr()}
	if terms.CRC || terms.MarkersOut {
		s.limit = stagedLimit
	}
	s.sock = q.dev.newSocket(s, conn)
	s.keepAliveConn = keepAliveConnOf(s.sock, conn)
	q.s = s
	s.begin(early, terms.Initiator)
	q.pump()
	return nil
}

// begin has the stream read, from the bytes on that came behind the MPA frame. An initiator also wakes a silent peer, and a
// responder speaks to one in the end.
func (s *stream) begin(early []byte, initiator bool) {
	s.logMade()
	s.beginKeepAlive()
	if len(early) > 0 {
		s.q.bytes.read(len(early))
		s.buf = append(buffers.Get().(*[readSize]byte)[:0], early...)
		s.use()
	}
	if s.sock.looks() {
		s.q.sendCQ.follow(s.q, true)
		s.q.recvCQ.follow(s.q, true)
	}
	s.sock.start()
	if initiator {
		s.waker = time.AfterFunc(wakeTime, s.wake)
	} else {
		s.waker = time.AfterFunc(speakTime, s.speak)
	}
}

// wake wakes a peer that has said nothing.
func (s *stream) wake() {
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.waker == nil || q.s != s {
		return
	}
	if s.woken++; s.woken < wakes {
		s.waker.Reset(wakeTime << s.woken)
	}
	if !s.blocked { // otherwise more goes anyway
		q.t.Wake()
		q.pump()
	}
}

// speak has a responder send though the peer has sent nothing.
func (s *stream) speak() {
	q := s.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.waker == nil || q.s != s {
		return
	}
	s.waker = nil
	q.t.Speak()
	q.pump()
}

// heard ends the waking.
func (s *stream) heard() {
	if s.waker != nil {
		s.waker.Stop()
		s.waker = nil
	}
}

// Shutdown ends the connection of the QP with a number, if the QP has one: in order, once all posted work requests are
// sent.
func (d *Device) Shutdown(n verbs.QPN) {
	q, err := d.find(n)
	if err != nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.s != nil && !q.closed && q.t.State() == verbs.QPStateRTS {
		_ = q.t.Modify(&verbs.QPAttr{State: verbs.QPStateSQD}, verbs.MaskState)
	}
	q.pump()
}

// readTurn reads up to a turn, and reports whether there may be more. The caller holds the QP's lock.
func (s *stream) readTurn(turn int, toTheEnd bool) (more bool) {
	if s.q.s != s {
		return s.discard(turn)
	}
	return s.q.receive(turn, toTheEnd)
}

// receive reads the bytes that have come, up to a turn, and answers them. It reports whether there may be more:
// after a read that was not full only the end of the stream can follow, for which receive looks if toTheEnd.
// The caller holds q.mu.
func (q *qp) receive(most int, toTheEnd bool) (more bool) {
	s := q.s
	if s == nil || s.quiet {
		return false
	}
	heard := false
	more = true
	for turn := 0; more && turn < most; {
		var n int
		var err error
		n, more, err = s.read()
		turn += n
		heard = heard || n > 0
		more = more || toTheEnd
		if err != nil {
			if !errors.Is(err, errAgain) {
				s.lost(err)
				heard = true
			}
			more = false
		}
	}
	if s.buf != nil && len(s.buf) == 0 {
		s.giveBack()
	}
	if heard {
		q.pump()
	}
	return more
}

// read reads once. more says that there may be more.
func (s *stream) read() (n int, more bool, err error) {
	q := s.q
	if s.buf == nil {
		s.buf = buffers.Get().(*[readSize]byte)[:0]
	}
	v := vecs.Get().(*iwarp.Vec)
	defer vecs.Put(v)
	room := s.buf[len(s.buf):cap(s.buf)]
	if len(s.buf) == 0 {
		if q.t.Room(v, directMin); v.Bytes > 0 {
			room = room[:besideDirect]
		}
	}
	direct := v.Bytes
	v.Bufs = append(v.Bufs, room)
	n, err = s.sock.readv(v.Bufs)
	q.bytes.read(n)
	q.t.Filled(v, min(n, direct))
	if n > direct {
		s.buf = s.buf[:len(s.buf)+n-direct]
	}
	if n > 0 {
		s.use()
	}
	if errors.Is(err, mem.ErrFault) && q.t.Copies() {
		return 0, true, nil
	}
	return n, n == direct+len(room), err
}

// use hands the bytes that were read to the protocol, and keeps those that the protocol does not take yet.
func (s *stream) use() {
	used := s.q.t.Receive(s.buf)
	s.buf = s.buf[:copy(s.buf, s.buf[used:])]
}

// giveBack gives the buffer back.
func (s *stream) giveBack() {
	if s.buf != nil {
		buffers.Put((*[readSize]byte)(s.buf[:readSize]))
		s.buf = nil
	}
}

// pump writes the protocol's output, as far as the stream takes it, and publishes. The caller holds q.mu.
func (q *qp) pump() {
	if s := q.s; s != nil {
		s.write()
	}
	q.publish()
}

func (s *stream) write() {
	q := s.q
	for !s.blocked && !s.shut && q.t.HasOutput() {
		if s.vec == nil {
			s.vec = vecs.Get().(*iwarp.Vec)
		}
		q.t.Fill(s.vec, s.limit)
		want := s.vec.Bytes
		if want == 0 {
			break
		}
		n, err := s.sock.writev(s.vec.Bufs)
		q.bytes.wrote(n)
		q.t.Wrote(s.vec, n)
		switch {
		case errors.Is(err, mem.ErrFault) && q.t.Copies():
		case errors.Is(err, errAgain), err == nil && n < want:
			s.blocked = true
			s.sock.awaitRoom()
		case err != nil:
			s.shut = true
			s.lost(err)
		}
	}
	if s.vec != nil && !q.t.Backlog() {
		vecs.Put(s.vec)
		s.vec = nil
	}
	switch {
	case s.shut || s.blocked:
	case q.t.Finished() && q.t.Unasked() && s.linger == nil && !s.quiet:
		s.lingerFor(pauseTime)
	case q.t.Finished() && !(q.t.Unasked() && !s.quiet && time.Now().Before(s.until)):
		s.shutDown(lingerTime)
	case q.t.Asks() && s.linger == nil:
		s.lingerFor(askTime)
	}
	if s.shut && s.quiet {
		q.letGo()
	}
}

// room goes on writing: the stream may take bytes again. The caller holds the QP's lock.
func (s *stream) room() {
	if s.blocked && s.q.s == s {
		s.blocked = false
		s.q.pump()
	}
}

// shutDown says to the peer that nothing follows, and waits a while for its word.
func (s *stream) shutDown(wait time.Duration) {
	s.shut = true
	_ = s.sock.closeWrite() // it fails where the connection is lost, which the reader finds out
	s.lingerFor(wait)
}

// lingerFor waits for the peer from now on.
func (s *stream) lingerFor(wait time.Duration) {
	s.until = time.Now().Add(wait)
	if s.linger == nil {
		s.linger = time.AfterFunc(wait, s.lingered)
	} else {
		s.linger.Reset(wait)
	}
}

// lingered goes on without the peer's answer, or its end.
func (s *stream) lingered() {
	s.q.mu.Lock()
	defer s.q.mu.Unlock()
	switch {
	case time.Now().Before(s.until): // it was about to fire when the wait began anew
	case !s.shut:
		s.shutDown(lingerTime - askTime)
	default:
		s.tell(nil)
		s.release()
	}
}

// lost takes note that nothing will come any more.
func (s *stream) lost(err error) {
	if s.quiet {
		return
	}
	s.quiet = true
	if s.q.t.Lost(err) {
		err = nil
	}
	s.tell(err)
	s.giveBack()
}

// tell says once that the connection has ended.
func (s *stream) tell(err error) {
	if f := s.ended; f != nil {
		s.ended = nil
		s.logEnded(err)
		go f(err)
	}
}

// letGo parts the QP from its stream, if it has one. The caller holds q.mu.
func (q *qp) letGo() {
	if s := q.s; s != nil {
		q.s = nil
		s.drain()
	}
}

// drain ends a stream that has no QP any more. The peer's bytes are read and dropped until the peer ends its side too:
// the kernel resets a connection that is closed with bytes unread, and bytes on their way to the peer might be lost.
func (s *stream) drain() {
	s.heard()
	s.failure = s.q.t.Failure()
	if s.sock.looks() {
		s.q.sendCQ.follow(s.q, false)
		s.q.recvCQ.follow(s.q, false)
	}
	s.giveBack()
	s.vec = nil
	if !s.shut {
		s.shutDown(lingerTime)
	}
	if s.quiet {
		s.tell(nil)
		s.release()
	}
}

// discard reads and drops bytes for a QP that has let go, up to a turn: a peer may go on sending, and the end of
// lingerTime needs the lock. It reports whether there may be more.
func (s *stream) discard(turn int) (more bool) {
	if s.quiet {
		return false
	}
	buf := buffers.Get().(*[readSize]byte)
	defer buffers.Put(buf)
	for turn > 0 {
		n, err := s.sock.readv([][]byte{buf[:]})
		turn -= n
		switch {
		case errors.Is(err, errAgain):
			return false
		case err != nil:
			s.quiet = true
			s.tell(nil)
			s.release()
			return false
		}
	}
	return true
}

// release closes the socket.
func (s *stream) release() {
	s.quiet = true
	if s.linger != nil {
		s.linger.Stop()
	}
	_ = s.sock.close()
}

// eof turns the end of a stream into an error.
func eof(n int, err error) (int, error) {
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}
