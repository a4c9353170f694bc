package pingpong

import (
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// Two processes use one device, one GID and so one UDP port.
func TestPingpongProcesses(t *testing.T) {
	tooltest.Exclusive(t, "soft_lo")
	for _, tt := range []struct {
		name, prog string
		flags      string
		host       string
		sep        string
		qps        int
		expected
	}{
		{"rc defaults", "ibv_rc_pingpong", "", "localhost", ",", 1, expected{"", 8192000, 1000}},
		{"rc GID 0", "ibv_rc_pingpong", "-g 0", "localhost", ",", 1, expected{"", 8192000, 1000}},
		{"rc IPv4", "ibv_rc_pingpong", "-d soft_lo -g GID -e", "127.0.0.1", ",", 1, expected{"", 8192000, 1000}},
		{"rc IPv6", "ibv_rc_pingpong", "-d soft_lo -g GID", "::1", ",", 1, expected{"", 8192000, 1000}},
		// Nobody repeats lost packets here. So no other test has processes on the address.
		{"uc", "ibv_uc_pingpong", "-d soft_lo@127.0.88.3", "127.0.0.1", ",", 1, expected{"", 8192000, 1000}},
		{"ud", "ibv_ud_pingpong", "-d soft_lo@127.0.88.3", "127.0.0.1", ":", 1, expected{"", 2048000, 1000}},
		{"srq", "ibv_srq_pingpong", "-d soft_lo -q 4", "127.0.0.1", ",", 4, expected{"", 8192000, 1000}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			index := ""
			if strings.Contains(tt.flags, "GID") {
				index = tooltest.LoopbackGID(t, tt.host)
			}
			ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
			defer cancel()
			argv := append([]string{tt.prog, "-p", tooltest.FreePort(t)}, strings.Fields(strings.ReplaceAll(tt.flags, "GID", index))...)
			want := tt.expected
			if testing.Short() { // each round takes two turns of a processor, which others may want too
				argv = append(argv, "-n", "100")
				want.bytes, want.iters = want.bytes/10, want.iters/10
			}
			s := tooltest.StartProcess(ctx, t, argv...)
			c := tooltest.StartProcess(ctx, t, append(argv, tt.host)...)
			server, client := <-s.Done, <-c.Done
			checkRun(t, server, client, tt.sep, tt.qps, want)
			gid := func(line string) string { _, g, _ := strings.Cut(line, " GID "); return g }
			lines := endLines(server.Stdout, tt.qps)
			if a, b := gid(lines[0]), gid(lines[tt.qps]); a != b {
				t.Errorf("got ends with the GIDs %s and %s, want the same GID", a, b)
			}
		})
	}
}
