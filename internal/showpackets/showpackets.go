// Package showpackets shows the packets of devices as the environment asks for it:
//
//	ADVERB_TRACE=1              one line for each packet on standard error: time, device, packet
//	ADVERB_PCAP=packets.pcapng  a capture for Wireshark
//
// A process has one capture for all its devices. A file belongs to the process that opened it first: of
// several that inherit the variable at the same time each further one writes to a file of its own,
// packets-<pid>.pcapng. "%p" in the name stands for the process ID. A capture may show secrets, so the
// file is readable by its owner only. It replaces an earlier capture of the same user and nothing else: no
// other file, and nothing behind a link. The file may be a pipe that somebody reads, such as Wireshark. A capture
// ends when its reader goes, or has not read for 2 s.
package showpackets

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/adverb-rdma/adverb/internal/journal"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/trace"
	"github.com/adverb-rdma/adverb/internal/settings"
)

const (
	envTrace = "ADVERB_TRACE"
	envPCAP  = "ADVERB_PCAP"
)

// Zero is the time that the traces of a process count from: when its first device asked. Those of one network in memory
// have a zero of their own.
var Zero = sync.OnceValue(time.Now)

// Shown is how a device shows what it does.
type Shown struct {
	Middleware []link.Middleware   // to put around its links
	Closers    []io.Closer         // to close at its end
	Journal    func(journal.Event) // what the device does beside packets, or nil
}

// Device returns how a device shows what it does. Its name and the time since zero are in each line of a trace.
func Device(name string, zero time.Time) (s Shown, err error) {
	traces, err := settings.Switch(envTrace, false)
	if err != nil {
		return s, err
	}
	if traces {
		s.Middleware = append(s.Middleware, trace.New(zero, trace.ToWriter(os.Stderr, name)))
	}
	if os.Getenv(envPCAP) == "" {
		return s, nil
	}
	w, err := capture()
	if err != nil {
		return Shown{}, fmt.Errorf("%s: %w", envPCAP, err)
	}
	s.Middleware, s.Closers, s.Journal = append(s.Middleware, w.Middleware()), []io.Closer{flusher{w}}, w.Journal
	return s, nil
}

// Streams returns what a device puts around its TCP connections, or nil, and what it closes at its end.
// tracers makes a function for each direction of a connection, which describes the bytes that it is given in
// lines.
func Streams(device string, zero time.Time, tracers func() (sent, received func([]byte) []string)) (wrap func(net.Conn) net.Conn, closers []io.Closer, err error) {
	wrap = func(c net.Conn) net.Conn { return c }
	wraps := false
	traces, err := settings.Switch(envTrace, false)
	if err != nil {
		return nil, nil, err
	}
	if traces {
		wraps = true
		wrap = func(c net.Conn) net.Conn {
			sent, received := tracers()
			return trace.Stream(c, os.Stderr, device, zero, sent, received)
		}
	}
	if os.Getenv(envPCAP) != "" {
		w, err := capture()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", envPCAP, err)
		}
		inner := wrap
		wraps = true
		wrap = func(c net.Conn) net.Conn { return w.Stream(inner(c)) }
		closers = append(closers, flusher{w})
	}
	if !wraps {
		return nil, nil, nil
	}
	return wrap, closers, nil
}

// capture returns the capture of all devices of the process. It stays open until the process ends.
var capture = sync.OnceValues(func() (*pcap.Writer, error) {
	f, err := open(os.Getenv(envPCAP))
	if err != nil {
		return nil, err
	}
	w, err := pcap.New(patient{f, pipeWait}, pcap.Options{})
	if err == nil {
		opened.Store(w)
	}
	return w, err
})

// opened is the capture of the process; nil if it has none.
var opened atomic.Pointer[pcap.Writer]

// Flush writes what the capture of the process still holds, which is for programs that end without closing their
// devices. The error is the first one that the capture had: the file is not whole then.
func Flush() error {
	w := opened.Load()
	if w == nil {
		return nil
	}
	return w.Flush()
}

// pipeWait is how long a program waits for the reader of a pipe: until there is one, and until it reads on.
const pipeWait = 2 * time.Second

// patient writes to a file or a pipe. The reader of a pipe may stand still, and the devices wait meanwhile: that ends
// the capture.
type patient struct {
	*os.File
	wait time.Duration
}

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.wait)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return 0, err
	}
	n, err := p.File.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("write %s: its reader has not read for %v", p.Name(), p.wait)
	}
	return n, err
}

// flusher flushes the capture when a device closes.
type flusher struct{ w *pcap.Writer }

func (f flusher) Close() error { return f.w.Flush() }

// errTaken is the error of a file to which another process writes its capture.
var errTaken = errors.New("another process writes its capture there")

// open opens the file of a capture.
func open(name string) (*os.File, error) {
	pid := strconv.Itoa(os.Getpid())
	name = strings.ReplaceAll(name, "%p", pid)
	f, err := create(name)
	if errors.Is(err, errTaken) {
		ext := filepath.Ext(name)
		f, err = create(strings.TrimSuffix(name, ext) + "-" + pid + ext)
	}
	return f, err
}

// magic begins every pcapng file.
const magic = "\x0a\x0d\x0d\x0a"

// checkEarlier fails unless the file is empty or an earlier capture.
func checkEarlier(f *os.File) error {
	b := make([]byte, len(magic))
	n, err := f.ReadAt(b, 0)
	if n == 0 && errors.Is(err, io.EOF) || string(b[:n]) == magic {
		return nil
	}
	return fmt.Errorf("%s exists and is no capture: choose another name, or remove it", f.Name())
}
