package streams

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// streamer is a run of rstream or riostream. Both ends move transfers by turns, the client first.
type streamer struct {
	*cli.Invocation
	streamOptions
	devices []*verbs.Device // nil is any

	listener net.Listener // a server's
	conn     net.Conn     // that of the round
	settle   time.Duration

	buf            []byte // of the longest transfer
	sent, expected byte   // the next byte of the data, which count up through all transfers of a run
	compared       int64  // bytes
}

// streamTest is a line of the table. It moves size bytes, count times in a row each way, and all that iterations times.
type streamTest struct {
	name                    string
	size, count, iterations int
}

const (
	greeting = 16 // bytes that each end sends before a test

	// closeTime is how many seconds the peer has to take the last bytes.
	closeTime = 5

	// minRing is the least that package rsocket takes, in bytes.
	minRing = 4096
)

// errEarly is why a test ends early at an end that has found no fault.
var errEarly = errors.New("the peer has ended the connection within a test: if it does not say why, give both ends the same -I, -C, -S and -T v")

// errSmaller is why a transfer finds no memory.
var errSmaller = errors.New("the peer has mapped less memory than a transfer takes: give both ends the same -S")

// run does the tests.
func (s *streamer) run() error {
	connect := s.dial
	if s.server == "" {
		if err := s.listen(); err != nil {
			return err
		}
		defer s.listener.Close()
		defer context.AfterFunc(s.Ctx, func() { s.listener.Close() })()
		connect = s.accept
	}
	s.Printf("%-10s%-8s%-8s%-8s%-8s%8s %10s%13s\n", "name", "bytes", "xfers", "iters", "total", "time", "Gb/sec", "usec/xfer")
	for _, tests := range s.rounds() {
		if err := connect(); err != nil {
			return err
		}
		if err := s.round(tests); err != nil {
			return err
		}
	}
	return nil
}

// rounds are the tests of each connection.
func (s *streamer) rounds() [][]streamTest {
	if s.custom {
		return [][]streamTest{{{"custom", s.size, s.count, s.iterations}}}
	}
	sizes := []int{64, 4 << 10, 64 << 10, 1 << 20}
	if s.all {
		sizes = []int{64}
		for n := 128; n <= 4<<20; n *= 2 {
			sizes = append(sizes, n, n+n/2)
		}
	}
	var latency, bandwidth []streamTest
	for _, size := range sizes {
		latency = append(latency, streamTest{sizeText(int64(size)) + "_lat", size, 1, times(size)})
		bandwidth = append(bandwidth, streamTest{sizeText(int64(size)) + "_bw", size, times(size), 1})
	}
	return [][]streamTest{latency, bandwidth}
}

// times is how often the table's tests move a size.
func times(size int) int {
	switch {
	case size >= 1<<20:
		return 100
	case size >= 1<<16:
		return 1000
	case size >= 1<<10:
		return 10_000
	}
	return 100_000
}

// round does the tests of a connection, and ends it.
func (s *streamer) round(tests []streamTest) error {
	conn := s.conn
	defer func() {
		if c, ok := conn.(interface{ SetLinger(int) error }); ok && s.Interrupted() {
			_ = c.SetLinger(0) // so that Close waits for nobody
		}
		conn.Close()
	}()
	defer context.AfterFunc(s.Ctx, func() { conn.SetDeadline(past) })() // and not Close: a test has memory of the connection
	s.settle = 0
	if c, ok := conn.(*rsocket.Conn); ok {
		_ = c.SetLinger(closeTime)
		attr, err := c.QP().SendCQ().Device().Query()
		if err != nil {
			return err
		}
		if attr.Guarantees&verbs.GuaranteeLastWordLast == 0 {
			s.settle = settleTime
		}
	}
	for _, t := range tests {
		if n := wordUp(t.size); n > len(s.buf) {
			s.buf = make([]byte, n)
		}
		test := s.stream
		if s.mapped {
			test = s.memory
		}
		took, err := test(t)
		if err != nil {
			return err
		}
		s.show(t, took)
	}
	return nil
}

// turns does two things, the client the first one first.
func (s *streamer) turns(one, other func() error) error {
	if s.server == "" {
		one, other = other, one
	}
	if err := one(); err != nil {
		return err
	}
	return other()
}

// stream is a test of rstream.
func (s *streamer) stream(t streamTest) (took time.Duration, err error) {
	if err := s.turns(func() error { return s.send(greeting, 1) }, func() error { return s.receive(greeting, 1) }); err != nil {
		return 0, err
	}
	start := time.Now()
	for range t.iterations {
		err := s.turns(func() error { return s.send(t.size, t.count) }, func() error { return s.receive(t.size, t.count) })
		if err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (s *streamer) send(size, count int) error {
	b := s.room(size)
	for range count {
		if s.verify {
			s.fill(b)
		}
		if _, err := s.conn.Write(b); err != nil {
			return s.failed("rsend", err)
		}
	}
	return nil
}

func (s *streamer) receive(size, count int) error {
	b := s.room(size)
	for range count {
		if _, err := io.ReadFull(s.conn, b); err != nil {
			return s.failed("rrecv", err)
		}
		if s.verify {
			if err := s.compare(b, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// room returns size bytes, which may be those of a greeting.
func (s *streamer) room(size int) []byte {
	if size > len(s.buf) {
		s.buf = make([]byte, size)
	}
	return s.buf[:size]
}

func (s *streamer) fill(b []byte) {
	for i := range b {
		b[i] = s.sent
		s.sent++
	}
}

// compare compares what has come. What is not yet as it must be has so much time.
func (s *streamer) compare(b []byte, settle time.Duration) error {
	var limit time.Time
	for i := range b {
		for b[i] != s.expected {
			switch now := time.Now(); {
			case limit.IsZero():
				limit = now.Add(settle)
			case now.After(limit):
				return cm.Complain(s.Invocation, cm.StatusFailed,
					fmt.Errorf("byte %d of %d of a transfer is %#02x, and must be %#02x: the data are damaged, or the peer has no -T v, or other -I, -C or -S", i, len(b), b[i], s.expected),
					"data verification failed byte %d", s.compared)
			}
			runtime.Gosched()
		}
		s.expected++
		s.compared++
	}
	return nil
}

// failed reports a failed call, unless the user has ended the run.
func (s *streamer) failed(call string, err error) error {
	switch {
	case s.Interrupted():
		return err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		s.Errorf("%s: end of the stream\n", call)
		s.Explain(errEarly)
		return cm.Failed(cm.StatusFailed)
	}
	failed := cm.Perror(s.Invocation, call, err)
	switch {
	case errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET):
		s.Explain(errEarly)
	case errors.Is(err, rsocket.ErrNotMapped):
		s.Explain(errSmaller)
	}
	return failed
}

// The transfers of riostream go into memory that the peer has mapped. Its last byte counts the turns, and so says that a
// transfer has come.

const (
	// settleTime is how long the other bytes of a transfer may take to come when the last has, where the device makes no
	// promise.
	settleTime = time.Second

	// An end that waits lets other goroutines run after yieldPolls, and naps between its looks after spinPolls: the peer
	// may need the processor.
	yieldPolls = 16
	spinPolls  = 4096
	nap        = 50 * time.Microsecond
)

// past is a deadline by which calls fail at once.
var past = time.Unix(1, 0)

const wordSize = 8 // bytes of a word that is read in one piece

// wordUp is the length of the words that n bytes take.
func wordUp(n int) int { return (n + wordSize - 1) &^ (wordSize - 1) }

// memory is a test of riostream.
func (s *streamer) memory(t streamTest) (took time.Duration, err error) {
	conn := s.conn.(*rsocket.Conn)
	m, err := conn.Map(wordUp(t.size), 0)
	if err != nil {
		return 0, s.failed("riomap", err)
	}
	defer func() { err = cmp.Or(err, m.Close()) }()
	last := t.size - 1
	const none = 0xff // no turn that is awaited first
	m.Bytes()[last] = none
	if err := s.greet(); err != nil {
		return 0, err
	}
	settle := s.settle
	if t.size%wordSize != 0 { // only whole words are stored last
		settle = settleTime
	}
	out, turn := s.room(t.size), byte(0)
	out[last] = none
	write := func(n int) error {
		for range n {
			if _, err := conn.WriteAt(out, 0); err != nil {
				return s.failed("riowrite", err)
			}
		}
		return nil
	}
	send := func() error {
		if err := write(t.count - 1); err != nil {
			return err
		}
		out[last] = turn
		turn++
		if s.verify {
			s.fill(out[:last])
		}
		return write(1)
	}
	receive := func() error {
		if err := s.await(conn, m.MR(), last, turn); err != nil {
			return err
		}
		turn++
		if !s.verify {
			return nil
		}
		return s.compare(m.Bytes()[:last], settle)
	}
	start := time.Now()
	for range t.iterations {
		if err := s.turns(send, receive); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// greet exchanges greetings, which are not compared. Behind its greeting each end knows of the other's memory.
func (s *streamer) greet() error {
	b := make([]byte, greeting)
	return s.turns(func() error {
		if _, err := s.conn.Write(b); err != nil {
			return s.failed("rsend", err)
		}
		return nil
	}, func() error {
		if _, err := io.ReadFull(s.conn, b); err != nil {
			return s.failed("rrecv", err)
		}
		return nil
	})
}

// await waits until the byte at an offset has a value.
func (s *streamer) await(conn *rsocket.Conn, mr *verbs.MR, at int, want byte) error {
	has := func() bool {
		var b [wordSize]byte
		binary.NativeEndian.PutUint64(b[:], mr.Load64(at&^(wordSize-1)))
		return b[at%wordSize] == want
	}
	for i := 1; !has(); i++ {
		if _, err := conn.WriteAt(nil, 0); err != nil {
			if has() { // it was the peer's last transfer
				return nil
			}
			return s.failed("riowrite", err)
		}
		if i%yieldPolls == 0 {
			runtime.Gosched()
		}
		if i > spinPolls {
			time.Sleep(nap)
		}
	}
	return nil
}

// The connections.

func (s *streamer) config() rsocket.Config {
	ring := max(minRing, 2*s.buffer) // as the options of a socket have it in C
	c := rsocket.Config{SendBuffer: ring, RecvBuffer: ring, KeepAlive: s.keepAlive, Security: s.security}
	if s.mapped {
		c.Maps = 1
	}
	return c
}

// lookup returns the address of a host, as getaddrinfo does. what stands in the C program's line for a failure.
func (s *streamer) lookup(host string, like netip.Addr, what string) (netip.Addr, error) {
	addr, err := cm.Lookup(s.Ctx, host, s.numeric, like)
	return addr, s.lookedUp(err, what)
}

func (s *streamer) lookedUp(err error, what string) error {
	if e, ok := errors.AsType[*cm.LookupError](err); ok && !s.Interrupted() {
		return cm.Complain(s.Invocation, e.Code, err, "getaddrinfo%s: %s", what, e.Text())
	}
	return err
}

func (s *streamer) listen() error {
	port, err := cm.Port(s.Ctx, s.port)
	if err := s.lookedUp(err, ""); err != nil {
		return err
	}
	host := ""
	if s.bind != "" {
		own, err := s.lookup(s.bind, netip.Addr{}, "")
		if err != nil {
			return err
		}
		host = own.String()
	}
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	if s.sockets {
		s.listener, err = new(net.ListenConfig).Listen(s.Ctx, "tcp", address)
	} else {
		lc := rsocket.ListenConfig{Config: s.config(), Devices: s.devices}
		s.listener, err = lc.Listen(s.Ctx, "rsocket", address)
	}
	if err != nil {
		return s.failed("rlisten", err)
	}
	return nil
}

func (s *streamer) accept() (err error) {
	s.sayKeepAlive() // of the listener
	if s.conn, err = s.listener.Accept(); err != nil {
		return s.failed("raccept", err)
	}
	return s.prepare()
}

func (s *streamer) dial() error {
	port, err := cm.Port(s.Ctx, s.port)
	if err := s.lookedUp(err, ""); err != nil {
		return err
	}
	var own netip.Addr
	if s.bind != "" {
		if own, err = s.lookup(s.bind, own, " src_addr"); err != nil {
			return err
		}
	}
	peer, err := s.lookup(s.server, own, "")
	if err != nil {
		return err
	}
	var local net.Addr
	if own.IsValid() {
		local = net.TCPAddrFromAddrPort(netip.AddrPortFrom(own, 0))
	}
	address := netip.AddrPortFrom(peer, port).String()
	if s.sockets {
		s.conn, err = (&net.Dialer{LocalAddr: local}).DialContext(s.Ctx, "tcp", address)
	} else {
		d := rsocket.Dialer{Config: s.config(), Devices: s.devices, LocalAddr: local}
		s.conn, err = d.DialContext(s.Ctx, "rsocket", address)
	}
	if err != nil {
		return s.failed("rconnect", err)
	}
	return s.prepare()
}

// prepare sets the options of a connection that are TCP's, and says what is set.
func (s *streamer) prepare() error {
	s.sayKeepAlive()
	c, ok := s.conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	err := cmp.Or(c.SetReadBuffer(s.buffer), c.SetWriteBuffer(s.buffer))
	if s.keepAlive > 0 {
		err = cmp.Or(err, c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: s.keepAlive}))
	}
	if err != nil {
		c.Close()
		return s.failed("rsetsockopt", err)
	}
	return nil
}

func (s *streamer) sayKeepAlive() {
	if s.keepAlive > 0 {
		s.Printf("Keepalive: ON\n  time: %d\n", int(s.keepAlive/time.Second))
	}
}

// The table.

func (s *streamer) show(t streamTest, took time.Duration) {
	transfers := 2 * float64(t.count) * float64(t.iterations)
	bytes := int64(2) * int64(t.iterations) * int64(t.count) * int64(t.size)
	usec := float64(took.Nanoseconds()) / 1000
	s.Printf("%-10s%-8s%-8s%-8s%-8s%8.2fs%10.2f%11.2f\n", t.name, sizeText(int64(t.size)), countText(t.count), countText(t.iterations),
		sizeText(bytes), usec/1e6, float64(bytes)*8/(1000*usec), usec/transfers)
}

// sizeText is a number of bytes as people write it, with a digit behind the point where the number is below 10.
func sizeText(n int64) string {
	unit, letter := int64(1), ""
	switch {
	case n >= 1<<30:
		unit, letter = 1<<30, "g"
	case n >= 1<<20:
		unit, letter = 1<<20, "m"
	case n >= 1<<10:
		unit, letter = 1<<10, "k"
	}
	if tenths := n % unit * 10 / unit; n/unit < 10 && tenths > 0 {
		return fmt.Sprintf("%d.%d%s", n/unit, tenths, letter)
	}
	return fmt.Sprintf("%d%s", n/unit, letter)
}

func countText(n int) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%db", n/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%dm", n/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%dk", n/1e3)
	}
	return strconv.Itoa(n)
}
