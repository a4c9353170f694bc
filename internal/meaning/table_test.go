package meaning_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// The words that an entry gives for itself find it first.
func TestWords(t *testing.T) {
	for _, e := range meaning.Table() {
		found := meaning.Explain(e.Words())
		if len(found) == 0 || found[0].Title() != e.Title() {
			t.Errorf("%q: found %q, want %q first", e.Words(), titles(found), e.Title())
		}
		for _, name := range e.Also {
			if len(meaning.Explain(name)) == 0 && e.Kind != meaning.KindReject && e.Kind != meaning.KindRNR {
				t.Errorf("%s: its other name %q finds nothing", e.Title(), name)
			}
		}
	}
}

// Entries refer to entries, and to counters, that there are.
func TestReferences(t *testing.T) {
	var counters []string
	for _, d := range verbs.CounterDescs() {
		counters = append(counters, d.Name)
	}
	stat := regexp.MustCompile(`adverb stat -v: (.*)`)
	counter := regexp.MustCompile(`\b[a-z]+(?:_[a-z]+)+\b`)
	for _, e := range meaning.Table() {
		for _, words := range e.See {
			found := meaning.Explain(words)
			if len(found) == 0 {
				t.Errorf("%s refers to %q, which finds nothing", e.Title(), words)
			} else if found[0].Title() == e.Title() {
				t.Errorf("%s refers to itself by %q", e.Title(), words)
			} else if got := found[0].Words(); got != words && found[0].Name != words {
				t.Errorf("%s refers to %q, which finds %q first", e.Title(), words, got)
			}
		}
		for _, tool := range e.Tools {
			if m := stat.FindStringSubmatch(tool); m != nil {
				for _, name := range counter.FindAllString(m[1], -1) {
					if !slices.Contains(counters, name) {
						t.Errorf("%s: adverb stat has no counter %s", e.Title(), name)
					}
				}
			}
		}
	}
}

// Names and numbers are those of the packages that define them, and all of them are there.
func TestComplete(t *testing.T) {
	name := func(kind meaning.Kind, n int, want string) {
		t.Helper()
		if e, ok := meaning.Lookup(kind, n); !ok || e.Name != want || e.Brief == "" {
			t.Errorf("%s %d: got %v, %+v, want the name %s, and a meaning", kind, n, ok, e, want)
		}
	}
	for s := range verbs.WCTMRndvIncomplete + 1 {
		name(meaning.KindStatus, int(s), s.String())
	}
	for e := range verbs.EventWQFatal + 1 {
		name(meaning.KindEvent, int(e), e.String())
	}
	for e := range rdmacm.EventTimewaitExit + 1 {
		name(meaning.KindCMEvent, int(e), e.String())
	}
	for s := range verbs.QPStateErr + 1 {
		name(meaning.KindQPState, int(s), s.String())
	}
	for s := range wire.SIDRUnsupportedVersion + 1 {
		name(meaning.KindSIDR, int(s), s.String())
	}
	for n := range 256 {
		if o := wire.Opcode(n); o.Valid() {
			name(meaning.KindOpcode, n, o.String())
		}
		known := !strings.Contains(wire.RejReason(n).String(), "unknown reason")
		e, ok := meaning.Lookup(meaning.KindReject, n)
		if ok != known || ok && !slices.Contains(e.Also, wire.RejReason(n).String()) {
			t.Errorf("reject %d: got %v, %+v, want %v and the text %q", n, ok, e, known, wire.RejReason(n).String())
		}
		if got, want := meaning.RejectBrief(uint16(n)) != "", known; got != want {
			t.Errorf("RejectBrief(%d): got a text: %v, want %v", n, got, want)
		}
	}
	for n := range 32 {
		if _, ok := meaning.Lookup(meaning.KindRNR, n); !ok {
			t.Errorf("rnr-timer %d is missing", n)
		}
	}
	if e, _ := meaning.Lookup(meaning.KindTimeout, 14); !strings.Contains(e.Brief, "67.11ms") {
		t.Errorf("timeout 14: got %q, want 67.11ms", e.Brief)
	}
}

// Texts have the form in which the command and the document print them.
func TestForm(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range meaning.Table() {
		title := e.Title()
		if seen[title] {
			t.Errorf("%s is there twice", title)
		}
		seen[title] = true
		if e.Brief == "" || strings.HasSuffix(e.Brief, ".") {
			t.Errorf("%s: got the meaning %q, want a line without a full stop", title, e.Brief)
		}
		if e.More != "" && !strings.HasSuffix(e.More, ".") {
			t.Errorf("%s: got %q, want whole sentences", title, e.More)
		}
		nameless := e.Kind == meaning.KindVendor || e.Kind == meaning.KindSyndrome
		if nameless != (e.Name == "") || e.Kind == meaning.KindErrno && e.Also[0] == "" {
			t.Errorf("%s: got the name %q and others %q", title, e.Name, e.Also)
		}
		for _, s := range slices.Concat([]string{e.Brief, e.More}, e.Causes, e.Checks, e.Tools) {
			if s != strings.TrimSpace(s) || strings.ContainsAny(s, "\n\t") {
				t.Errorf("%s: got %q, want one line without blanks around it", title, s)
			}
		}
		for _, line := range strings.Split(e.Drawing, "\n") {
			if len(line) > 96 {
				t.Errorf("%s: got a drawing of %d columns, want 96 at most", title, len(line))
			}
		}
	}
}

func FuzzExplain(f *testing.F) {
	for _, tt := range lines {
		f.Add(tt.line)
	}
	f.Fuzz(func(t *testing.T, s string) {
		found := meaning.Explain(s)
		if n := meaning.Leading(found); n > len(found) || n == 0 && len(found) > 0 {
			t.Errorf("%q: %d of %d findings lead", s, n, len(found))
		}
	})
}

// A finding that only follows a failure comes behind the failure, wherever it stands in a log.
func TestFollowersComeLast(t *testing.T) {
	const flushed, failed = "Got completion with status=5 vendor err 249\n", "Got completion with status=12 vendor err 129\n"
	for _, log := range []string{flushed + failed, failed + flushed} {
		found := meaning.Explain(log)
		if len(found) < 2 || found[0].Number != 12 || found[1].Number != 5 || !found[1].Follows {
			t.Errorf("%q: found %q, want status 12 before status 5", log, titles(found))
		}
	}
}

// Each line of a text is about something of its own.
func TestLines(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []string // titles up to their names, all of them, with the lines
	}{
		{"status 12\nREJ reason 28", []string{"status 12 in 1", "reject 28 in 2"}},
		{"NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129\nnvme nvme0: Connect rejected: status 8 (invalid service ID).",
			[]string{"status 12 in 1", "reject 8 in 2", "vendor 0x81 in 1"}},
		{"Couldn't allocate MR\nERRNO: Bad address.", []string{"errno 14 of ibv_reg_mr in 2"}},
		{"Couldn't allocate MR\n\n 64 bytes from 10.0.0.1", []string{"errno 12 of ibv_reg_mr in 1", "errno 14 of ibv_reg_mr in 1", "errno 1 of ibv_reg_mr in 1",
			"errno 22 of ibv_reg_mr in 1", "errno 95 of ibv_reg_mr in 1", "errno 13 of ibv_reg_mr in 1", "errno 34 of ibv_reg_mr in 1"}},
		{"the transport retry\ncounter exceeded", []string{"status 12 in 2"}},
		{"poll: fatal\nerror in main", nil},
		{"nothing here\nerrno 110\nerrno 110", []string{"errno 110 in 2"}},
		{"wc status=9\nerrno 110", []string{"status 9 in 1"}},
		{"RC\nwc status=9", []string{"status 9 in 2"}}, // RC is a word only where it is all
		{"12\n13", nil}, {"timeout\nHello\nconnect with care", nil},
		{"a: 00000000 00000000 00000000 00000000\na: 00000000 00000000 00000000 00000000\na: 00000000 00000000 00000000 00000000\na: 00000000 00008813 08006214 0000f6d2\n" +
			"a: 00000000 00000000 00000000 00000000\na: 00000000 00000000 00000000 00000000\na: 00000000 00000000 00000000 00000000\na: 00000000 00008914 08006214 0000f6d2\nend",
			[]string{"status 10 in 4", "status 11 in 8", "vendor 0x88 in 4", "vendor 0x89 in 8"}},
	} {
		var got []string
		for _, f := range meaning.Explain(tt.text) {
			title, _, _ := strings.Cut(f.Title(), ":")
			got = append(got, fmt.Sprintf("%s in %d", title, f.Line))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: found %q, want %q", tt.text, got, tt.want)
		}
	}
}

// A log of any length is looked at to its end, and only what it is about is kept.
func TestLongLog(t *testing.T) {
	var l meaning.Log
	for range 2000 {
		l.Add("[    1.000000] usb 1-1: new high-speed device number 2")
	}
	l.Add("wc status=9" + strings.Repeat(" ", meaning.MaxLine))
	found := l.Findings()
	if n, cut := l.Lines(); len(found) != 1 || found[0].Number != 9 || found[0].Line != 2001 || n != 2001 || cut != 1 {
		t.Errorf("found %q of %d lines, %d cut, want status 9 of the last of 2001, which is cut", titles(found), n, cut)
	}
}

// Nothing is made of texts that are about something else.
func TestNothing(t *testing.T) {
	for _, s := range []string{"", "   ", "hello world", "99999", "0x1234", "everything is fine", "status 200", "no such thing 77", "LNetError: 12:(o2iblnd_cb.c:3352:f()) Timed out tx", "phys_state: POLLING (2)", "pg_num 5 status healthy",
		"main.c:1:10: fatal error: stdio.h: No such file", "LNetError: o2iblnd fatal error", "HTTP bad response from server", "panic: general error", "code 400: invalid request",
		"Fatal error in main: 190", "journal flush error on sda", "the operation aborted", "remote access by VPN is off", "cache: flush error 50",
		"zmore.in: On failure, exit with status 1 instead of 2", "nginx.service: Main process exited, code=exited, status=1/FAILURE", "the server answered with status 5 today", "exit status 1", "HTTP status 12"} {
		if found := meaning.Explain(s); len(found) > 0 {
			t.Errorf("%q: found %q, want nothing", s, titles(found))
		}
	}
}

func TestWrap(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "> \n"}, {"one two three", "> one two\n  three\n"}, {"a-very-long-word is", "> a-very-long-word\n  is\n"}, {"µ µ µ µ µ µ", "> µ µ µ µ\n  µ µ\n"},
	} {
		if got := meaning.Wrap(tt.text, 10, "> ", "  "); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.text, got, tt.want)
		}
	}
	for s, want := range map[string]string{"": "", "the end": "The end.", "is it?": "Is it?", "path_mtu is": "path_mtu is.", "-110: no": "-110: no."} {
		if got := meaning.Sentence(s); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
}

const document = "../../docs/ERRORS.md"

// docs/ERRORS.md is written from the table, by the flag -update.
func TestDocument(t *testing.T) {
	want := writeDocument()
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("docs/ERRORS.md is not what the table says, from %q on; write it by: go test ./internal/meaning -update", fmt.Sprintf("%.60s", want[at:]))
	}
}

// No line about the health of a card has a status.
func TestHealth(t *testing.T) {
	for _, e := range meaning.Of(meaning.KindHealth) {
		line := fmt.Sprintf("mlx5_core 0000:04:00.0: print_health_info:431:(pid 0): synd 0x%x: %s", e.Number, e.Name)
		found := meaning.Explain(line)
		if len(found) == 0 || found[0].Kind != meaning.KindHealth || found[0].Number != e.Number {
			t.Errorf("%s: found %q, want %s first", line, titles(found), e.Title())
		}
		for _, f := range found {
			if f.Kind == meaning.KindStatus || f.Kind == meaning.KindSyndrome {
				t.Errorf("%s: found %s", line, f.Title())
			}
		}
	}
}

// Ping4096 sends packets as long as the longest of RC with 4096 bytes, by IPv4 and IPv6: a WRITE ONLY with immediate data.
func TestPing(t *testing.T) {
	const icmp, udp, ipv4, ipv6 = 8, 8, 20, 40
	headers := udp + wire.BTHSize + wire.RETHSize + wire.ImmDtSize + wire.ICRCSize
	for _, ip := range []int{ipv4, ipv6} {
		packet := ip + headers + 4096
		if want := fmt.Sprintf("ping -M do -s %d", packet-ip-icmp); meaning.Ping4096 != want {
			t.Errorf("an IP header of %d bytes: got %q, want %q", ip, meaning.Ping4096, want)
		}
	}
	if e, _ := meaning.Lookup(meaning.KindMTU, int(verbs.MTU4096)); !strings.Contains(e.More, fmt.Sprint(ipv4+headers+4096)) || !strings.Contains(e.More, "4192") {
		t.Errorf("mtu 5: got %q, want the length of the longest packet, and the MTU of an interface that hosts give it", e.More)
	}
}
