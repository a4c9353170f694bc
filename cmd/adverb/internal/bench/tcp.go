package bench

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// tcpEnd is an end of a Go TCP connection. For an operation that RDMA does by one work request, it makes
// one Write.
type tcpEnd struct {
	*order
	w *workload

	l    *net.TCPListener // the server's
	conn *net.TCPConn
	buf  []byte

	list    int // messages of a system call
	iovecs  [listLength][]byte
	buffers net.Buffers
}

func newTCPEnd(o *order, w *workload) end {
	return &tcpEnd{order: o, w: w, list: 1, buf: make([]byte, w.region())}
}

// newTCPListEnd has the sender hand over a list of messages by each writev.
func newTCPListEnd(o *order, w *workload) end {
	return &tcpEnd{order: o, w: w, list: listLength, buf: make([]byte, w.region())}
}

func (e *tcpEnd) open() (any, error) {
	if !e.Server {
		return "", nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(e.Addr, "0"))
	if err != nil {
		return nil, err
	}
	e.l = l.(*net.TCPListener)
	return l.Addr().String(), nil
}

func (e *tcpEnd) connect(address json.RawMessage) error {
	if e.Server {
		return nil // the client connects, once it has heard that this end is ready
	}
	var addr string
	if err := json.Unmarshal(address, &addr); err != nil {
		return err
	}
	c, err := net.DialTimeout("tcp", addr, settle)
	if err != nil {
		return err
	}
	e.conn = c.(*net.TCPConn)
	return nil
}

func (e *tcpEnd) run(stop *stopper) (result, error) {
	if e.Server {
		e.l.SetDeadline(time.Now().Add(settle))
		c, err := e.l.AcceptTCP()
		if err != nil {
			return result{}, err
		}
		e.conn = c
	}
	if e.Control != "" {
		if err := setCongestionControl(e.conn, e.Control); err != nil {
			return result{}, err
		}
	}
	go func() {
		<-stop.Done()
		e.conn.Close() // ends a Read or Write that blocks
	}()
	m := newMeter(e.order, e.w.size)
	n, err := int64(0), error(nil)
	switch {
	case e.w.kind == kindPolled:
		n, err = e.bounce(m, pollingConn(e.conn, stop))
	case e.w.kind == kindBlocked:
		n, err = e.bounce(m, e.conn)
	case e.Server:
		n, err = e.receive(m)
	default:
		err = e.send()
	}
	if isHangUp(err) || stop.Err() != nil {
		err = nil
	}
	return m.result(n), err
}

// isHangUp reports whether an error only says that the other end has measured and left.
func isHangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrClosed) ||
		errors.Is(err, net.ErrClosed)
}

// send writes messages until the other end hangs up.
func (e *tcpEnd) send() error {
	for off := 0; ; off += e.w.size {
		if off == len(e.buf) {
			off = 0
		}
		if e.list > 1 {
			for i := range e.iovecs {
				e.iovecs[i] = e.buf[off : off+e.w.size]
				if off += e.w.size; off == len(e.buf) {
					off = 0
				}
			}
			e.buffers = e.iovecs[:]
			if _, err := e.buffers.WriteTo(e.conn); err != nil {
				return err
			}
			off -= e.w.size
			continue
		}
		if _, err := e.conn.Write(e.buf[off : off+e.w.size]); err != nil {
			return err
		}
	}
}

// receive reads into the region from its start to its end and from the start again, as WRITEs would fill it. Written
// bytes may still be under way, so this end measures.
func (e *tcpEnd) receive(m *meter) (int64, error) {
	bytes, off := int64(0), 0
	if e.w.waits {
		e.conn.SetReadDeadline(m.deadline())
	}
	for m.on(bytes / int64(e.w.size)) {
		n, err := e.conn.Read(e.buf[off:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			m.expire(bytes / int64(e.w.size))
			break
		}
		if err != nil {
			return 0, err
		}
		bytes += int64(n)
		if off += n; off == len(e.buf) {
			off = 0
		}
	}
	return bytes / int64(e.w.size), nil
}

// bounce sends a message when one has come. The client sends the first, and measures.
func (e *tcpEnd) bounce(m *meter, c io.ReadWriter) (int64, error) {
	message := e.buf[:e.w.size]
	n := int64(0)
	if !e.Server {
		if _, err := c.Write(message); err != nil {
			return 0, err
		}
	}
	for e.Server || m.on(n) {
		if _, err := io.ReadFull(c, message); err != nil {
			return n, err
		}
		n++
		if _, err := c.Write(message); err != nil {
			return n, err
		}
	}
	return n, nil
}
