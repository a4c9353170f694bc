package explain

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/meaning"
)

func TestCommand(t *testing.T) {
	tool := tooltest.New(Command)
	for _, tt := range []struct {
		args   []string
		code   int
		stdout []string // in this order
		stderr string
	}{
		{nil, 0, []string{"status       24  status 12", "vendor ", "Or paste a line"}, ""},
		{[]string{"Got completion with error 12, opcode 0, len 0, vendor err 129"}, 0,
			[]string{"status 12: WC_RETRY_EXC_ERR", "Usual causes, the likeliest first:\n    1. ", "Check:\n    - ", "adverb shows it:", "See also, behind adverb explain: timeout 14", "Besides:\n  vendor 0x81: "}, ""},
		{[]string{"Got", "completion", "with", "status=5", "vendor", "err", "249"}, 0, []string{"status 5: ", "This only follows another failure", "vendor 0xf9 (follows another failure): "}, ""},
		{[]string{"rdma_resolve_addr", "errno", "-19"}, 0, []string{"errno 19 of rdma_resolve_addr: ENODEV (No such device)"}, ""},
		{[]string{"Failed to modify QP to RTR"}, 0, []string{"ibv_modify_qp failed, and no errno is given. The likeliest:\n\nerrno 110 of ibv_modify_qp to RTR: ETIMEDOUT", "Besides:\n  errno 22 of ibv_modify_qp to RTR"}, ""},
		{[]string{"No IB devices found"}, 0, []string{"message: No IB devices found\n"}, ""},
		{[]string{"CM-REJ-26"}, 0, []string{"reject 26: IB_CM_REJ_INVALID_MTU"}, ""},
		{[]string{"CM-REJ-8"}, 0, []string{"finding CM-REJ-8 of adverb diagnose"}, ""},
		{[]string{"Connect rejected: status 28 (consumer defined) nvme status 6 (resource not found)."}, 0, []string{"reject 28: ", "Besides:\n  nvme 6: no resources: "}, ""},
		{[]string{"--", "-110"}, 0, []string{"errno 110: ETIMEDOUT", "Besides:", "errno 110 of ibv_modify_qp to RTR"}, ""},
		{[]string{"00000000 00008813 08006214 0000f6d2"}, 0, []string{"status 10: ", "Here: the dump is an error CQE of a send work request: syndrome 0x13, vendor_err 0x88, QP\n  0x006214, WQE counter 0, ", "opcode RDMA_WRITE."}, ""},
		{[]string{"BTH"}, 0, []string{"header: BTH", "+-----", "destination QP"}, ""},
		{[]string{"mtu"}, 0, []string{"Path MTU codes", "  mtu 1: MTU_256: a packet has 256 bytes"}, ""},
		{[]string{"timeout"}, 0, []string{"setting: timeout", "ACK timeout codes", "The time is 4.096 µs × 2^code.", "     6  262.1µs       14  67.11ms       22  17.18s        30  1h13m18s\n"}, ""},
		{[]string{"MTU"}, 0, []string{"word: MTU (path MTU)\n  The most bytes of payload in a packet: 256 to 4096.\n", "adverb shows it:\n    - adverb demo mtu"}, ""},
		{[]string{"Vendor"}, 0, []string{"Vendor codes of failed completions", "  vendor 0x81: "}, ""},
		{[]string{"loss-nak"}, 0, []string{"finding LOSS-NAK of adverb diagnose (warning, likely or proven)\n  Packets were lost, and the receiver asked for them.\n  Look at the network.\n\n  Do:\n    - RoCE on cards", "It would be wrong if:\n    - packets overtook each other"}, ""},
		{[]string{"ECN-OFF"}, 0, []string{"finding ECN-OFF of adverb diagnose (hint)\n"}, ""},
		{[]string{"RNR"}, 0, []string{"status 13: "}, ""},
		{[]string{"lkey"}, 0, []string{"word: lkey\n  Local key: names a region in one's own WQEs.\n"}, ""},
		{[]string{"RTS"}, 0, []string{"qp-state 3: QPS_RTS (RTS)\n  Ready to send, and to receive.\n"}, ""},
		{[]string{"retry_ecx_err"}, 1, nil, "adverb: explain \"retry_ecx_err\": nothing is known about it; near are retry_exc_err; \"adverb explain\" lists the kinds\n"},
		{[]string{strings.Repeat("x ", 100)}, 1, nil, "…\": nothing is known about it; "},
		{[]string{"--unknown"}, 2, []string{"Usage: adverb explain [--json] [<word>... | -]"}, "unrecognized option '--unknown'"},
		{[]string{""}, 2, nil, "the text is empty"},
		{[]string{"12", "--help"}, 0, []string{"Usage: adverb explain"}, ""},
	} {
		r := tool.Result(t.Context(), append([]string{"adverb", "explain"}, tt.args...)...)
		rest, ok := r.Stdout, r.Code == tt.code && strings.Contains(r.Stderr, tt.stderr) && (tt.stderr != "" || r.Stderr == "")
		for _, want := range tt.stdout {
			_, after, found := strings.Cut(rest, want)
			ok, rest = ok && found, after
		}
		if !ok {
			t.Errorf("%q: status %d, stderr %q, stdout\n%s\nwant status %d, %q, and in order %q", tt.args, r.Code, r.Stderr, r.Stdout, tt.code, tt.stderr, tt.stdout)
		}
		for _, line := range strings.Split(r.Stdout, "\n") {
			if n := len([]rune(line)); len(tt.args) > 0 && strings.HasPrefix(line, "    ") && n > width {
				t.Errorf("%q: got a line of %d characters, want %d at most: %s", tt.args, n, width, line)
			}
		}
	}
}

// Each finding of adverb diagnose is explained, or its word is.
func TestFindings(t *testing.T) {
	tool := tooltest.New(Command)
	for _, f := range diagnose.Rules() {
		r := tool.Result(t.Context(), "adverb", "explain", "--json", f.ID)
		var got struct {
			Found   []meaning.Finding `json:"found"`
			Finding struct {
				ID    string `json:"id"`
				Title string `json:"title"`
			} `json:"finding"`
		}
		err := json.Unmarshal([]byte(r.Stdout), &got)
		if told := got.Finding.ID == f.ID && got.Finding.Title == f.Title; err != nil || r.Code != 0 || told == (len(got.Found) > 0) {
			t.Errorf("%s: status %d, %v, got %+v, want either the finding or a word", f.ID, r.Code, err, got)
		}
	}
}

// explainInput explains the standard input.
func explainInput(t *testing.T, input io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	tool := &cli.Tool{Name: "adverb", Commands: []*cli.Command{Command}}
	code = tool.Run(t.Context(), append([]string{"adverb", "explain", "-"}, args...), input, &out, &errs)
	return code, out.String(), errs.String()
}

// A log comes by the standard input, and each answer has its line.
func TestStandardInput(t *testing.T) {
	long := strings.Repeat("[    1.000000] usb 1-1: new high-speed device\n", 1500) // 67 KB
	for _, tt := range []struct {
		input  string
		code   int
		stdout []string // in this order
		stderr string
	}{
		{"mlx5: host: got completion with error:\nFailed status 10: wr_id 0 syndrom 0x88\n", 0, []string{"status 10: WC_REM_ACCESS_ERR", "\n  In line 2: Failed status 10: wr_id 0 syndrom 0x88\n  The peer"}, ""},
		{"status 12\nREJ reason 28\n", 0, []string{"status 12: ", "  In line 1: status 12\n", "\nreject 28: ", "  In line 2: REJ reason 28\n"}, ""},
		{"status 12 \x1b[31m\nstatus 12 of a WC\n", 0, []string{"  In line 1, and 1 more: status 12  [31m\n"}, ""},
		{long + "Got completion with error 12, opcode 0, len 0, vendor err 129\n", 0, []string{"status 12: ", "  In line 1501: Got completion", "Besides:\n  vendor 0x81: ", "\n    line 1501: Got completion"}, ""},
		{"wc status=9 " + strings.Repeat("x", 2*meaning.MaxLine) + " wc status=12\nwc status=10", 0, []string{"status 9: ", "status 10: ", "In line 2: wc status=10"}, "explain: 1 of 2 lines are longer than 16384 bytes: their ends were not looked at"},
		{"  rkey \n\n", 0, []string{"word: rkey\n  Remote key"}, ""},
		{"mtu\n", 0, []string{"Path MTU codes"}, ""},
		{"nothing\nat all\n", 1, nil, "explain \"2 lines of the standard input\": nothing is known"},
		{" \n", 1, nil, "the standard input is empty"},
	} {
		code, stdout, stderr := explainInput(t, strings.NewReader(tt.input))
		rest, ok := stdout, code == tt.code && strings.Contains(stderr, tt.stderr) && (tt.stderr == "") == (stderr == "")
		for _, want := range tt.stdout {
			_, after, found := strings.Cut(rest, want)
			ok, rest = ok && found, after
		}
		if !ok {
			t.Errorf("%.60q: status %d, stderr %q, stdout\n%s\nwant status %d, %q, and in order %q", tt.input, code, stderr, stdout, tt.code, tt.stderr, tt.stdout)
		}
	}
	if code, _, stderr := explainInput(t, iotest.ErrReader(io.ErrUnexpectedEOF)); code != cli.ExitError || !strings.Contains(stderr, "read the standard input: unexpected EOF") {
		t.Errorf("an input that cannot be read: status %d, %q, want %d and the error", code, stderr, cli.ExitError)
	}
	var a answer
	_, stdout, _ := explainInput(t, strings.NewReader("fine\nwc status=9\nwc status=9\n"), "--json")
	if err := json.Unmarshal([]byte(stdout), &a); err != nil || len(a.Found) != 1 || a.Found[0].Line != 2 || a.Found[0].Times != 2 || a.Found[0].Text != "wc status=9" {
		t.Errorf("%v: %s, want status 9 of line 2, named twice", err, stdout)
	}
}

func TestJSON(t *testing.T) {
	tool := tooltest.New(Command)
	var a answer
	r := tool.Result(t.Context(), "adverb", "explain", "synd 0x15 vend 0x81", "--json")
	if err := json.Unmarshal([]byte(r.Stdout), &a); err != nil || r.Code != 0 || len(a.Found) != 2 || a.Found[0].Number != 12 || a.Found[0].By != "synd 0x15" || a.Found[1].Kind != meaning.KindVendor {
		t.Errorf("%v, status %d: %s, want status 12 by synd 0x15, and a vendor code", err, r.Code, r.Stdout)
	}
	a = answer{}
	r = tool.Result(t.Context(), "adverb", "explain", "--json", "retry_ecx_err")
	if err := json.Unmarshal([]byte(r.Stdout), &a); err != nil || r.Code != 1 || len(a.Found) != 0 || len(a.Nearest) != 1 {
		t.Errorf("%v, status %d: %s, want status 1, nothing, and a near word", err, r.Code, r.Stdout)
	}
	var kinds []count
	r = tool.Result(t.Context(), "adverb", "explain", "--json")
	if err := json.Unmarshal([]byte(r.Stdout), &kinds); err != nil || len(kinds) != len(meaning.Kinds) || kinds[0].Entries == 0 {
		t.Errorf("%v: %s, want all kinds with their entries", err, r.Stdout)
	}
	var entries []meaning.Entry
	r = tool.Result(t.Context(), "adverb", "explain", "--json", "mtu")
	if err := json.Unmarshal([]byte(r.Stdout), &entries); err != nil || len(entries) != 5 {
		t.Errorf("%v: %s, want five MTUs", err, r.Stdout)
	}
}

// Completion knows kinds and names.
func TestCompletion(t *testing.T) {
	tool := tooltest.New(Command)
	for typed, want := range map[string]string{"vend": "vendor\n", "wc_retry": "wc_retry_exc_err\n", "out_of_seq": "out_of_sequence\n"} {
		if r := tool.Result(t.Context(), "adverb", "__complete", "adverb", "explain", typed); !strings.Contains(r.Stdout, want) {
			t.Errorf("%s: got %q, want %q among them", typed, r.Stdout, want)
		}
	}
}
