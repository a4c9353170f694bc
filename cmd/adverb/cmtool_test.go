package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestCMAtoi(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "x": 0, "7": 7, " \t+12ab": 12, "-3": -3, "010": 10, "0x10": 0, "99999999999999999999": math.MaxInt32,
	} {
		if got := cmAtoi(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}

func TestCMHasPrefix(t *testing.T) {
	for _, tt := range []struct {
		s, prefix string
		want      bool
	}{{"ip", "ip", true}, {"IPv6", "ip", true}, {"i", "ip", false}, {"gids", "gid", true}, {"", "ip", false}} {
		if cmHasPrefix(tt.s, tt.prefix) != tt.want {
			t.Errorf("%q %q", tt.s, tt.prefix)
		}
	}
}

func TestCMStrerror(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("bind: %w", rdmacm.ErrAddrInUse), "Address already in use"},
		{verbs.Errorf(verbs.ErrInvalid, "no"), "Invalid argument"},
		{verbs.Errorf(verbs.ErrQueueFull, "no"), "Cannot allocate memory"},
		{errors.New("what"), "what"},
	} {
		if got := cmStrerror(tt.err); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
	if got := cmPostStatus(verbs.Errorf(verbs.ErrQueueFull, "no")); got != int(syscall.ENOMEM) {
		t.Error(got)
	}
	if got := cmPostStatus(fs.ErrNotExist); got != int(syscall.EINVAL) {
		t.Error(got)
	}
}

func TestCMAddresses(t *testing.T) {
	for _, tt := range []struct {
		flags    cmFlags
		src, dst string // "" for the zero value
		code     int    // of getaddrinfo
	}{
		{cmFlags{port: "7471"}, "0.0.0.0:7471", "", 0},
		{cmFlags{port: "1", bind: "::0"}, "[::]:1", "", 0},
		{cmFlags{port: "1", bind: "127.0.0.1"}, "127.0.0.1:1", "", 0},
		{cmFlags{port: "1", server: "127.0.0.1"}, "", "127.0.0.1:1", 0},
		{cmFlags{port: "1", server: "::1", bind: "::1"}, "[::1]:0", "[::1]:1", 0},
		{cmFlags{port: "1", server: "localhost"}, "", "127.0.0.1:1", 0},
		{cmFlags{port: "1", server: "127.0.0.1", numeric: true}, "", "127.0.0.1:1", 0},
		{cmFlags{port: "1", server: "localhost", numeric: true}, "", "", eaiNoName},
		{cmFlags{port: "1", server: "127.0.0.1", bind: "x", numeric: true}, "", "", eaiNoName},
		{cmFlags{port: "no-such-service", server: "127.0.0.1"}, "", "", eaiService},
	} {
		src, dst, err := tt.flags.addresses(t.Context())
		text := func(a netip.AddrPort) string {
			if !a.IsValid() {
				return ""
			}
			return a.String()
		}
		e, _ := errors.AsType[*cmLookupError](err)
		switch {
		case tt.code != 0 && (e == nil || e.code != tt.code):
			t.Errorf("%+v: %v", tt.flags, err)
		case tt.code == 0 && (err != nil || text(src) != tt.src || text(dst) != tt.dst):
			t.Errorf("%+v: %v %v %v, want %s %s", tt.flags, src, dst, err, tt.src, tt.dst)
		}
	}
}

func TestCmatoseFlags(t *testing.T) {
	def := cmatoseFlags{cmFlags: cmFlags{connections: 1, count: 10, size: 100, tos: -1, port: "7471", space: rdmacm.PortSpaceTCP}, ackTimeout: -1}
	for _, tt := range []struct {
		line string
		want func(*cmatoseFlags)
		err  string
	}{
		{"", func(*cmatoseFlags) {}, ""},
		{"-s h -b 1.2.3.4 -c 3 -C 4 -S 5 -p 80 -m -t 0x10 -a 14", func(f *cmatoseFlags) {
			f.server, f.bind, f.connections, f.count, f.size, f.port, f.migrate, f.tos, f.ackTimeout = "h", "1.2.3.4", 3, 4, 5, "80", true, 16, 14
		}, ""},
		{"-P IB -f ipv6", func(f *cmatoseFlags) { f.space, f.numeric = rdmacm.PortSpaceIB, true }, ""},
		{"-P x -f x", func(*cmatoseFlags) {}, "Warning: unknown port space format\nWarning: unknown address format\n"},
		{"-f name -P tcp -c x --ib-dev d", func(f *cmatoseFlags) { f.connections, f.device = 0, "d" }, ""},
	} {
		inv, _, stderr := classicInvocation(t, cmatoseCmd, tt.line)
		got, _, ok := parseCmatose(inv)
		want := def
		tt.want(&want)
		if !ok || got != want || stderr.String() != tt.err {
			t.Errorf("%q: got %+v, want %+v, stderr %q", tt.line, got, want, stderr)
		}
	}
}

// What the programs refuse, with the classic line or our own.
func TestCMToolErrors(t *testing.T) {
	for _, tt := range []struct {
		line           string
		code           int
		stdout, stderr string // prefixes; "-" for the usage
	}{
		{"ucmatose -x", 1, "-", "ucmatose: invalid option -- 'x'\n"},
		{"cmatose -s", 1, "-", "cmatose: option requires an argument -- 's'\n"},
		{"ucmatose -f gid", 1, "", "adverb: -f gid: "},
		{"ucmatose -c -1", 1, "cmatose: unable to allocate memory for test nodes\n", ""},
		{"ucmatose -c 99999999", 1, "cmatose: unable to allocate memory for test nodes\n", ""},
		{"ucmatose --ib-dev nope", 1, "", "IB device nope not found\nadverb: "},
		{"ucmatose -f ip -s localhost", 254, "cmatose: starting client\nrdma_getaddrinfo error: Name or service not known\ntest complete\nreturn status -2\n", "adverb: "},
		{"ucmatose -f ip -b localhost", 254, "cmatose: starting server\nrdma_getaddrinfo error: Name or service not known\ntest complete\nreturn status -2\n", "adverb: "},
		{"ucmatose -b 192.0.2.1", 255, "cmatose: starting server\ntest complete\nreturn status -1\n", "cmatose: bind address failed: No such device\nadverb: "},
		{"udaddy -x", 1, "-", "udaddy: invalid option -- 'x'\n"},
		{"udaddy -P ipoib", 1, "", "adverb: port space 0x2 (IPoIB): "},
		{"udaddy -p 2", 1, "", "adverb: port space 0x2 (IPoIB): "},
		{"udaddy -p 0x106", 1, "", "adverb: port space 0x106: "},
		{"udaddy -f ip -s x", 254, "udaddy: starting client\nrdma_getaddrinfo error: Name or service not known\ntest complete\n", "adverb: "},
		{"mckey -x", 1, "-", "mckey: invalid option -- 'x'\n"},
		{"mckey", 254, "mckey: starting server\ngetaddrinfo failed (Name or service not known) - invalid hostname or IP address\ntest complete\nreturn status -2\n", "adverb: give the group's address"},
		{"mckey -M ff0e::1", 1, "unmapped multicast address requires binding to source address\n", ""},
		{"mckey -m 239.1.2.3 -p 2", 1, "", "adverb: port space 0x2 (IPoIB): "},
		{"mckey -m 239.1.2.3 -o", 1, "", "adverb: -o: "},
		{"mckey -M x -b 127.0.0.1 -s", 254, "mckey: starting client\ngetaddrinfo failed (Name or service not known)", "adverb: "},
		{"mckey -m 239.1.2.3 --settle x", 1, "", "adverb: time: "},
		{"cmtime -x", 1, "usage: cmtime\n\t[-s server_address]\n", "cmtime: invalid option -- 'x'\n"},
		{"cmtime -C 127.0.0.1", 1, "usage: cmtime\n\t-B bind_interface", ""},
		{"cmtime -C 127.0.0.1 -b 127.0.0.1 -S -P 3", 1, "usage: cmtime\n\t-B bind_interface", ""},
		{"cmtime -b 127.0.0.1 -B lo -C 127.0.0.1", 1, "usage: cmtime\n", ""},
		{"cmtime -P 1", 1, "usage: cmtime\n", ""},
		{"cmtime -n 0", 1, "usage: cmtime\n", ""},
		{"cmtime -s h -C 127.0.0.1", 1, "", "adverb: -s is of the form without controller"},
		{"cmtime -c 0", 1, "", "adverb: -c 0: "},
		{"cmtime -t 5 -c 0", 1, "", "adverb: -c 0: "},
		{"cmtime -C 127.0.0.1 -B no-such-interface", 1, "", "Failed to find IP address for interface: no-such-interface\n"},
	} {
		code, stdout, stderr := tool(t.Context(), strings.Fields(tt.line)...)
		if tt.stdout == "-" {
			tt.stdout = "usage: " + strings.Fields(tt.line)[0] + "\n\t"
		}
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || !strings.HasPrefix(stderr, tt.stderr) ||
			tt.stdout == "" && stdout != "" || tt.stderr == "" && stderr != "" {
			t.Errorf("%s: status %d, stdout:\n%sstderr:\n%s", tt.line, code, stdout, stderr)
		}
	}
}

// The classic usage under classic names, ours in the tool's help.
func TestCMToolUsage(t *testing.T) {
	_, stdout, _ := tool(t.Context(), "/bin/ucmatose", "-?")
	diffLines(t, stdout, "usage: /bin/ucmatose\n"+cmatoseUsage)
	_, stdout, _ = tool(t.Context(), "adverb", "cmatose", "--help")
	for _, s := range []string{"Usage:\n  adverb cmatose ", "-s, --server=<host>", "--ib-dev=<dev>"} {
		if !strings.Contains(stdout, s) {
			t.Errorf("no %q in\n%s", s, stdout)
		}
	}
}

// cmTranscript is what a C program printed.
func cmTranscript(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
