package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/lab/agent"
)

const (
	captureBuffer = 512 << 20 // bytes in the kernel, which counts several times the size of each packet
	captureTick   = 10 * time.Millisecond
	captureEnd    = 5 * time.Second // a faulty QP may repeat a packet for ever
	maxFrame      = 1 << 17
)

// Frame is an Ethernet frame that a guest sent or received.
type Frame struct {
	Time    time.Time
	ToGuest bool
	Data    []byte
}

// Capture records the frames that pass the network interface of a guest, except those of its agent.
type Capture struct {
	fd     int
	stop   atomic.Int64 // when Stop was called, in ns since 1970; 0 before
	done   chan struct{}
	frames []Frame
	err    error

	patience time.Duration // how long packets may keep coming after Stop
}

// Capture begins to record the guest's frames.
func (g *Guest) Capture() (*Capture, error) {
	c, err := capture(g.tap)
	if err != nil {
		return nil, fmt.Errorf("capture packets of %v: %w", g, err)
	}
	return c, nil
}

func capture(ifname string) (*Capture, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, err
	}
	// Protocol 0 receives nothing until the socket is bound to the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	tick := unix.NsecToTimeval(captureTick.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		// On a busy machine the reader is late, so the kernel takes the time of each packet.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tick),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.BigEndian.Uint16([]byte{unix.ETH_P_ALL & 0xff, unix.ETH_P_ALL >> 8}), Ifindex: i.Index}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	c := &Capture{fd: fd, done: make(chan struct{}), patience: captureEnd}
	go c.read()
	return c, nil
}

func (c *Capture) read() {
	defer close(c.done)
	defer unix.Close(c.fd)
	buf, control := make([]byte, maxFrame), make([]byte, 256)
	for {
		stop := c.stop.Load()
		n, oobn, _, from, err := unix.Recvmsg(c.fd, buf, control, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if stop == 0 {
				continue
			}
			if stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil || stats.Drops > 0 {
				c.err = errors.Join(err, fmt.Errorf("the capture has lost packets: %+v", stats))
			}
			return
		case err != nil:
			c.err = fmt.Errorf("capture packets: %w", err)
			return
		case n > len(buf):
			c.err = fmt.Errorf("capture packets: a frame of %d bytes", n)
			return
		}
		at := timestamp(control[:oobn])
		if late := at.UnixNano() - stop; stop != 0 && late > c.patience.Nanoseconds() {
			c.err = fmt.Errorf("capture packets: they still come %v after the end: something goes on that should be over", c.patience)
			return
		}
		if ofAgent(buf[:n]) {
			continue
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		c.frames = append(c.frames, Frame{
			Time:    at,
			ToGuest: ok && ll.Pkttype == unix.PACKET_OUTGOING,
			Data:    append([]byte(nil), buf[:n]...),
		})
	}
}

// timestamp reads the time of a packet from its control messages.
func timestamp(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Now()
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

// Stop waits until no more frames come, ends the recording, and returns the frames in their order.
// Stop fails if a frame was missed, or if the frames do not end.
func (c *Capture) Stop() ([]Frame, error) {
	c.stop.Store(time.Now().UnixNano())
	<-c.done
	return c.frames, c.err
}

// ofAgent reports whether a frame belongs to a connection to a guest's agent.
func ofAgent(frame []byte) bool {
	const tcp = 6
	if len(frame) < etherHeader+ip4Header+4 || binary.BigEndian.Uint16(frame[12:]) != etherIPv4 || frame[etherHeader+9] != tcp {
		return false
	}
	ports := frame[etherHeader+int(frame[etherHeader]&0xf)*4:]
	return len(ports) >= 4 && (binary.BigEndian.Uint16(ports) == agent.Port || binary.BigEndian.Uint16(ports[2:]) == agent.Port)
}

// WritePcap writes frames in the file format that tshark and Wireshark read.
func WritePcap(w io.Writer, frames []Frame) error {
	pw := pcapgo.NewWriterNanos(w)
	if err := pw.WriteFileHeader(maxFrame, layers.LinkTypeEthernet); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	for _, f := range frames {
		if err := pw.WritePacket(gopacket.CaptureInfo{Timestamp: f.Time, CaptureLength: len(f.Data), Length: len(f.Data)}, f.Data); err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
	}
	return nil
}
