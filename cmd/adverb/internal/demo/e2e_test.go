package demo

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rwdemo"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/link"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// The output of the programs of "RDMA read and write with IB verbs", with N for port and pid.
const serverLines = `listening on port N.
received connection request.
send completed successfully.
received MSG_MR. OPERATING remote memory...
send completed successfully.
send completed successfully.
remote buffer: message from active/client side with pid N
peer disconnected.
`

const clientLines = `address resolved.
route resolved.
send completed successfully.
received MSG_MR. OPERATING remote memory...
send completed successfully.
send completed successfully.
remote buffer: message from passive/server side with pid N
disconnected.
`

var numbers = regexp.MustCompile(`\b(port|pid) \d+|(127\.0\.\d+\.1) \d+`)

func withoutNumbers(s string) string { return numbers.ReplaceAllString(s, "$1$2 N") }

func linesOf(lines string, mode rwdemo.Mode) string {
	return strings.ReplaceAll(lines, "OPERATING", map[rwdemo.Mode]string{
		rwdemo.Write: "writing message to", rwdemo.Read: "reading message from",
	}[mode])
}

func TestDemoQuiet(t *testing.T) {
	code, stdout, stderr := tool.Run(t.Context(), "adverb", "demo", "-q")
	if code != 0 || stderr != "" {
		t.Fatalf("got status %d, stderr %s, want status 0 and no stderr", code, stderr)
	}
	want := ""
	for _, mode := range []rwdemo.Mode{rwdemo.Write, rwdemo.Read} {
		want += "$ rdma-server " + string(mode) + "\n" + linesOf(serverLines, mode) +
			"$ rdma-client " + string(mode) + " ADDR N\n" + linesOf(clientLines, mode)
	}
	got := regexp.MustCompile(`127\.0\.\d+\.1 N`).ReplaceAllString(withoutNumbers(stdout), "ADDR N")
	tooltest.DiffLines(t, got, want)
}

// The long form has the same lines of each program on the left. On the right it has the events underneath, causes
// before effects.
func TestDemoExplains(t *testing.T) {
	for _, mode := range []rwdemo.Mode{rwdemo.Write, rwdemo.Read} {
		code, stdout, stderr := tool.Run(t.Context(), "adverb", "demo", string(mode))
		if code != 0 || stderr != "" {
			t.Fatalf("%s: got status %d, stderr %s, want status 0 and no stderr", mode, code, stderr)
		}
		var said [2]string
		for _, line := range strings.Split(stdout, "\n") {
			left, _, _ := strings.Cut(line, "|")
			for who := range said {
				text, ok := strings.CutPrefix(left, role(who).String())
				text = strings.TrimSpace(text)
				if ok && text != "" && !strings.HasPrefix(text, "--> ") && !strings.HasPrefix(text, "$ ") {
					said[who] += text + "\n"
				}
			}
		}
		tooltest.DiffLines(t, withoutNumbers(said[roleServer]), linesOf(serverLines, mode))
		tooltest.DiffLines(t, withoutNumbers(said[roleClient]), linesOf(clientLines, mode))

		inOrder := []string{"register 1024 bytes", "RESET -> INIT", "INIT -> RTR", "RTR -> RTS", "post SEND", "SEND_ONLY",
			"ACKNOWLEDGE", "WC_RECV, wr_id 1, 56 bytes: MSG_MR {addr 0x"}
		if mode == rwdemo.Write {
			inOrder = append(inOrder, "post RDMA_WRITE", "RDMA_WRITE_ONLY", "WC_SUCCESS, WC_RDMA_WRITE")
		} else {
			inOrder = append(inOrder, "post RDMA_READ", "RDMA_READ_REQUEST", "RDMA_READ_RESPONSE_ONLY", "WC_SUCCESS, WC_RDMA_READ")
		}
		inOrder = append(inOrder, "WC_RECV, wr_id 2, 56 bytes: MSG_DONE", "destroy the QP", "packets in")
		rest := stdout
		for _, s := range inOrder {
			_, after, ok := strings.Cut(rest, s)
			if !ok {
				t.Fatalf("%s: got\n%swant %q behind the texts before it", mode, stdout, s)
			}
			rest = after
		}
		if strings.Contains(stdout, "cannot be decoded") {
			t.Errorf("%s: got\n%swant all packets decoded", mode, stdout)
		}
	}
}

// The capture holds every packet that was shown, once. The numbers at the ends of the two parts count them.
func TestDemoPCAP(t *testing.T) {
	name := filepath.Join(t.TempDir(), "demo.pcapng")
	code, stdout, stderr := tool.Run(t.Context(), "adverb", "demo", "--pcap", name)
	if code != 0 || stderr != "" {
		t.Fatalf("got status %d, stderr %s, want status 0 and no stderr", code, stderr)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		data, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		ifi, err := r.Interface(ci.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		udp, ok := gopacket.NewPacket(data, ifi.LinkType, gopacket.Default).TransportLayer().(*layers.UDP)
		if !ok || udp.DstPort != link.Port {
			t.Fatalf("packet %d: got %x, want a RoCEv2 datagram", n, data)
		}
		var p wire.Packet
		if err := p.Decode(udp.Payload); err != nil {
			t.Errorf("packet %d: %v", n, err)
		}
	}
	shown, counted := strings.Count(stdout, "--> "), 0
	for _, m := range regexp.MustCompile(`(\d+) packets in `).FindAllStringSubmatch(stdout, -1) {
		c, _ := strconv.Atoi(m[1])
		counted += c
	}
	if n != shown || counted != shown || n == 0 {
		t.Errorf("got %d packets in the file and %d counted, want the %d that were shown", n, counted, shown)
	}
}

func TestDemoPCAPNotWritable(t *testing.T) {
	code, _, stderr := tool.Run(t.Context(), "adverb", "demo", "--pcap", filepath.Join(t.TempDir(), "no", "file"))
	if code != 1 || !strings.HasPrefix(stderr, "adverb: demo: open ") {
		t.Errorf("got status %d, stderr %s, want status 1 and why the file cannot be opened", code, stderr)
	}
}

// Ctrl-C ends the demonstration as it ends every other command.
func TestDemoInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := tool.Run(ctx, "adverb", "demo")
	if want := "adverb: interrupted\n"; code != cli.StatusInterrupted || stderr != want {
		t.Errorf("got status %d, stderr %q, want %d, %q", code, stderr, cli.StatusInterrupted, want)
	}
}
