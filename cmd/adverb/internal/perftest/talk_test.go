package perftest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// clientOfC has the bytes of ib_read_lat of perftest 4.5-0.20 to its server, up to the measurement: its version, its
// page size and cache line, the code of its MTU, and six times its QP.
func clientOfC(d *dest) []byte {
	b := append([]byte("6.10"), make([]byte, 12)...)
	b = append(b, 0, 0, 0x10, 0, 0, 0, 0, 64)
	b = append(b, "3\x00"...)
	for range 5 {
		b = d.appendTo(b, textWithGID)
	}
	return b
}

// The passive end of read_lat has nothing to do but to talk. So the whole exchange with the C program
// can be played.
func TestTalkWithC(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	port := tooltest.FreePort(t)
	server := tool.StartUntil(ctx, "* Waiting for client to connect... *", "ib_read_lat", "-d", serverDevice, "-p", port, "-x", "0")
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d := sampleDest
	d.lid = 0
	said := clientOfC(&d)
	if _, err := conn.Write(said); err != nil {
		t.Fatal(err)
	}
	heard := make([]byte, len(said))
	if _, err := io.ReadFull(conn, heard); err != nil {
		t.Fatal(err)
	}
	head := append([]byte("6.10"), make([]byte, 12)...)
	head = append(head, 0, 0, 0x10, 0, 0, 0, 0, 64)
	head = append(head, "5\x00"...) // the loopback interface's MTU is 4096
	if !bytes.HasPrefix(heard, head) {
		t.Errorf("got the beginning %q, want %q", heard[:len(head)], head)
	}
	for i := len(head); i < len(heard); i += textSize {
		got, err := decodeDest(heard[i:i+textSize], textWithGID)
		if err != nil || got.gid.Addr().String() != serverAddr || got.outs == 0 || got.rkey == 0 || got.vaddr == 0 {
			t.Errorf("the %d. message about the server: got %+v, %v, want its GID, key and address", (i-len(head))/textSize, got, err)
		}
	}
	// The measurement is over: the C program says its QP once more, and "done".
	if _, err := conn.Write(append(d.appendTo(nil, textWithGID), "done\x00"...)); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if r := <-server; r.Code != 0 || r.Stderr != "" {
		t.Errorf("got status %d, stderr:\n%s%s\nwant status 0 and no stderr", r.Code, r.Stderr, r.Stdout)
	}
}

// Peers that are no perftest, or too old, get an error that says so.
func TestTalkWithOthers(t *testing.T) {
	otherQP := sampleDest
	otherQP.qpn++
	for name, tt := range map[string]struct{ says, want string }{
		"old":       {"5.60" + string(make([]byte, 12)), `the peer's version is "5.60": 5.70 or later can be talked to`},
		"HTTP":      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", `the peer's version is "GET / HTTP/1.1\r\n"`},
		"pingpong":  {"0000:000017:05d592:00000000000000000000ffff0a620003\x00", `the peer's version is "0000:000017:05d5", and that is none: is the peer another program?`},
		"silent":    {"", errPeerGone.Error()},
		"negative":  {"6.10" + string(make([]byte, 12)) + "\xff\xff\xff\xff", "says -1 where a size belongs"},
		"huge":      {"6.10" + string(make([]byte, 12)) + "\x7f\xff\xff\xff", "buffers go round in 2147483647 bytes"},
		"no number": {"6.10" + string(make([]byte, 12)) + "\x00\x00\x10\x00\x00\x00\x00\x40x\x00", "path MTU is no number"},
		"garbage": {string(clientOfC(&sampleDest)[:26]) + string(make([]byte, textSize)),
			"the peer's message is no address"},
		"another QP": {string(otherQP.appendTo(clientOfC(&sampleDest)[:26+textSize], textWithGID)), errOtherQP.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			port := tooltest.FreePort(t)
			server := tool.StartUntil(ctx, "* Waiting for client to connect... *", "ib_send_bw", "-d", serverDevice, "-p", port)
			conn, err := net.Dial("tcp", "127.0.0.1:"+port)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, tt.says)
			if c, ok := conn.(*net.TCPConn); ok {
				c.CloseWrite()
			}
			go func() {
				io.Copy(io.Discard, conn)
				conn.Close()
			}()
			if r := <-server; r.Code != 1 || !bytes.Contains([]byte(r.Stderr), []byte(tt.want)) {
				t.Errorf("got status %d, stderr %q, want status 1 and %q", r.Code, r.Stderr, tt.want)
			}
		})
	}
}
