package pingpong

import (
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/exchange"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestPingpongFlags(t *testing.T) {
	inv := func(line string) (*cli.Invocation, *strings.Builder, *strings.Builder) {
		return tooltest.Invocation(t, RC, line)
	}
	def := flags{port: 18515, ibPort: 1, size: 4096, mtu: verbs.MTU1024, numQP: 1, rxDepth: 500, iters: 1000, gidIndex: -1}
	for _, tt := range []struct {
		line string
		want func(*flags)
	}{
		{"", func(*flags) {}},
		{"host", func(f *flags) { f.host = "host" }},
		{"-p 0 -d soft_lo@127.0.0.2 -i 2 -s 0x10 -m 4096 -r 16 -n 5 -l 3 -g 1", func(f *flags) {
			f.port, f.device, f.ibPort, f.size, f.mtu, f.rxDepth, f.iters, f.sl, f.gidIndex =
				0, "soft_lo@127.0.0.2", 2, 16, verbs.MTU4096, 16, 5, 3, 1
		}},
		{"--port=1 --ib-dev=x --ib-port=2 --size=3 --mtu=256 --rx-depth=4 --iters=5 --sl=6 --gid-idx=7", func(f *flags) {
			f.port, f.device, f.ibPort, f.size, f.mtu, f.rxDepth, f.iters, f.sl, f.gidIndex = 1, "x", 2, 3, verbs.MTU256, 4, 5, 6, 7
		}},
		{"-eotcNUPO -s 0", func(f *flags) {}}, // refused below
		{"-etcN", func(f *flags) { f.events, f.ts, f.check, f.newSend = true, true, true, true }},
		{"-OP", func(f *flags) { f.odp, f.iodp, f.prefetch = true, true, true }},
		{"-j", func(f *flags) { f.dm = true }},
		{"-s 0", func(f *flags) { f.size = 0 }},
	} {
		i, _, stderr := inv(tt.line)
		got, code, ok := parse(i, &kindRC)
		if strings.Contains(tt.line, "U") {
			if ok || code != 1 || stderr.String() != "CoCo unprotected memory cannot be used with ODP\n" {
				t.Errorf("%q: got %v, status %d, stderr %q, want a refusal with status 1", tt.line, ok, code, stderr)
			}
			continue
		}
		want := def
		tt.want(&want)
		if !ok || got != want {
			t.Errorf("%q: got %+v, want %+v", tt.line, got, want)
		}
	}
	for line, text := range map[string]string{
		"a b":      "adverb: [\"a\" \"b\"]: one server alone can be named\n",
		"-p 65536": "adverb: read --port=65536: that is too large: give one from 0 to 65535\n",
		"-p -1":    "adverb: read --port=-1: that is too small: give one from 0 to 65535\n",
		"-i 0":     "adverb: read --ib-port=0: that is too small: give one from 1 to 255\n",
		"-m 1000":  "adverb: read --mtu=1000: that is no path MTU: give 256, 512, 1024, 2048 or 4096\n",
		"-s -1":    "adverb: read --size=-1: that is too small: give one from 0 to 4294967295\n",
		"-s junk":  "adverb: read --size=junk: that is no number: give one from 0 to 4294967295\n",
		"-r 0":     "adverb: read --rx-depth=0: that is too small: give one from 1 to 2147483647\n",
		"-n -1":    "adverb: read --iters=-1: that is too small: give one from 0 to 2147483647\n",
		"-l 16":    "adverb: read --sl=16: that is too large: give one from 0 to 15\n",
		"-g first": "adverb: read --gid-idx=first: that is no number: give one from -1 to 2147483647\n",
		"-x":       "ibv_rc_pingpong: invalid option -- 'x'\n",
		"-j -o":    "DM memory region can't be on demand\n",
		"-U -j":    "CoCo unprotected memory cannot be used with device memory\n",
		"-P":       "prefetch is valid only with on-demand memory region\n",
	} {
		i, stdout, stderr := inv(line)
		_, code, ok := parse(i, &kindRC)
		if ok || code != 1 || stderr.String() != text {
			t.Errorf("%q: %v, status %d, stderr %q, want %q", line, ok, code, stderr, text)
		}
		conflict := text != "" && line != "-x" && !strings.HasPrefix(text, "adverb: ")
		if usage := strings.HasPrefix(stdout.String(), "Usage:\n"); usage == conflict {
			t.Errorf("%q: got usage printed: %v, want %v", line, usage, !conflict)
		}
	}
}

// The help of -s says the default that holds; of ud_pingpong the C program's help has another.
func TestPingpongSizeHelp(t *testing.T) {
	for cmd, want := range map[*cli.Command]string{
		RC: "bytes in a message (default 4096)", UC: "bytes in a message (default 4096)", SRQ: "bytes in a message (default 4096)",
		UD: "bytes in a message (default 1024; the C program's help says 2048)",
	} {
		var help string
		for _, f := range cmd.Flags {
			if f.Short == 's' {
				help = f.Help
			}
		}
		if help != want {
			t.Errorf("%s: the help of -s is %q, want %q", cmd.Name, help, want)
		}
	}
}

// Where the other programs read flags differently.
func TestPingpongFlagsOfKinds(t *testing.T) {
	for _, tt := range []struct {
		cmd  *cli.Command
		kind *kind
		line string
		want flags
	}{
		{UC, &kindUC, "-m 512 -ec", flags{size: 4096, mtu: verbs.MTU512, numQP: 1, rxDepth: 500, events: true, check: true}},
		{UD, &kindUD, "-r 3", flags{size: 1024, mtu: verbs.MTU1024, numQP: 1, rxDepth: 3}},
		{SRQ, &kindSRQ, "-o", flags{size: 4096, mtu: verbs.MTU1024, numQP: 16, rxDepth: 500, odp: true}},
		{SRQ, &kindSRQ, "-q 255 --rx-depth 255", flags{size: 4096, mtu: verbs.MTU1024, numQP: 255, rxDepth: 255}},
	} {
		inv, _, stderr := tooltest.Invocation(t, tt.cmd, tt.line)
		got, _, ok := parse(inv, tt.kind)
		tt.want.port, tt.want.ibPort, tt.want.iters, tt.want.gidIndex = 18515, 1, 1000, -1
		if !ok || got != tt.want {
			t.Errorf("%s %s: got %+v, want %+v, stderr %s", tt.cmd.Classic[0], tt.line, got, tt.want, stderr)
		}
	}
	for _, tt := range []struct {
		cmd    *cli.Command
		kind   *kind
		line   string
		stderr string
	}{
		{UC, &kindUC, "-o", "ibv_uc_pingpong: invalid option -- 'o'\n"},
		{UD, &kindUD, "-m 1024", "ibv_ud_pingpong: invalid option -- 'm'\n"},
		{SRQ, &kindSRQ, "-s 0", "adverb: read --size=0: that is too small: give one from 1 to 4294967295\n"},
		{SRQ, &kindSRQ, "-q 0", "adverb: read --num-qp=0: that is too small: give one from 1 to 2147483647\n"},
		{SRQ, &kindSRQ, "-r 15", "rx_depth 15 is too small for 16 QPs -- must have at least one receive per QP.\n"},
		{SRQ, &kindSRQ, "-q 256", "num_qp 256 must be less than 255\n"},
	} {
		inv, _, stderr := tooltest.Invocation(t, tt.cmd, tt.line)
		if _, code, ok := parse(inv, tt.kind); ok || code != 1 || stderr.String() != tt.stderr {
			t.Errorf("%s %s: %v, status %d, stderr %q, want %q", tt.cmd.Classic[0], tt.line, ok, code, stderr, tt.stderr)
		}
	}
}

// rdma-core's programs printed these lines for the same figures.
func TestPingpongReport(t *testing.T) {
	gid, err := verbs.ParseGID("10.98.0.3")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	e := exchange.End{QPN: 0x17, PSN: 0x05d592, GID: gid}
	printEnd(&b, kindRC.localFormat, e)
	printEnd(&b, kindUD.localFormat, e)
	printEnd(&b, remoteAddressFormat, exchange.End{LID: 0xab})
	printResult(&b, 4095, 3, 24169*time.Microsecond)
	printResult(&b, 4096, 0, 5*time.Microsecond)
	printResult(&b, 4096, 0, 0)
	want := "  local address:  LID 0x0000, QPN 0x000017, PSN 0x05d592, GID ::ffff:10.98.0.3\n" +
		"  local address:  LID 0x0000, QPN 0x000017, PSN 0x05d592: GID ::ffff:10.98.0.3\n" +
		"  remote address: LID 0x00ab, QPN 0x000000, PSN 0x000000, GID ::\n" +
		"24570 bytes in 0.02 seconds = 8.13 Mbit/sec\n" +
		"3 iters in 0.02 seconds = 8056.33 usec/iter\n" +
		"0 bytes in 0.00 seconds = 0.00 Mbit/sec\n" +
		"0 iters in 0.00 seconds = inf usec/iter\n" +
		"0 bytes in 0.00 seconds = -nan Mbit/sec\n" +
		"0 iters in 0.00 seconds = -nan usec/iter\n"
	tooltest.DiffLines(t, b.String(), want)
}
