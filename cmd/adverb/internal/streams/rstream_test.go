package streams

import (
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rsocket"
)

const streamHeader = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n"

const (
	streamAddr      = "127.0.0.1"
	streamIWARPAddr = "127.0.88.93" // of a device that speaks iWARP
	streamIWARP     = "iw_lo@" + streamIWARPAddr
)

// streamAddrOf is the address of a server with those flags.
func streamAddrOf(flags []string) string {
	if slices.Contains(flags, streamIWARP) {
		return streamIWARPAddr
	}
	return streamAddr
}

// streamServer starts a server of rstream or riostream, and returns its port.
func streamServer(ctx context.Context, t *testing.T, program string, flags ...string) (s *tooltest.Started, port string) {
	t.Helper()
	port = tooltest.FreeCMPort()
	if slices.Contains(flags, "s") || slices.Contains(flags, streamIWARP) { // it is TCP's
		port = tooltest.FreePort(t)
	}
	s = tool.Start(ctx, append([]string{program, "-b", streamAddrOf(flags), "-p", port}, flags...)...)
	if !strings.HasPrefix(s.FirstLine, "name ") {
		r := <-s.Done
		t.Fatalf("%s: status %d, %q, want a server\n%s", program, r.Code, s.FirstLine, r.Stderr)
	}
	return s, port
}

// Both ends are ours, and compare all data, of sizes that are words and that are not.
func TestRstream(t *testing.T) {
	for _, tt := range []struct {
		program, flags string
		columns        string // size, transfers, iterations, bytes in all
		before         string // the lines before the result, at the client
	}{
		{"rstream", "-S 64 -C 3 -I 5", "64      3       5       1.8k", ""},
		{"rstream", "-S 100001 -C 4", "97k     4       1       781k", ""},
		{"rstream", "-I 20", "1000    1k      20      38m", ""},
		{"rstream", "-S 1 -C 1 -T a -T b -T n -T r -i 16 -B 1", "1       1       1       2", ""},
		{"rstream", "-S 5000 -C 2 -d soft_lo -k 3", "4.8k    2       1       19k", "Keepalive: ON\n  time: 3\n"},
		{"rstream", "-S 5000 -C 2 -d " + streamIWARP, "4.8k    2       1       19k", ""},
		{"rstream", "-S 70000 -C 9 -T s", "68k     9       1       1.2m", ""},
		{"rstream", "-S 70000 -C 9 -T s -T f -k 3", "68k     9       1       1.2m", "Keepalive: ON\n  time: 3\n"},
		{"riostream", "-S 64 -C 3 -I 300", "64      3       300     112k", ""}, // the turns begin anew
		{"riostream", "-S 1 -C 2 -I 9", "1       2       9       36", ""},
		{"riostream", "-S 100001 -C 4", "97k     4       1       781k", ""},
		{"riostream", "-S 30 -C 2 -I 3 -d " + streamIWARP, "30      2       3       360", ""},
		{"riostream", "-S 2000000 -C 2 -B 4096", "1.9m    2       1       7.6m", ""},
	} {
		t.Run(tt.program+" "+tt.flags, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			flags := append(strings.Fields(tt.flags), "-T", "v")
			s, port := streamServer(ctx, t, tt.program, flags...)
			client := tool.Result(ctx, append([]string{tt.program, "-s", streamAddrOf(flags), "-p", port}, flags...)...)
			server := <-s.Done
			line := fmt.Sprintf("custom    %-32s", tt.columns) + ` *\d+\.\d\ds *\d+\.\d\d *\d+\.\d\d\n`
			for _, end := range []struct {
				name string
				tooltest.Result
				before string
			}{{"client", client, tt.before}, {"server", server, tt.before + tt.before}} {
				want := "^" + regexp.QuoteMeta(streamHeader) + end.before + line + "$"
				if end.Code != 0 || !regexp.MustCompile(want).MatchString(end.Stdout) || end.Stderr != "" {
					t.Errorf("%s: status %d\n%s%s\nwant status 0 and %s", end.name, end.Code, end.Stdout, end.Stderr, want)
				}
			}
		})
	}
}

// Without a test of its own a program has the C programs' table, over a connection for latency and one for bandwidth.
func TestRstreamTable(t *testing.T) {
	lines := func(s *streamer) (lines []string) {
		for _, tests := range s.rounds() {
			for _, test := range tests {
				lines = append(lines, fmt.Sprint(test.name, " ", test.size, " ", test.count, " ", test.iterations))
			}
			lines = append(lines, "")
		}
		return lines
	}
	want := []string{"64_lat 64 1 100000", "4k_lat 4096 1 10000", "64k_lat 65536 1 1000", "1m_lat 1048576 1 100", "",
		"64_bw 64 100000 1", "4k_bw 4096 10000 1", "64k_bw 65536 1000 1", "1m_bw 1048576 100 1", ""}
	if got := lines(&streamer{}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	all := lines(&streamer{streamOptions: streamOptions{all: true}})
	if len(all) != 2*34 {
		t.Errorf("-S all: got %d lines, want 34 of each kind", len(all))
	}
	for _, line := range []string{"64_lat 64 1 100000", "192_lat 192 1 100000", "1.5k_bw 1536 10000 1", "384k_lat 393216 1 1000", "6m_bw 6291456 100 1"} {
		if !slices.Contains(all, line) {
			t.Errorf("-S all: got %q, want %s among them", all, line)
		}
	}
}

func TestRstreamNumbers(t *testing.T) {
	for n, want := range map[int64]string{1: "1", 1023: "1023", 1024: "1k", 1126: "1k", 1536: "1.5k", 10239: "9.9k", 10752: "10k", 12_800_000: "12m", 1 << 30: "1g", 25 << 30: "25g"} {
		if got := sizeText(n); got != want {
			t.Errorf("%d bytes: got %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{1: "1", 999: "999", 1000: "1k", 1999: "1k", 2_500_000: "2m", 2_000_000_000: "2b"} {
		if got := countText(n); got != want {
			t.Errorf("%d times: got %s, want %s", n, got, want)
		}
	}
}

// A peer of the test's sends a byte that is none of those that count up.
func TestRstreamVerifies(t *testing.T) {
	const size = 64
	damaged := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i)
		}
		b[5] ^= 0x10
		return b
	}
	for program, tt := range map[string]struct {
		talk func(t *testing.T, c *rsocket.Conn) error
		says string // to stdout, behind the table's header
		why  string
	}{
		"rstream": {func(t *testing.T, c *rsocket.Conn) error {
			b := make([]byte, greeting)
			for i := range b {
				b[i] = byte(i)
			}
			if _, err := c.Write(b); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, b); err != nil {
				return err
			}
			b = damaged(size)
			for i := range b {
				b[i] += greeting
			}
			_, err := c.Write(b)
			return err
		}, "data verification failed byte 21\n", "byte 5 of 64 of a transfer is 0x25, and must be 0x15"},
		"riostream": {func(t *testing.T, c *rsocket.Conn) error {
			if _, err := c.Map(size, 0); err != nil {
				return err
			}
			b := make([]byte, greeting)
			if _, err := c.Write(b); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, b); err != nil {
				return err
			}
			b = damaged(size)
			b[size-1] = 0 // the first turn
			_, err := c.WriteAt(b, 0)
			return err
		}, "data verification failed byte 5\n", "byte 5 of 63 of a transfer is 0x15, and must be 0x05"},
	} {
		t.Run(program, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			s, port := streamServer(ctx, t, program, "-T", "verify", "-S", fmt.Sprint(size), "-C", "1")
			d := rsocket.Dialer{Config: rsocket.Config{Maps: 1}}
			conn, err := d.DialContext(ctx, "rsocket", net.JoinHostPort("127.0.0.1", port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := tt.talk(t, conn.(*rsocket.Conn)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the peer reads %d bytes, %v, want the end", n, err)
			}
			r := <-s.Done
			if r.Code != 255 || r.Stdout != streamHeader+tt.says || !strings.Contains(r.Stderr, "adverb: "+tt.why) {
				t.Errorf("status %d\n%s%s\nwant status 255, %q and %q", r.Code, r.Stdout, r.Stderr, tt.says, tt.why)
			}
		})
	}
}

// A peer that leaves within a test is noticed, also by an end that watches its memory.
func TestRstreamPeerLeaves(t *testing.T) {
	for program, line := range map[string]string{"rstream": "rrecv: end of the stream\n", "riostream": "riowrite: Broken pipe\n"} {
		t.Run(program, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			s, port := streamServer(ctx, t, program)
			d := rsocket.Dialer{Config: rsocket.Config{Maps: 1}}
			conn, err := d.DialContext(ctx, "rsocket", net.JoinHostPort("127.0.0.1", port))
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, greeting)
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, b); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			r := <-s.Done
			if r.Code != 255 || !strings.HasPrefix(r.Stderr, line) || !strings.Contains(r.Stderr, "the peer has ended the connection within a test: ") {
				t.Errorf("status %d, %q, want status 255, %q and a reason", r.Code, r.Stderr, line)
			}
		})
	}
}

// The user ends a run that waits for its peer, or for a client.
func TestRstreamInterrupted(t *testing.T) {
	for _, program := range []string{"rstream", "riostream"} {
		for _, connected := range []bool{false, true} {
			t.Run(fmt.Sprint(program, " ", connected), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
				defer cancel()
				inner, interrupt := context.WithCancel(ctx)
				defer interrupt()
				s, port := streamServer(inner, t, program)
				if connected {
					conn, err := (&rsocket.Dialer{Config: rsocket.Config{Maps: 1}}).DialContext(ctx, "rsocket", net.JoinHostPort("127.0.0.1", port))
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					b := make([]byte, greeting)
					if _, err := conn.Write(b); err != nil {
						t.Fatal(err)
					}
					if _, err := io.ReadFull(conn, b); err != nil {
						t.Fatal(err)
					}
				}
				interrupt()
				if r := <-s.Done; r.Code != 130 || r.Stderr != "adverb: interrupted\n" || ctx.Err() != nil {
					t.Errorf("status %d, %q, want status 130 and %q", r.Code, r.Stderr, "adverb: interrupted\n")
				}
			})
		}
	}
}

func TestRstreamErrors(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	inner, end := context.WithCancel(ctx)
	taken, port := streamServer(inner, t, "rstream")
	nobody, key := tooltest.FreeCMPort(), tooltest.PSK(t, "ab")
	for _, tt := range []struct {
		line           string
		code           int
		stdout, stderr string // the beginning of the one, and a part of the other
	}{
		{"rstream -s 127.0.0.1 -p " + nobody, 255, streamHeader, "rconnect: Connection refused\nadverb: "},
		{"riostream -s 127.0.0.1 -p " + nobody, 255, streamHeader, "rconnect: Connection refused\nadverb: "},
		{"rstream -b 127.0.0.1 -p " + port, 255, "", "rlisten: Address already in use\nadverb: "},
		{"rstream -T s -s 127.0.0.1 -p 1", 255, streamHeader, "rconnect: Connection refused\nadverb: "},
		{"rstream -f ip -s localhost", 254, streamHeader + "getaddrinfo: Name or service not known\n", "adverb: \"localhost\" is no IP address"},
		{"rstream -f ip -s 127.0.0.1 -b localhost", 254, streamHeader + "getaddrinfo src_addr: Name or service not known\n", "adverb: \"localhost\" is no IP address"},
		{"riostream -f ipv6 -b localhost", 254, "getaddrinfo: Name or service not known\n", "adverb: \"localhost\" is no IP address"},
		{"rstream -p no-such-service", 248, "getaddrinfo: Servname not supported for ai_socktype\n", "adverb: "},
		{"rstream -f gid -s fe80::1", 1, "usage: rstream\n\t[-s server_address]\n", "adverb: read --format=gid: addresses of streams are IP addresses here, and no GIDs: "},
		{"rstream -f strange -s 127.0.0.1 -p " + nobody, 255, streamHeader, "Warning: unknown address format\n"},
		{"rstream -S 0", 1, "usage: rstream\n", "adverb: read --size=0: that is too small: give one from 1 to 1073741824 bytes, or all\n"},
		{"riostream -S 1073741825", 1, "usage: riostream\n", "adverb: read --size=1073741825: that is too large: "},
		{"riostream -S 12k", 1, "usage: riostream\n", "adverb: read --size=12k: that is no number: "},
		{"rstream -I 0", 1, "usage: rstream\n", "adverb: read --iterations=0: that is too small: "},
		{"rstream -C -1", 1, "usage: rstream\n", "adverb: read --count=-1: that is too small: "},
		{"rstream -B 536870913", 1, "usage: rstream\n", "adverb: read --buffer=536870913: that is too large: "},
		{"rstream -T x", 1, "usage: rstream\n", `adverb: read --test=x: no such option: it is one of ["sockets" "fork" `},
		{"riostream -T s", 1, "usage: riostream\n", `adverb: read --test=s: no such option: it is one of ["async" `},
		{"riostream -k 3", 1, "usage: riostream\n", "riostream: invalid option -- 'k'\n"},
		{"rstream -T SocketS --psk " + key, 1, "", "adverb: --psk and -T sockets exclude each other: "},
		{"rstream -T f -d soft_lo", 1, "", "adverb: -d and -T sockets exclude each other: "},
		{"rstream --psk /no/such/file", 1, "", "adverb: read the pre-shared key of --psk: "},
		{"rstream -d none", 255, "", "IB device none not found\nadverb: "},
		{"rstream 127.0.0.1 -S 0", 1, "usage: rstream\n", "too small"},
	} {
		r := tool.Result(ctx, strings.Fields(tt.line)...)
		if r.Code != tt.code || !strings.HasPrefix(r.Stdout, tt.stdout) || tt.stdout == "" && r.Stdout != "" || !strings.Contains(r.Stderr, tt.stderr) {
			t.Errorf("%s: status %d\n%s\n%s\nwant status %d, %q and %q", tt.line, r.Code, r.Stdout, r.Stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
	end()
	<-taken.Done
}

// Both ends have a key, or one of them.
func TestRstreamPSK(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	flags := []string{"-T", "v", "-S", "3000", "-C", "4", "--psk", tooltest.PSK(t, "ab")}
	s, port := streamServer(ctx, t, "riostream", flags...)
	if r := tool.Result(ctx, "riostream", "-s", "127.0.0.1", "-p", port, "-S", "3000", "-C", "4"); r.Code != 255 || !strings.HasPrefix(r.Stderr, "rconnect: ") {
		t.Errorf("without a key: status %d, %s, want status 255 and no connection", r.Code, r.Stderr)
	}
	r := tool.Result(ctx, append([]string{"riostream", "-s", "127.0.0.1", "-p", port}, flags...)...)
	if server := <-s.Done; r.Code != 0 || server.Code != 0 {
		t.Errorf("with the key: status %d and %d, want 0\n%s%s", r.Code, server.Code, r.Stderr, server.Stderr)
	}
}
