package cmtools

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cm"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
)

func TestCmatoseFlags(t *testing.T) {
	def := cmatoseFlags{Flags: cm.Flags{Connections: 1, Count: 10, Size: 100, TOS: -1, Port: "7471", Space: rdmacm.PortSpaceTCP}, ackTimeout: -1}
	for _, tt := range []struct {
		line string
		want func(*cmatoseFlags)
		err  string
	}{
		{"", func(*cmatoseFlags) {}, ""},
		{"-s h -b 1.2.3.4 -c 3 -C 4 -S 5 -p 80 -m -t 0x10 -a 14", func(f *cmatoseFlags) {
			f.Server, f.Bind, f.Connections, f.Count, f.Size, f.Port, f.migrate, f.TOS, f.ackTimeout = "h", "1.2.3.4", 3, 4, 5, "80", true, 16, 14
		}, ""},
		{"-P IB -f ipv6", func(f *cmatoseFlags) { f.Space, f.Numeric = rdmacm.PortSpaceIB, true }, ""},
		{"-P x -f x", func(*cmatoseFlags) {}, "Warning: unknown port space format\nWarning: unknown address format\n"},
		{"-f name -P tcp -c 0 --ib-dev d", func(f *cmatoseFlags) { f.Connections, f.Device = 0, "d" }, ""},
	} {
		inv, _, stderr := tooltest.Invocation(t, Cmatose, tt.line)
		got, _, ok := parseCmatose(inv)
		want := def
		tt.want(&want)
		if !ok || got != want || stderr.String() != tt.err {
			t.Errorf("%q: got %+v, want %+v, stderr %q", tt.line, got, want, stderr)
		}
	}
}

// What the programs refuse, with the C program's line or with one of ours.
func TestCMToolErrors(t *testing.T) {
	for _, tt := range []struct {
		line           string
		code           int
		stdout, stderr string // prefixes; "-" for the usage
	}{
		{"ucmatose -x", 1, "-", "ucmatose: invalid option -- 'x'\n"},
		{"cmatose -s", 1, "-", "cmatose: option requires an argument -- 's'\n"},
		{"cmatose 127.0.0.1 -f gid -s name.invalid", 254, "cmatose: starting client\nrdma_getaddrinfo error: Name or service not known\ntest complete\nreturn status -2\n", "adverb: ignore [\"127.0.0.1\"]: cmatose takes flags alone, and -s names what it is to connect to\nadverb: \"name.invalid\" is no IP address"},
		{"udaddy 127.0.0.1 -f gid -s name.invalid", 254, "udaddy: starting client\nrdma_getaddrinfo error: Name or service not known\ntest complete\nreturn status -2\n", "adverb: ignore [\"127.0.0.1\"]: udaddy takes flags alone, "},
		{"ucmatose -c x", 1, "-", "adverb: read --connections=x: that is no number: give one from 0 to 1048576\n"},
		{"ucmatose -c -1", 1, "-", "adverb: read --connections=-1: that is too small: "},
		{"udaddy -c 99999999", 1, "-", "adverb: read --connections=99999999: that is too large: "},
		{"ucmatose -C ten", 1, "-", "adverb: read --messages=ten: that is no number: "},
		{"ucmatose -t 256", 1, "-", "adverb: read --tos=256: that is too large: "},
		{"ucmatose -a 32", 1, "-", "adverb: read --ack-timeout=32: that is too large: "},
		{"ucmatose --ib-dev nope", 1, "", "IB device nope not found\nadverb: "},
		{"ucmatose -f ip -s localhost", 254, "cmatose: starting client\nrdma_getaddrinfo error: Name or service not known\ntest complete\nreturn status -2\n", "adverb: "},
		{"ucmatose -f ip -b localhost", 254, "cmatose: starting server\nrdma_getaddrinfo error: Name or service not known\ntest complete\nreturn status -2\n", "adverb: "},
		{"ucmatose -b 192.0.2.1", 255, "cmatose: starting server\ntest complete\nreturn status -1\n", "cmatose: bind address failed: No such device\nadverb: "},
		{"ucmatose -s 127.0.0.1 -S -5", 1, "-", "adverb: read --size=-5: that is too small: "},
		{"mckey -C -1", 1, "-", "adverb: read --messages=-1: that is too small: "},
		{"udaddy -p udp", 1, "-", "adverb: read --port-space-number=udp: that is no number: "},
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
	} {
		code, stdout, stderr := tool.Run(t.Context(), strings.Fields(tt.line)...)
		if tt.stdout == "-" {
			tt.stdout = "usage: " + strings.Fields(tt.line)[0] + "\n\t"
		}
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || !strings.HasPrefix(stderr, tt.stderr) ||
			tt.stdout == "" && stdout != "" || tt.stderr == "" && stderr != "" {
			t.Errorf("%s: got status %d, stdout:\n%sstderr:\n%swant status %d, stdout %q…, stderr %q…", tt.line, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}

// Under a classic name the usage is that of the C program. The tool's own help has ours.
func TestCMToolUsage(t *testing.T) {
	_, stdout, _ := tool.Run(t.Context(), "/bin/ucmatose", "-?")
	tooltest.DiffLines(t, stdout, "usage: /bin/ucmatose\n"+cmatoseUsage)
	_, stdout, _ = tool.Run(t.Context(), "adverb", "cmatose", "--help")
	for _, s := range []string{"Usage:\n  adverb cmatose ", "-s, --server=<host>", "--ib-dev=<dev>"} {
		if !strings.Contains(stdout, s) {
			t.Errorf("got\n%swant %q in it", stdout, s)
		}
	}
}
