package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	_ "github.com/adverb-rdma/adverb/provider/soft" // the devices of our end
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/rsocket"
)

// rstream and riostream of rdma-core, with this test as the other end: it is the client or the server that the C
// program would have. Both ends send transfers by turns, and compare every byte.

// streamer is our end of one of them.
type streamer struct {
	conn     *rsocket.Conn
	sent     byte // the next byte that a transfer has
	expected byte
}

func (s *streamer) send(b []byte) error {
	for i := range b {
		b[i] = s.sent
		s.sent++
	}
	_, err := s.conn.Write(b)
	return err
}

func (s *streamer) receive(b []byte) error {
	if _, err := io.ReadFull(s.conn, b); err != nil {
		return err
	}
	return s.verify(b)
}

func (s *streamer) verify(b []byte) error {
	for i, got := range b {
		if got != s.expected {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(b), got, s.expected)
		}
		s.expected++
	}
	return nil
}

// turns does two things count times each, the first one first at the client.
func turns(client bool, send, receive func() error) error {
	if !client {
		send, receive = receive, send
	}
	if err := send(); err != nil {
		return err
	}
	return receive()
}

func times(n int, f func() error) func() error {
	return func() error {
		for range n {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}

// rstream is the traffic of rstream: a greeting, and iterations of count transfers each way.
func (s *streamer) rstream(client bool, size, count, iterations int) error {
	greeting, b := make([]byte, 16), make([]byte, size)
	if err := turns(client, func() error { return s.send(greeting) }, func() error { return s.receive(greeting) }); err != nil {
		return err
	}
	for range iterations {
		err := turns(client, times(count, func() error { return s.send(b) }), times(count, func() error { return s.receive(b) }))
		if err != nil {
			return err
		}
	}
	return nil
}

// riostream is the traffic of riostream: the transfers go into memory that each end has mapped, whose last byte
// says which iteration it is of. Only the last transfer of an iteration has data to compare.
func (s *streamer) riostream(client bool, size, iterations int) error {
	m, err := s.conn.Map(size, 0)
	if err != nil {
		return err
	}
	m.Bytes()[size-1] = 0xff
	// The greetings are not compared.
	greeting, b := make([]byte, 16), make([]byte, size)
	err = turns(client, func() error { _, err := s.conn.Write(greeting); return err },
		func() error { _, err := io.ReadFull(s.conn, greeting); return err })
	if err != nil {
		return err
	}
	marker := byte(0)
	send := func() error {
		for i := range b[:size-1] {
			b[i] = s.sent
			s.sent++
		}
		b[size-1] = marker
		marker++
		_, err := s.conn.WriteAt(b, 0)
		return err
	}
	receive := func() error {
		for byte(m.MR().Load64(size-8)>>56) != marker {
			runtime.Gosched()
		}
		marker++
		return s.verify(m.Bytes()[:size-1])
	}
	for range iterations {
		if err := turns(client, send, receive); err != nil {
			return err
		}
	}
	return nil
}

func TestRstream(t *testing.T) {
	needLab(t)
	for _, program := range []string{"rstream", "riostream"} {
		for _, server := range []string{"kernel", "adverb"} {
			for _, v6 := range []bool{false, true} {
				for _, size := range []int{64, 65536, 1000000} {
					s := scenario{family: "Rsockets", program: program, server: server, v6: v6, mtu: mtus[0], variant: strconv.Itoa(size)}
					s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRstream(ctx, t, l, s, size) })
				}
			}
		}
	}
}

func runRstream(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	const iterations = 3
	count := 5
	if s.program == "riostream" {
		count = 1 // its last transfer alone is compared
	}
	t.Cleanup(func() {
		if err := rdmacm.CloseDevices(); err != nil {
			t.Error(err)
		}
	})
	port := nextPort()
	guest, host := l.Guest(0), s.ours(l)
	dev := s.device(t, l)
	argv := []string{s.program, "-T", "b", "-T", "v", "-p", port, "-S", strconv.Itoa(size), "-C", strconv.Itoa(count), "-I", strconv.Itoa(iterations)}
	cfg := rsocket.Config{Maps: 1}
	var peer *Process
	var conn net.Conn
	client := s.server == "kernel"
	if client {
		peer = s.startCM(ctx, t, guest, cmPort{rdmacm.PortSpaceTCP, port}, append(argv, "-b", guest.Addr(s.v6).String())...)
		d := rsocket.Dialer{Config: cfg, Devices: devices(dev)}
		var err error
		if conn, err = d.DialContext(ctx, "rsocket", net.JoinHostPort(guest.Addr(s.v6).String(), port)); err != nil {
			t.Fatalf("%v\n%s", err, peer.Report())
		}
	} else {
		lc := rsocket.ListenConfig{Config: cfg, Devices: devices(dev)}
		listener, err := lc.Listen(ctx, "rsocket", net.JoinHostPort(host.Addr(s.v6).String(), port))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		defer context.AfterFunc(ctx, func() { listener.Close() })()
		peer = start(ctx, t, guest, append(argv, "-s", host.Addr(s.v6).String())...)
		if conn, err = listener.Accept(); err != nil {
			t.Fatalf("%v\n%s", err, peer.Report())
		}
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline)
	our := &streamer{conn: conn.(*rsocket.Conn)}
	var err error
	if s.program == "rstream" {
		err = our.rstream(client, size, count, iterations)
	} else {
		err = our.riostream(client, size, iterations)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, peer.Report())
	}
	if client {
		conn.Close()
	} else if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("at the client's end: %v, want %v", err, io.EOF)
	}
	left := finish(t, peer)
	if out := left[0].Stdout; !strings.Contains(out, "custom") || strings.Contains(out, "failed") {
		t.Errorf("%s prints %q", s.program, out)
	}
}

// Files are copied both ways, and compared.
func TestRcopy(t *testing.T) {
	needLab(t)
	for _, server := range []string{"kernel", "adverb"} {
		for _, size := range []int{1, 100_000, 5_000_000} {
			s := scenario{family: "Rsockets", program: "rcopy", server: server, mtu: mtus[0], variant: strconv.Itoa(size)}
			s.run(t, func(ctx context.Context, t *testing.T, l *Lab) { runRcopy(ctx, t, l, s, size) })
		}
	}
}

func runRcopy(ctx context.Context, t *testing.T, l *Lab, s scenario, size int) {
	port := nextPort()
	at := cmPort{rdmacm.PortSpaceTCP, port}
	guest, host := l.Guest(0), s.ours(l)
	dir, remote := t.TempDir(), "/run/rcopied-"+port
	local := filepath.Join(dir, "file")
	if s.server == "kernel" {
		data := make([]byte, size)
		r := rand.New(rand.NewPCG(uint64(size), 0))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if err := os.WriteFile(local, data, 0o644); err != nil {
			t.Fatal(err)
		}
		s.startCM(ctx, t, guest, at, "rcopy", "-p", port)
		finish(t, start(ctx, t, host, "adverb", "rcopy", "-p", port, local, guest.Addr(false).String()+":"+remote))
	} else {
		if _, err := guest.Run(ctx, "sh", "-c", `head -c 1000003 /dev/urandom > "$2.part"; while cat "$2.part"; do :; done | head -c "$1" > "$2"; rm "$2.part"; test "$(stat -c %s "$2")" = "$1"`, "make", strconv.Itoa(size), remote); err != nil {
			t.Fatal(err)
		}
		s.startCM(ctx, t, host, at, "adverb", "rcopy", "-p", port, "--into", dir)
		finish(t, start(ctx, t, guest, "rcopy", remote, host.Addr(false).String()+":/file", "-p", port))
	}
	data, err := os.ReadFile(local)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	// The guest's files are in its memory, which holds one of the long ones.
	out, err := guest.Run(ctx, "sh", "-c", `sha256sum "$1" && rm "$1"`, "sum", remote)
	if err != nil || len(data) != size || !bytes.HasPrefix([]byte(out), []byte(hex.EncodeToString(sum[:]))) {
		t.Errorf("%d bytes of %d, SHA-256 %x here, and there %s, %v", len(data), size, sum, out, err)
	}
}
