package rdmademo

import (
	"strings"
	"testing"
)

func TestRDMADemoFlags(t *testing.T) {
	const modes = "  mode = \"read\", \"write\"\n"
	for _, tt := range []struct {
		argv   string
		stderr string // a prefix
	}{
		{"rdma-server", "usage: rdma-server <mode>\n" + modes},
		{"./rdma-server sing", "usage: ./rdma-server <mode>\n" + modes},
		{"rdma-server -x", "usage: rdma-server <mode>\n" + modes},
		{"rdma-server read 1 2", "usage: rdma-server <mode>\n" + modes},
		{"rdma-server read 65536", "usage: rdma-server <mode> [<port>]\nadverb: port \"65536\": a number up to 65535"},
		{"rdma-client", "usage: rdma-client <mode> <server-address> <server-port>\n" + modes},
		{"rdma-client write 127.0.0.1", "usage: rdma-client <mode> <server-address> <server-port>\n" + modes},
		{"rdma-client Write 127.0.0.1 1", "usage: rdma-client <mode> <server-address> <server-port>\n" + modes},
		{"rdma-client write 127.0.0.1 no-such-service", "error: getaddrinfo(argv[2], argv[3], NULL, &addr) failed (returned non-zero).\nadverb: "},
		{"rdma-client write --ib-dev nope 127.0.0.1 1", "IB device nope not found\n"},
		{"adverb rdma-server --nope", "adverb rdma-server: unrecognized option '--nope'\nusage: adverb rdma-server <mode>\n"},
	} {
		if code, stdout, stderr := tool.Run(t.Context(), strings.Fields(tt.argv)...); code != 1 || stdout != "" || !strings.HasPrefix(stderr, tt.stderr) {
			t.Errorf("%s: got status %d\nstdout: %s\nstderr: %s\nwant status 1, no stdout, stderr %q…", tt.argv, code, stdout, stderr, tt.stderr)
		}
	}
	// The help has all that a learner needs to understand the lines.
	for _, prog := range []string{"rdma-server", "rdma-client"} {
		_, stdout, _ := tool.Run(t.Context(), prog, "--help")
		for _, word := range []string{"send_state", "recv_state", "MSG_MR", "MSG_DONE", "R_Key", "receive must be posted"} {
			if !strings.Contains(stdout, word) {
				t.Errorf("%s --help: got\n%swant %s in it", prog, stdout, word)
			}
		}
	}
}
