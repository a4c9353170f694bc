package streams

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/rsocket"
	"github.com/adverb-rdma/adverb/verbs"
)

// startListening starts a command that listens, and returns the port.
func startListening(ctx context.Context, t *testing.T, argv ...string) (s *tooltest.Started, port string) {
	t.Helper()
	s = tool.Start(ctx, argv...)
	m := regexp.MustCompile(`:(\d+)\n?$`).FindStringSubmatch(s.FirstLine)
	if m == nil {
		r := <-s.Done
		t.Fatalf("%v: got first line %q, status %d, stderr: %s, want an address in the first line", argv, s.FirstLine, r.Code, r.Stderr)
	}
	return s, m[1]
}

// A TCP client reaches a server on a Unix socket by RDMA: a proxy at each end. Each direction ends by itself.
func TestProxy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // answers when the client has said all
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if all, err := io.ReadAll(c); err == nil {
			c.Write(bytes.ToUpper(all))
		}
	}()
	inner, cancelProxies := context.WithCancel(ctx)
	far, rdmaPort := startListening(inner, t, "adverb", "proxy", "rdma:127.0.0.1:0", "unix:"+socket)
	near, tcpPort := startListening(inner, t, "adverb", "proxy", "tcp:127.0.0.1:0", "rdma:127.0.0.1:"+rdmaPort)

	c, err := net.Dial("tcp", "127.0.0.1:"+tcpPort)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := strings.Repeat("by two proxies. ", 100_000)
	go func() {
		io.WriteString(c, want)
		c.(*net.TCPConn).CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || string(got) != strings.ToUpper(want) {
		t.Errorf("%d bytes came back of %d, %v, want all, in capitals", len(got), len(want), err)
	}
	cancelProxies()
	for _, p := range []*tooltest.Started{near, far} {
		if r := <-p.Done; strings.Contains(r.Stderr, "connection of") {
			t.Errorf("a proxy complains: %s, want no complaint", r.Stderr)
		}
	}
}

// A proxy lets go of a connection that has ended in both directions, and ends with connections that have not.
func TestProxyLetsGo(t *testing.T) {
	const soon = 10 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	l, err := rsocket.Listen("rsocket", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, port := startListening(ctx, t, "adverb", "proxy", "tcp:127.0.0.1:0", "rdma:"+l.Addr().String())
	connect := func() (near *net.TCPConn, far *rsocket.Conn) {
		t.Helper()
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		other, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Close() })
		return c.(*net.TCPConn), other.(*rsocket.Conn)
	}

	near, far := connect()
	gone := make(chan struct{})
	if err := far.QP().NotifyError(func(error) { close(gone) }); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func() error{near.CloseWrite, far.CloseWrite} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-gone:
	case <-time.After(soon):
		t.Errorf("both directions have ended, and after %v the proxy has the connection, want it closed", soon)
	}

	connect()
	cancel()
	select {
	case <-p.Done:
	case <-time.After(soon):
		t.Errorf("after %v the proxy waits for a connection, want it to end it and itself", soon)
	}
}

func TestProxyAddresses(t *testing.T) {
	for _, bad := range []string{"tcp", "tcp:host", "unix:", "udp:127.0.0.1:1", "rdma:127.0.0.1"} {
		if r := tool.Result(t.Context(), "adverb", "proxy", "tcp:127.0.0.1:0", bad); r.Code != 1 || r.Stderr == "" {
			t.Errorf("%q: status %d, stderr %q, want status 1 and a reason", bad, r.Code, r.Stderr)
		}
	}
}

// startRcopy starts a server for a directory.
func startRcopy(ctx context.Context, t *testing.T, dir string) (port string) {
	t.Helper()
	port = tooltest.FreeCMPort()
	startListening(ctx, t, "adverb", "rcopy", "-p", port, "--into", dir)
	return port
}

func TestRcopy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	from, into := t.TempDir(), t.TempDir()
	port := startRcopy(ctx, t, into)
	want, modes := map[string][]byte{}, map[string]fs.FileMode{}
	for i, size := range []int{0, 1, 4097, 3 << 20} {
		b := make([]byte, size)
		r := rand.New(rand.NewPCG(uint64(i), 0))
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		name := filepath.Join("sub", fmt.Sprint(size))
		want[name], modes[name] = b, []fs.FileMode{0o700, 0o600}[i%2] // no umask takes these away
		if err := os.MkdirAll(filepath.Join(from, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), b, modes[name]); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing is left of a longer file of the same name.
	longer := filepath.Join("sub", "4097")
	if err := os.MkdirAll(filepath.Join(into, "all", "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(into, "all", longer), make([]byte, 9000), modes[longer]); err != nil {
		t.Fatal(err)
	}
	r := tool.Result(ctx, "adverb", "rcopy", "-p", port, "--verify", "--progress", from, "127.0.0.1:/all")
	if r.Code != 0 || !strings.Contains(r.Stdout, "opening...transferring...verifying...closing...done\n") ||
		!regexp.MustCompile(`(?m)^3149826 bytes in \d+\.\d\d seconds = \d+\.\d\d Gb/sec$`).MatchString(r.Stdout) || !strings.Contains(r.Stderr, ": 100 %") {
		t.Errorf("status %d\n%s%s\nwant status 0, all steps, 3149826 bytes and 100 %%", r.Code, r.Stdout, r.Stderr)
	}
	for name, b := range want {
		got, err := os.ReadFile(filepath.Join(into, "all", name))
		if err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s: %d bytes of %d, %v, want those of the source", name, len(got), len(b), err)
		}
		if info, err := os.Stat(filepath.Join(into, "all", name)); err != nil {
			t.Error(err)
		} else if got := info.Mode().Perm(); got != modes[name] {
			t.Errorf("%s: got permissions %v, want %v as of the source", name, got, modes[name])
		}
	}
}

// A source that is a link to a directory stands for it. Of a link in the directory the user hears that it stays behind.
func TestRcopyLinks(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	from, into := t.TempDir(), t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(from, "dir", "empty"), 0o755),
		os.WriteFile(filepath.Join(from, "dir", "file"), []byte("contents"), 0o600),
		os.Symlink("file", filepath.Join(from, "dir", "link")),
		os.Symlink("dir", filepath.Join(from, "source"))); err != nil {
		t.Fatal(err)
	}
	port := startRcopy(ctx, t, into)
	r := tool.Result(ctx, "adverb", "rcopy", "-p", port, filepath.Join(from, "source"), "127.0.0.1:to")
	if r.Code != 1 || !strings.Contains(r.Stdout, "\n8 bytes in") || !strings.Contains(r.Stderr, "link: left out, as it is a symbolic link\n") ||
		!strings.Contains(r.Stderr, "are left out: 1 in all") {
		t.Errorf("got status %d, %s%s, want 1, the 8 bytes of the file, and the link named", r.Code, r.Stdout, r.Stderr)
	}
	if got, err := os.ReadFile(filepath.Join(into, "to", "file")); err != nil || string(got) != "contents" {
		t.Errorf("got %q, %v, want the contents of the file", got, err)
	}
}

// A network that loses a packet in a hundred changes nothing but the time.
func TestRcopyLoss(t *testing.T) {
	n := rdmatest.New(t, rdmatest.Config{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01})
	a, b := n.Device(), n.Device()
	gid, err := b.GID(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	into := t.TempDir()
	r := rand.New(rand.NewPCG(n.Seed(), 1))
	want := make([]byte, 5<<20)
	for i := range want {
		want[i] = byte(r.Uint32())
	}
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, want, 0o600); err != nil {
		t.Fatal(err)
	}
	host := gid.GID.Addr().String()
	heard, say := io.Pipe() // says when it listens
	server := &rcopy{Invocation: &cli.Invocation{Ctx: ctx, Stdout: say, Stderr: io.Discard}, port: "7427", into: into, limits: rcopyLimits, devices: []*verbs.Device{b}, address: host}
	served := make(chan error, 1)
	go func() { served <- server.serve() }()
	if _, err := bufio.NewReader(heard).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	heard.Close()
	var out bytes.Buffer
	client := &rcopy{Invocation: &cli.Invocation{Ctx: ctx, Stdout: &out, Stderr: io.Discard}, port: "7427", verify: true, devices: []*verbs.Device{a}}
	if err := client.copy(source, "["+host+"]:/copy"); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
	if got, err := os.ReadFile(filepath.Join(into, "copy")); err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
		t.Errorf("%d bytes of %d, or others, %v, want those of the source", len(got), len(want), err)
	}
	cancel()
	<-served
}

// rcopy and proxy with one key at both ends, and their errors where the ends do not agree.
func TestPSK(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	one, other := tooltest.PSK(t, "a"), tooltest.PSK(t, "b")
	into, source := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := tooltest.FreeCMPort()
	startListening(ctx, t, "adverb", "rcopy", "-p", port, "--into", into, "--psk", one)
	copyWith := func(flags ...string) tooltest.Result {
		return tool.Result(ctx, append(append([]string{"adverb", "rcopy", "-p", port}, flags...), source, "127.0.0.1:file")...)
	}
	if r := copyWith("--psk", one); r.Code != 0 {
		t.Errorf("the same key: got status %d, stderr %q, want 0", r.Code, r.Stderr)
	}
	if b, err := os.ReadFile(filepath.Join(into, "file")); err != nil || string(b) != "secret" {
		t.Errorf("got %q, %v, want the copied bytes", b, err)
	}
	for want, flags := range map[string][]string{
		"the listener demands packet security": nil, "another pre-shared key": {"--psk", other}, "read the pre-shared key": {"--psk", one + "x"},
	} {
		if r := copyWith(flags...); r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: got status %d, stderr %q, want %q", flags, r.Code, r.Stderr, want)
		}
	}

	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			io.WriteString(c, "hello")
			c.Close()
		}
	}()
	_, rdmaPort := startListening(ctx, t, "adverb", "proxy", "--psk", one, "rdma:127.0.0.1:0", "unix:"+socket)
	for key, want := range map[string]string{one: "hello", other: ""} {
		inner, stop := context.WithCancel(ctx)
		near, tcpPort := startListening(inner, t, "adverb", "proxy", "--psk", key, "tcp:127.0.0.1:0", "rdma:127.0.0.1:"+rdmaPort)
		c, err := net.Dial("tcp", "127.0.0.1:"+tcpPort)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(c); string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
		c.Close()
		stop()
		<-near.Done
	}
	if r := tool.Result(ctx, "adverb", "proxy", "--psk", one+"x", "tcp:127.0.0.1:0", "rdma:127.0.0.1:1"); r.Code != 1 || !strings.Contains(r.Stderr, "read the pre-shared key") {
		t.Errorf("no file: got status %d, stderr %q, want that named", r.Code, r.Stderr)
	}
}

// No path leads out of the server's directory, and a client is told why not.
func TestRcopyRefuses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	parent := t.TempDir()
	into := filepath.Join(parent, "into")
	if err := os.MkdirAll(filepath.Join(into, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(source, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := startRcopy(ctx, t, into)
	if err := os.Symlink(parent, filepath.Join(into, "up")); err != nil {
		t.Fatal(err)
	}
	for to, reason := range map[string]string{"../out": "permission denied: the path leads out of the server's directory",
		"a/../../out": "permission denied: the path leads out", "up/out": "path escapes from parent", "dir": "dir is a directory, and a regular file is needed"} {
		r := tool.Result(ctx, "adverb", "rcopy", "-p", port, source, "127.0.0.1:"+to)
		if r.Code != 1 || !strings.Contains(r.Stderr, "the server answers: ") || !strings.Contains(r.Stderr, reason) {
			t.Errorf("%s: status %d, stderr %q, want %q", to, r.Code, r.Stderr, reason)
		}
	}
	err := filepath.WalkDir(parent, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			t.Errorf("there is %s, want no file", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// admitted makes a client of a connection.
func admitted(t *testing.T, conn net.Conn, l limits) *client {
	t.Helper()
	inv := &cli.Invocation{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}
	c := newService(inv, l, nil).admit(conn)
	if c == nil {
		t.Fatal("a connection is turned away")
	}
	return c
}

// Messages that a client may not send, and that its file does not stay open without them. Our client sends none of
// them.
func TestRcopyInvalid(t *testing.T) {
	const id = 0x1234
	open := openMessage("file", 0o600)
	for want, messages := range map[uint32][][]byte{
		errBusy:  {open, openMessage("other", 0o600)},
		errInval: {open, writeMessage(-1)}, // 2^64-1 bytes
		errIO:    {open, (&header{command: cmdClose, length: headerSize}).append(nil)},
	} {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		conn, far := net.Pipe()
		if err := conn.SetDeadline(time.Now().Add(tooltest.Patience)); err != nil {
			t.Fatal(err)
		}
		c := admitted(t, far, rcopyLimits)
		s := newSession(c, root, t.Logf)
		var served sync.WaitGroup
		served.Go(func() {
			s.run()
			c.end()
		})
		for i, m := range messages {
			answer := uint32(0)
			if i == len(messages)-1 {
				answer = want
			}
			if want == errIO && i > 0 {
				s.file.Close() // so that the server cannot
			}
			binary.LittleEndian.PutUint64(m[8:], id)
			if _, err := conn.Write(m); err != nil {
				t.Fatal(err)
			}
			if h, err := readHeader(conn); err != nil || h.command != m[1]|response || h.data != answer || h.id != id {
				t.Errorf("command %#x: got the answer %+v, %v, want %d and the ID %#x", m[1], h, err, answer, id)
			}
		}
		conn.Close()
		served.Wait()
		if s.file != nil {
			t.Errorf("after the client with error %d: got an open file, want none", want)
		}
		root.Close()
	}
}

// The client's errors with servers that answer otherwise than ours, and with a file that changes while it is copied.
func TestRcopyAnswers(t *testing.T) {
	const size = 9
	name := filepath.Join(t.TempDir(), "file")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		command byte // with another answer
		answer  header
		becomes int64 // the file's size once the server has been told of it
		want    string
	}{
		{0, header{}, size, ""},
		{0, header{}, 2 * size, ""},
		{0, header{}, size - 1, "the file became shorter"},
		{0, header{}, 0, "the file became shorter"},
		{cmdWrite, header{command: cmdWrite | response, data: errNoSpc}, size, "write to: the server answers: no space left"},
		{cmdWrite, header{command: cmdClose | response}, size, "write to: the answer is to command 0x82, want 0x83"},
		{cmdVerify, header{command: cmdVerify | response}, size, "the server's file has another checksum"},
		{cmdClose, header{command: cmdClose | response, data: errIO}, size, "close to: the server answers: I/O error"},
	} {
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		serve := func(conn net.Conn) error {
			defer conn.Close()
			sum := sha256.New()
			for {
				h, err := readHeader(conn)
				if err != nil {
					return err
				}
				var more []byte
				switch h.command {
				case cmdOpen:
					if _, err = readPath(conn, &h); err == nil {
						err = os.Truncate(name, c.becomes)
					}
				case cmdWrite:
					_, err = io.CopyN(sum, conn, 8+min(size, c.becomes)) // the size of 8 bytes, and the file
					sum.Reset()
					sum.Write(make([]byte, size))
				case cmdVerify:
					more = sum.Sum(nil)
				}
				if err != nil {
					return err
				}
				a := header{command: h.command | response}
				if h.command == c.command {
					a = c.answer
					clear(more)
				}
				a.length = headerSize
				if _, err := conn.Write(append(a.append(nil), more...)); err != nil {
					return err
				}
			}
		}
		served := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				err = serve(conn)
			}
			served <- err
		}()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		client := &rcopy{Invocation: &cli.Invocation{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}, verify: true}
		_, err = client.copyFile(conn, name, "to")
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("command %d answered by %+v, and %d bytes that become %d: got %v, want %q", c.command, c.answer, size, c.becomes, err, c.want)
		}
		conn.Close()
		<-served
	}
}

// The client gets the errno that fits, which rdma-core's rcopy prints by its name.
func TestRcopyStatus(t *testing.T) {
	for err, want := range map[error]uint32{
		nil: 0, syscall.ENOENT: errNoEnt, syscall.EACCES: errAccess, syscall.EEXIST: errExist, syscall.EISDIR: errIsDir,
		syscall.EINVAL: errInval, syscall.EBUSY: errBusy, syscall.ENOSPC: errNoSpc, io.ErrUnexpectedEOF: errIO,
	} {
		if err != nil {
			err = &fs.PathError{Op: "write", Path: "file", Err: err}
		}
		if got := status(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}

// The messages byte by byte, as struct msg_open and struct msg_write of rdma-core's rcopy on a host that is
// little-endian.
func TestRcopyMessages(t *testing.T) {
	for _, c := range []struct {
		got  []byte
		want string
	}{
		{openMessage("/a/file", 0o100644), "0001" + "1800" + "a4810000" + "0000000000000000" + "2f612f66696c6500"},
		{openMessage("12345678", 1), "0001" + "2000" + "01000000" + "0000000000000000" + "3132333435363738" + "0000000000000000"},
		{writeMessage(0x1122), "0003" + "1800" + "00000000" + "0000000000000000" + "2211000000000000"},
		{(&header{command: cmdClose | response, length: 16, data: 5, id: 6}).append(nil), "0082" + "1000" + "05000000" + "0600000000000000"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	for _, bad := range []string{"0101" + "1000" + "00000000" + "0000000000000000", "0001" + "0f00" + "00000000" + "0000000000000000"} {
		b, _ := hex.DecodeString(bad)
		if h, err := readHeader(bytes.NewReader(b)); err == nil {
			t.Errorf("%s: got %+v, want an error", bad, h)
		}
	}
	if _, err := readPath(bytes.NewReader(make([]byte, 60000)), &header{length: 60000}); err == nil {
		t.Error("a path of 60000 bytes is taken")
	}
}

// FuzzMessages: messages that readHeader and readPath take are written as they came, but for the bytes behind a
// path's end. They read as much as the header says, and refuse a message that is cut short.
func FuzzMessages(f *testing.F) {
	f.Add(openMessage("/a/file", 0o100644))
	f.Add(openMessage("", 0o600))
	f.Add(writeMessage(0x1122))
	f.Add((&header{command: cmdClose | response, length: 16, data: 5, id: 6}).append(nil))
	f.Add(openMessage(strings.Repeat("x", maxPath+8), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := readHeader(r)
		if err != nil {
			return
		}
		if got := h.append(nil); !bytes.Equal(got, b[:headerSize]) || r.Len() != len(b)-headerSize {
			t.Fatalf("header %x is read as %+v, which is written as %x, and %d bytes are left, want the same bytes, and all but the header left", b[:headerSize], h, got, r.Len())
		}
		path, err := readPath(r, &h)
		if err != nil {
			return
		}
		if left := len(b) - int(h.length); left < 0 || r.Len() != left || len(path) == 0 || len(path) > maxPath || strings.ContainsRune(path, 0) {
			t.Fatalf("a message of length %d, of which %d bytes came, has the path %q, and %d bytes are left, want a path of 1 to %d bytes without NUL, and the rest left", h.length, len(b), path, r.Len(), maxPath)
		}
		m := openMessage(path, h.data)
		again, err := readPath(bytes.NewReader(m[headerSize:]), &header{length: uint16(len(m))})
		if !bytes.HasPrefix(b[headerSize:], append([]byte(path), 0)) || len(m) <= maxPath && (err != nil || again != path) {
			t.Errorf("%x has the path %q, which is written and read as %q, %v, want the same path", b, path, again, err)
		}
	})
}

func TestDestination(t *testing.T) {
	for operand, want := range map[string][2]string{
		"host": {"host", "src"}, "host:": {"host", "src"}, "host:/x": {"host", "/x"}, "::1": {"::1", "src"},
		"[::1]": {"::1", "src"}, "[::1]:/x": {"::1", "/x"}, "10.0.0.1:y:z": {"10.0.0.1", "y:z"},
		"fe80::1%eth0": {"fe80::1%eth0", "src"}, "[fe80::1%eth0]:/x": {"fe80::1%eth0", "/x"},
	} {
		if host, path := destination(operand, "src"); [2]string{host, path} != want {
			t.Errorf("%s: %q, %q, want %q", operand, host, path, want)
		}
	}
}
