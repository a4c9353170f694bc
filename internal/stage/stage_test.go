package stage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// play makes a stage by the fragment of a URL, and plays to the end.
func play(t *testing.T, fragment string) *Stage {
	t.Helper()
	p, err := Decode(fragment)
	if err != nil {
		t.Fatal(err)
	}
	p.Steps = maxSteps
	s, err := Replay(p)
	if err != nil {
		t.Fatalf("%s: %v, want no error", fragment, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Err(); err != nil {
		t.Errorf("%s: %v", fragment, err)
	}
	return s
}

// polled are an end's completions: opcode and status.
func polled(n *node) string {
	var list []string
	for _, c := range n.done {
		list = append(list, fmt.Sprintf("%s:%d", wcName(c.Op), c.Status))
	}
	return strings.Join(list, " ")
}

// packets are the packets of an end: their names and PSNs.
func (s *Stage) packetsOf(name string) string {
	var list []string
	for _, p := range s.packets {
		if v := viewPacket(p); v.From == name {
			list = append(list, fmt.Sprintf("%s:%d", v.Name, v.PSN))
		}
	}
	return strings.Join(list, " ")
}

func (s *Stage) counted(who, counter string) (n uint64) {
	for _, e := range s.log {
		if e.Kind == "count" && e.Who == who && e.Text == counter {
			n += e.Count
		}
	}
	return n
}

func TestLessons(t *testing.T) {
	for _, test := range []struct {
		play  string
		a, b  string // completions
		state string // of A's QP at the end
		over  string // packets of A, where they matter
	}{
		{play: "l=send", a: "SEND:0", b: "RECV:0", over: "SEND_ONLY:0"},
		{play: "l=send&bytes=0", a: "SEND:0", b: "RECV:0"},
		{play: "l=write", a: "RDMA_WRITE:0 RDMA_WRITE:0", over: "RDMA_WRITE_ONLY:0 RDMA_WRITE_ONLY:1"},
		{play: "l=read", a: "RDMA_READ:0", over: "RDMA_READ_REQUEST:0"},
		{play: "l=atomic", a: "FETCH_ADD:0 COMP_SWAP:0 COMP_SWAP:0"},
		{play: "l=mtu", a: "RDMA_WRITE:0 RDMA_WRITE:0 RDMA_READ:0", over: "RDMA_WRITE_FIRST:0 RDMA_WRITE_MIDDLE:1 RDMA_WRITE_LAST:2 RDMA_WRITE_ONLY:3 RDMA_READ_REQUEST:4"},
		{play: "l=mtu&mtu=4096", a: "RDMA_WRITE:0 RDMA_WRITE:0 RDMA_READ:0", over: "RDMA_WRITE_ONLY:0 RDMA_WRITE_ONLY:1 RDMA_READ_REQUEST:2"},
		{play: "l=connect", a: "SEND:0", b: "RECV:0", over: "CM REQ:0 CM RTU:1 SEND_ONLY:0 CM DREQ:2"},
		{play: "l=loss", a: "RDMA_WRITE:0 RDMA_WRITE:0"},
		{play: "l=loss&loss=30&s=5", a: "RDMA_WRITE:0 RDMA_WRITE:0"},
		{play: "l=loss&depth=1", a: "RDMA_WRITE:0 RDMA_WRITE:0"},
		{play: "l=selective&loss=30&s=5", a: "RDMA_WRITE:0 RDMA_WRITE:0"},
		{play: "l=rnr", a: "SEND:0 SEND:13", b: "RECV:0", state: "ERR"},
		{play: "l=rnr&rnrretry=0", a: "SEND:13 SEND:5", state: "ERR"},
		{play: "l=keys", a: "RDMA_WRITE:0 RDMA_WRITE:10 RDMA_WRITE:5", state: "ERR"},
		{play: "l=routing", a: "RDMA_WRITE:0"},
		{play: "l=routing&routing=0", a: "RDMA_WRITE:0"},
		{play: "l=free"},
		{play: "l=free&d=1s.1w.1r.1f", a: "SEND:0 RDMA_WRITE:0 RDMA_READ:0 FETCH_ADD:0", b: "RECV:0"},
		{play: "l=loss&d=2k", a: "RDMA_WRITE:12 RDMA_WRITE:5", state: "ERR"}, // the link is cut for good
	} {
		t.Run(test.play, func(t *testing.T) {
			s := play(t, test.play)
			if !s.Whole() {
				t.Errorf("the play ends at step %d with %d acts to come, want none", s.play.Steps, len(s.acts))
			}
			if test.state == "" {
				test.state = "RTS"
			}
			if got := stateName(s.a.look().State); got != test.state {
				t.Errorf("A's QP is in %s, want %s", got, test.state)
			}
			if a, b := polled(s.a), polled(s.b); a != test.a || b != test.b {
				t.Errorf("A has polled %q and B %q, want %q and %q", a, b, test.a, test.b)
			}
			if got := s.packetsOf("A"); test.over != "" && got != test.over {
				t.Errorf("A has sent %s, want %s", got, test.over)
			}
			for _, e := range s.log {
				if e.Kind == "error" {
					t.Errorf("step %d: %s, want no error", e.Step, e.Text)
				}
			}
		})
	}
}

// The lesson of losses: PSN 1 is dropped.
func TestDropped(t *testing.T) {
	const all = "RDMA_WRITE_FIRST:0 RDMA_WRITE_MIDDLE:1 RDMA_WRITE_LAST:2 RDMA_WRITE_FIRST:3 RDMA_WRITE_MIDDLE:4 RDMA_WRITE_LAST:5 "
	for _, test := range []struct{ play, a string }{
		{"l=loss&d=2x2", all + "RDMA_WRITE_MIDDLE:1 RDMA_WRITE_LAST:2 RDMA_WRITE_FIRST:3 RDMA_WRITE_MIDDLE:4 RDMA_WRITE_LAST:5"},
		{"l=selective&d=2x2", all + "RDMA_WRITE_MIDDLE:1"},
	} {
		s := play(t, test.play)
		if got := s.packetsOf("A"); got != test.a {
			t.Errorf("%s: A has sent\n%s, want\n%s", test.play, got, test.a)
		}
		if got := polled(s.a); got != "RDMA_WRITE:0 RDMA_WRITE:0" {
			t.Errorf("%s: A has polled %s", test.play, got)
		}
	}
	s := play(t, "l=loss&d=2x2")
	if got := s.packetsOf("B"); !strings.HasPrefix(got, "ACKNOWLEDGE:0 ") && !strings.HasPrefix(got, "ACKNOWLEDGE:1 ") {
		t.Errorf("B has sent %s, want a NAK for PSN 1 first", got)
	}
	if n := s.counted("B", "send_seq_err"); n != 1 {
		t.Errorf("B has sent %d sequence NAKs, want 1", n)
	}
}

func TestActions(t *testing.T) {
	s := play(t, "l=loss&d=2b2")
	if n := s.counted("B", "rx_icrc_encapsulated"); n != 1 {
		t.Errorf("a packet was damaged, and B has dropped %d for their ICRC; want 1", n)
	}
	s = play(t, "l=loss&d=2c2")
	if n := s.counted("B", "duplicate_request"); n != 1 {
		t.Errorf("a packet was copied, and B has counted %d duplicates; want 1", n)
	}
	s = play(t, "l=loss&d=2l2")
	if n := s.counted("B", "send_seq_err"); n == 0 {
		t.Error("a packet was delayed, and B has sent no NAK")
	}
	s = play(t, "l=loss&d=2n6")
	if n := s.counted("B", "out_of_seq_request"); n == 0 {
		t.Error("the last packet arrived first, and B has not counted it")
	}
	s = play(t, "l=loss&d=2k.9k") // the link is cut for a while
	if got := polled(s.a); got != "RDMA_WRITE:0 RDMA_WRITE:0" {
		t.Errorf("A has polled %s behind a link that was mended", got)
	}
}

// A link replays what its author saw.
func TestReplay(t *testing.T) {
	const letters = onPackets + onPrograms
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		set, err := Defaults(lessons[rnd.IntN(len(lessons))].name)
		if err != nil {
			t.Fatal(err)
		}
		set.Seed, set.Loss, set.Jitter, set.Adverb = rnd.IntN(1000), rnd.IntN(20), rnd.IntN(40), rnd.IntN(2)
		s, err := New(set)
		if err != nil {
			t.Fatal(err)
		}
		for range 60 {
			if rnd.IntN(4) == 0 {
				a := Action(letters[rnd.IntN(len(letters))])
				n := 0
				if strings.IndexByte(onPackets, byte(a)) >= 0 {
					n = len(s.packets) - rnd.IntN(4)
				}
				s.Decide(a, n) // refused where it has no sense
			}
			s.Step()
		}
		s.checkSame(t, seed)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// checkSame replays the stage's link, and compares all that there is to see.
func (s *Stage) checkSame(t *testing.T, seed uint64) {
	t.Helper()
	view := s.View()
	p, err := Decode(view.Link)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	again, err := Replay(p)
	if err != nil {
		t.Fatalf("seed %d: %s: %v", seed, view.Link, err)
	}
	defer again.Close()
	if !slices.Equal(s.log, again.log) {
		t.Errorf("seed %d: %s: the log of the replay differs", seed, view.Link)
	}
	v2 := again.View()
	a, _ := json.Marshal(view)
	b, _ := json.Marshal(v2)
	if !bytes.Equal(a, b) {
		at := 0
		for at < min(len(a), len(b)) && a[at] == b[at] {
			at++
		}
		t.Errorf("seed %d: %s: the views differ:\n…%.200s\n…%.200s", seed, view.Link, a[max(0, at-100):], b[max(0, at-100):])
	}
}

func TestDecode(t *testing.T) {
	p, err := Decode("l=loss&s=7&mtu=512&d=12x7.15l8.20k&at=40&v=12ab34cd")
	if err != nil {
		t.Fatal(err)
	}
	want, _ := Defaults("loss")
	want.Seed, want.MTU = 7, 512
	if !reflect.DeepEqual(p, Play{want, Decisions{{12, Drop, 7}, {15, Delay, 8}, {20, Cut, 0}}, 40, "12ab34cd"}) {
		t.Errorf("got %+v", p)
	}
	if got := p.Encode(); got != "l=loss&s=7&mtu=512&d=12x7.15l8.20k&at=40" {
		t.Errorf("encoded again it is %s", got)
	}
	for _, bad := range []string{"l=nothing", "mtu=1000", "mtu=x", "mtu=8192", "loss=100", "d=x", "d=1x", "d=1s4", "d=1x0", "d=5x1.4x1", "d=1z1",
		"at=-1", "at=99999999", "bytes=100000", "q=1", "%zz", "d=" + strings.Repeat("1s.", maxDecisions) + "1s"} {
		if _, err := Decode(bad); err == nil {
			t.Errorf("%.40s is read, want an error", bad)
		}
	}
	for _, bad := range []string{"l=send&d=1x9", "l=send&d=900x1", "l=send&d=900s"} {
		p, err := Decode(bad)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := Replay(p); err == nil {
			s.Close()
			t.Errorf("%s is replayed, want an error", bad)
		}
	}
}

// Each packet's fields cover it, bit by bit.
func TestFields(t *testing.T) {
	for _, name := range Lessons() {
		s := play(t, "l="+name)
		for _, p := range s.packets {
			v, err := s.Packet(p.N)
			if err != nil {
				t.Fatal(err)
			}
			at := 0
			for _, h := range v.Headers {
				bits := 0
				for _, f := range h.Fields {
					if f.Bit != bits {
						t.Errorf("%s: %s: field %s begins at bit %d, want %d", v.Name, h.Name, f.Name, f.Bit, bits)
					}
					bits += f.Bits
				}
				if h.From != at || bits != 0 && bits != 8*h.Len {
					t.Errorf("%s: %s begins at %d and has %d bits, want %d and %d", v.Name, h.Name, h.From, bits, at, 8*h.Len)
				}
				at += h.Len
			}
			if at != len(p.data) || at == 0 {
				t.Errorf("%s: the headers have %d bytes, want %d", v.Name, at, len(p.data))
			}
		}
	}
	s := play(t, "l=connect")
	says := map[string]string{}
	v, err := s.Packet(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Headers[len(v.Headers)-2].Fields { // before the ICRC
		says[f.Name] = f.Text
	}
	for field, want := range map[string]string{"service ID": "port 7471", "primary local GID": "10.0.0.1", "primary remote GID": "10.0.0.2", "path MTU": "MTU_1024", "RNR retry": "7: without end",
		"transport": "RC", "local QPN": fmt.Sprintf("QP 0x%06x", uint32(s.a.qp.QPN()))} {
		if says[field] != want {
			t.Errorf("the REQ's %s says %q, want %q", field, says[field], want)
		}
	}
	s = play(t, "l=send")
	if _, err := s.Packet(99); err == nil {
		t.Error("there is a packet 99, want an error")
	}
}

// The version is that of what engines do, and not of what is computed when.
func TestVersion(t *testing.T) {
	v := Version()
	if len(v) != 2*versionBytes {
		t.Errorf("the version is %q, want %d digits", v, 2*versionBytes)
	}
	was := versionPlays
	defer func() { versionPlays = was }()
	versionPlays = versionPlays[:1]
	if computeVersion() == v {
		t.Error("with fewer plays the version is the same: it does not depend on them")
	}
	versionPlays = was
	if again := computeVersion(); again != v {
		t.Errorf("computed again the version is %s, and was %s", again, v)
	}
}

// FuzzPlay makes any settings and decisions. A play ends, and what has completed is in memory.
func FuzzPlay(f *testing.F) {
	for i := range lessons {
		f.Add(uint8(i), uint16(i), uint16(900), uint8(5), uint8(3), []byte{10, 3, 40, 7, 90, 1, 0, 9})
	}
	f.Fuzz(func(t *testing.T, which uint8, seed, size uint16, loss, flags uint8, raw []byte) {
		set, err := Defaults(lessons[int(which)%len(lessons)].name)
		if err != nil {
			t.Fatal(err)
		}
		set.Seed, set.Bytes, set.Loss = int(seed), int(size)%(maxBytes+1), int(loss)%91
		set.Adverb, set.Routing, set.Jitter, set.MTU = int(flags)&1, int(flags)>>1&1, int(flags)>>2&1*40, 256<<(int(flags)>>3%5)
		set.Depth, set.RNRRetry = 1+int(flags)>>6, 3
		s, err := New(set)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		const letters = onPackets + onPrograms
		for len(raw) > 1 {
			for range raw[0] % 16 {
				s.Step()
			}
			a := Action(letters[int(raw[0])/16%len(letters)])
			s.Decide(a, len(s.packets)-int(raw[1])%8) // refused where it has no sense
			raw = raw[2:]
		}
		for s.Step() {
		}
		if s.play.Steps >= maxSteps || len(s.log) >= maxLog {
			t.Errorf("%s: the play goes on after %d steps", s.play.Encode(), s.play.Steps)
		}
		if err := s.Err(); err != nil {
			t.Errorf("%s: %v", s.play.Encode(), err)
		}
		v := s.View()
		if _, err := json.Marshal(v); err != nil {
			t.Error(err)
		}
	})
}
