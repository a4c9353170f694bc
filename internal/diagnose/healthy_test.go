package diagnose_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/internal/wire"
	"github.com/adverb-rdma/adverb/rdmatest"
)

// unhealthy are the captures of kernels in which something failed.
var unhealthy = map[string][]string{
	"rping-noresp.pcap": {"CM-NOANSWER"}, // a REQ that nobody answers
	"two-cm.pcap":       {"CM-REJ-8"},    // its second client comes before its server
}

// kernels are the captures of packets that Linux kernels sent.
func kernels(t testing.TB) (files []string) {
	t.Helper()
	for _, dir := range []string{"testdata", "../wire/testdata"} {
		list, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %d captures, %v", dir, len(list), err)
		}
		files = append(files, list...)
	}
	return files
}

// Healthy traffic of kernels has no error and no warning, and no more than a hint beyond facts about the capture.
func TestKernels(t *testing.T) {
	for _, name := range kernels(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		r := diagnoseBytes(t, b)
		if want, got := unhealthy[filepath.Base(name)], idsOf(r.Findings); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		for _, f := range r.Notes {
			if f.Certainty != diagnose.Hint {
				t.Errorf("%s: the note %s is %v, want no more than a hint", name, f.ID, f.Certainty)
			}
		}
		// A receiver's file, and one whose packets all have the same time, are no worse.
		other := bytes.Clone(b)
		for p := other[24:]; len(p) > 0; {
			n := binary.LittleEndian.Uint32(p[8:])
			copy(p[:8], other[24:32])
			if eth := p[16:]; n > 34 && eth[12] == 8 && eth[13] == 0 && eth[23] == 17 {
				eth[18], eth[19] = 0, 0
			}
			p = p[16+n:]
		}
		r = diagnoseBytes(t, other)
		if got := idsOf(r.Findings); len(got) > len(unhealthy[filepath.Base(name)]) {
			t.Errorf("%s, with identification and times 0: %v", name, got)
		}
	}
}

// Each rule is shown by a capture.
func TestEachRule(t *testing.T) {
	seen := map[string]bool{}
	for id := range shown(t) {
		seen[id] = true
	}
	for _, s := range scenarios {
		for _, ids := range s.want {
			for _, id := range ids {
				seen[id] = true
			}
		}
	}
	for _, r := range diagnose.Rules() {
		switch id := r.ID; id {
		case "CAP-CUT": // TestDamagedFiles
		case "CM-REJ-N":
			if !seen["CM-REJ-26"] {
				t.Errorf("no capture shows %s", id)
			}
		default:
			if !seen[id] {
				t.Errorf("no capture shows %s", id)
			}
		}
	}
}

// shown returns the findings and notes of all scripts, one for each ID.
func shown(t *testing.T) map[string]*diagnose.Finding {
	t.Helper()
	all := map[string]*diagnose.Finding{}
	for _, tt := range scripts {
		s := newScript()
		tt.play(s)
		r := s.report(diagnose.Options{})
		for _, f := range append(r.Findings, r.Notes...) {
			all[f.ID] = f
		}
	}
	return all
}

// A finding says all that its reader needs.
func TestComplete(t *testing.T) {
	for id, f := range shown(t) {
		if f.Title == "" || len(f.Remedy) == 0 || f.Count == 0 && id != "CAP-NONE" {
			t.Errorf("%s: %+v, want a title, a remedy and a count", id, f)
		}
		for _, s := range append(slices.Clone(f.Remedy), f.Title, f.Words, f.WrongIf) {
			if strings.Contains(s, "%!") || strings.Contains(s, "  ") {
				t.Errorf("%s: %q", id, s)
			}
		}
	}
}

// findTshark returns the name of Wireshark's program. It skips the test without one.
func findTshark(t *testing.T) string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("tshark is not installed")
	}
	return tshark
}

// Wireshark takes all display filters.
func TestFilters(t *testing.T) {
	tshark := findTshark(t)
	filters := map[string]string{}
	for id, f := range shown(t) {
		if f.Filter != "" {
			filters[f.Filter] = id
		}
	}
	for _, name := range kernels(t) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		half, err := diagnose.File(bytes.NewReader(b[:len(b)*2/3]), diagnose.Options{}) // of which something is missing
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(half.Findings, half.Notes...) {
			if f.Filter != "" {
				filters[f.Filter] = f.ID
			}
		}
	}
	check := func(filter string) ([]byte, error) {
		return exec.CommandContext(t.Context(), tshark, "-r", "../wire/testdata/rping.pcap", "-Y", filter, "-c", "1").CombinedOutput()
	}
	var all []string
	for f := range filters {
		all = append(all, "("+f+")")
	}
	if _, err := check(strings.Join(all, " || ")); err == nil {
		return
	}
	for f, id := range filters {
		if out, err := check(f); err != nil {
			t.Errorf("%s: filter %q: %v\n%s", id, f, err, out)
		}
	}
}

// filterCheck collects captures in one file, and the display filters of their findings.
type filterCheck struct {
	b          bytes.Buffer
	w          *pcap.Frames
	interfaces map[capture.LinkType]int
	frames     int
	filters    []checkedFilter
}

type checkedFilter struct{ id, filter, frames string }

// missed is a display filter for the frames that the finding names, and its filter does not find.
func (f *checkedFilter) missed() string { return "(!(" + f.filter + ") && (" + f.frames + "))" }

// add appends a capture.
func (c *filterCheck) add(t *testing.T, file []byte, findings []*diagnose.Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Filter == "" || len(f.Frames) == 0 || strings.HasPrefix(f.Filter, "frame.number") {
			continue
		}
		var frames []string
		for _, n := range f.Frames {
			frames = append(frames, fmt.Sprintf("frame.number == %d", c.frames+n))
		}
		c.filters = append(c.filters, checkedFilter{f.ID, f.Filter, strings.Join(frames, " || ")})
	}
	err := diagnose.Frames(bytes.NewReader(file), func(f capture.Frame) {
		iface, ok := c.interfaces[f.Link]
		if !ok {
			var err error
			if iface, err = c.w.AddInterface("", uint16(f.Link)); err != nil {
				t.Fatal(err)
			}
			c.interfaces[f.Link] = iface
		}
		if err := c.w.Write(iface, time.Unix(0, f.Time), f.Data); err != nil {
			t.Fatal(err)
		}
		c.frames++
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The filter of each kind of finding finds the frames that the finding names, on each kind of link.
func TestFiltersFind(t *testing.T) {
	tshark := findTshark(t)
	c := filterCheck{interfaces: map[capture.LinkType]int{}}
	var err error
	if c.w, err = pcap.NewFrames(&c.b, "test"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range scripts {
		s := newScript()
		tt.play(s)
		r := s.report(diagnose.Options{})
		c.add(t, s.file(t), append(r.Findings, r.Notes...))
	}
	for _, s := range linkScenarios {
		for _, l := range links {
			var file bytes.Buffer
			synctest.Test(t, func(t *testing.T) {
				s.run(l.open(t, s.loss, &file))
				synctest.Wait()
			})
			r := diagnoseBytes(t, file.Bytes())
			c.add(t, file.Bytes(), append(r.Findings, r.Notes...))
		}
	}
	name := filepath.Join(t.TempDir(), "all.pcapng")
	if err := os.WriteFile(name, c.b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	find := func(filter string) string {
		out, err := exec.CommandContext(t.Context(), tshark, "-r", name, "-Y", filter, "-T", "fields", "-e", "frame.number").Output()
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(out))
	}
	var all []string
	for _, f := range c.filters {
		all = append(all, f.missed())
	}
	if len(all) < 50 {
		t.Fatalf("%d filters, want more", len(all))
	}
	if find(strings.Join(all, " || ")) == "" {
		return
	}
	for _, f := range c.filters {
		if missed := find(f.missed()); missed != "" {
			t.Errorf("%s: filter %q does not find frames %q of %s", f.id, f.filter, missed, f.frames)
		}
	}
}

// A filter finds the packets of the finding: here the refused connection.
func TestFilterFinds(t *testing.T) {
	tshark := findTshark(t)
	b, err := os.ReadFile("testdata/rping-noresp.pcap")
	if err != nil {
		t.Fatal(err)
	}
	f := diagnoseBytes(t, b).Findings[0]
	out, err := exec.CommandContext(t.Context(), tshark, "-r", "testdata/rping-noresp.pcap", "-Y", f.Filter, "-T", "fields", "-e", "frame.number").Output()
	if err != nil || !strings.HasPrefix(string(out), "1\n2\n5\n6\n") || !slices.Equal(f.Frames, []int{1, 2, 5, 6}) {
		t.Errorf("filter %q finds %q, %v; the finding names %v; want frames 1, 2, 5 and 6", f.Filter, out, err, f.Frames)
	}
}

// Nothing that identifies hosts, memory or data is in a redacted report, and the same address has the same replacement.
func TestRedact(t *testing.T) {
	for _, tt := range scripts {
		s := newScript()
		tt.play(s)
		var text strings.Builder
		r := s.report(diagnose.Options{Redact: true})
		if err := r.Print(&text); err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"10.1.0", "10.9.9.9", "192.168.7.7", "fe80::a", "dead0000", "badcafe", "0x8005"} {
			if strings.Contains(text.String(), secret) {
				t.Errorf("%s: %q is in the redacted report\n%s", tt.name, secret, &text)
			}
		}
	}
	s := newScript()
	s.ab(write(0, wire.RCRDMAWriteOnly, 64))
	s.ba(answer(0, wire.SyndromeNAK(wire.NAKRemoteAccessError)))
	plain, redacted := s.report(diagnose.Options{}).Findings[0], s.report(diagnose.Options{Redact: true}).Findings[0]
	if !strings.Contains(plain.Words, "0x7f00dead0000") || !strings.Contains(plain.Words, "0x0badcafe") || !strings.Contains(plain.Where, "10.1.0.1 → 10.1.0.2") {
		t.Errorf("%q, %q; want address, key and hosts", plain.Where, plain.Words)
	}
	if !strings.Contains(redacted.Where, "192.0.2.1 → 192.0.2.2") || redacted.Filter != "frame.number in {1, 2}" {
		t.Errorf("%q, filter %q; want replacements, and frames", redacted.Where, redacted.Filter)
	}
}

// A refused key is compared with those that were accepted.
func TestKeys(t *testing.T) {
	for rkey, want := range map[uint32]string{0x0badcafe: "The same rkey was accepted before (frame 1)", 0x1234: "Another rkey was accepted before (frame 3)"} {
		s := newScript()
		s.good(0, 2)
		w := write(2, wire.RCRDMAWriteOnly, 64)
		w.RETH.RKey = rkey
		s.ab(w)
		s.ba(answer(2, wire.SyndromeNAK(wire.NAKRemoteAccessError)))
		if f := s.report(diagnose.Options{}).Findings[0]; !strings.Contains(f.Words, want) || !slices.Equal(f.Frames, []int{5, 6}) {
			t.Errorf("%v: %q, want %q in frames 5 and 6", f.Frames, f.Words, want)
		}
	}
}

// Private data is told by its length in a redacted report, and shown otherwise.
func TestRedactData(t *testing.T) {
	s := newScript()
	s.req(nil)
	s.rej(wire.RejConsumerDefined, func(m *wire.REJ) { copy(m.PrivateData[:], "secret") })
	plain, redacted := s.report(diagnose.Options{}).Findings[0].Words, s.report(diagnose.Options{Redact: true}).Findings[0].Words
	if !strings.Contains(plain, "736563726574") || !strings.Contains(redacted, "6 bytes") || strings.Contains(redacted, "736563") {
		t.Errorf("%q and %q, want the data in the first alone", plain, redacted)
	}
}

// Of an invalid request the remedy names the cause that the request shows.
func TestAlignment(t *testing.T) {
	for va, want := range map[uint64]string{0x1001: "no multiple of 8", 0x1000: "allow atomics"} {
		s := newScript()
		s.good(0, 1)
		s.ab(wire.Packet{BTH: wire.BTH{Opcode: wire.RCFetchAdd, PSN: 1, AckReq: true}, AtomicETH: wire.AtomicETH{VA: va}})
		s.ba(answer(1, wire.SyndromeNAK(wire.NAKInvalidRequest)))
		if all := strings.Join(s.report(diagnose.Options{}).Findings[0].Remedy, " "); !strings.Contains(all, want) {
			t.Errorf("an atomic at %#x: %q, want %q", va, all, want)
		}
	}
}

// A peer that never answers is silent, and its direction is not called missing.
func TestSilentAlone(t *testing.T) {
	s := newScript()
	for range 4 {
		s.ab(write(7, wire.RCRDMAWriteOnly, 64))
		s.now += 500 * time.Millisecond
	}
	r := s.report(diagnose.Options{})
	if !slices.Equal(idsOf(r.Findings), []string{"RC-SILENT"}) || slices.Contains(idsOf(r.Notes), "CAP-ONEWAY") || r.Findings[0].Certainty != diagnose.Likely {
		t.Errorf("%v, %v; want RC-SILENT, likely, and not CAP-ONEWAY", idsOf(r.Findings), idsOf(r.Notes))
	}
}

// Packets to two queue pairs of a host may arrive in another order than they were sent: only within one it counts.
func TestTwoQueuePairs(t *testing.T) {
	for _, same := range []bool{false, true} {
		s := newScript()
		s.good(0, 3)
		for i := range s.frames {
			s.frames[i].Interface = 1
		}
		at := func(b []byte, iface int) {
			s.put(b, 0)
			s.frames[len(s.frames)-1].Interface = iface
		}
		packet := func(psn wire.PSN, qpn uint32) []byte {
			w := write(psn, wire.RCRDMAWriteOnly, 64)
			w.DestQP = qpn
			return s.bytes(s.a, s.b, w)
		}
		first, second := packet(3, qpB), packet(4, qpB)
		if !same {
			second = packet(500, 0x77)
		}
		at(first, 1)
		at(second, 1)
		at(second, 2)
		at(first, 2)
		s.ba(ack(4))
		if got := slices.Contains(idsOf(s.report(diagnose.Options{}).Findings), "REORDER"); got != same {
			t.Errorf("one queue pair: %v, overtaken: %v; want the same", same, got)
		}
	}
}

// A file that ends too early, or is damaged, is judged as far as it goes. A file that is no capture is an error.
func TestDamagedFiles(t *testing.T) {
	b, err := os.ReadFile("testdata/rping-noresp.pcap")
	if err != nil {
		t.Fatal(err)
	}
	r := diagnoseBytes(t, b[:len(b)-20])
	if !slices.Contains(idsOf(r.Notes), "CAP-CUT") || !slices.Equal(idsOf(r.Findings), []string{"CM-NOANSWER"}) {
		t.Errorf("a file that is cut: %v, %v", idsOf(r.Findings), idsOf(r.Notes))
	}
	for _, bad := range [][]byte{nil, []byte("hello, world"), b[:30]} {
		if _, err := diagnose.File(bytes.NewReader(bad), diagnose.Options{}); !errors.Is(err, diagnose.ErrUnreadable) {
			t.Errorf("%d bytes: %v, want ErrUnreadable", len(bad), err)
		}
	}
}

// Traffic in one process stands twice in its file, at times that are all the same: each packet is judged once.
func TestTwoEndsOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, sim.Config{}, false)
		e := w.connect(rdmatest.Options{})
		e.traffic(20)
		w.a.Close()
		w.b.Close()
		for _, out := range w.writers {
			out.Close()
		}
		r := diagnoseBytes(t, w.files["both"].Bytes())
		if len(r.Findings) > 0 || !slices.Contains(idsOf(r.Notes), "CAP-DUP") {
			var text strings.Builder
			r.Print(&text)
			t.Errorf("want no finding, and the note CAP-DUP\n%s", &text)
		}
		// A program that does not close its devices loses the end of its file, and nothing is made of that.
		whole := w.files["both"].Bytes()
		for n := len(whole) / 2; n < len(whole); n += 997 {
			if r := diagnoseBytes(t, whole[:n]); len(r.Findings) > 0 {
				t.Errorf("%d of %d bytes: %v, want nothing", n, len(whole), idsOf(r.Findings))
			}
		}
	})
}

// Many connections at a time stay within their limits.
func TestManyFlows(t *testing.T) {
	s := newScript()
	a := diagnose.New(diagnose.Options{})
	for i := range uint32(20000) {
		s.frames = s.frames[:0]
		w := write(wire.PSN(i), wire.RCRDMAWriteOnly, 8)
		w.DestQP = 100 + i
		s.ab(w)
		a.Frame(s.frames[0])
	}
	r := a.Report()
	if len(r.Findings) > 0 || !slices.ContainsFunc(r.Unchecked, func(s string) bool { return strings.Contains(s, "forgotten early") }) {
		t.Errorf("%v, not checked: %q; want that queue pairs were forgotten", idsOf(r.Findings), r.Unchecked)
	}
}

// FuzzAnalyzer takes any packets.
func FuzzAnalyzer(f *testing.F) {
	for _, tt := range scripts {
		s := newScript()
		tt.play(s)
		var all []byte
		for _, fr := range s.frames[:min(20, len(s.frames))] {
			all = binary.BigEndian.AppendUint16(all, uint16(len(fr.Data)))
			all = append(all, fr.Data...)
		}
		f.Add(all)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a := diagnose.New(diagnose.Options{Redact: len(b)%2 == 0})
		for i := 1; len(b) > 2; i++ {
			n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
			a.Frame(capture.Frame{Number: i, Time: int64(i) * int64(time.Millisecond), Link: capture.LinkRaw, Data: b[2 : 2+n], Length: n})
			b = b[2+n:]
		}
		var text strings.Builder
		if err := a.Report().Print(&text); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkFrame judges the packets of long WRITEs, with their ICRCs.
func BenchmarkFrame(b *testing.B) {
	for name, n := range map[string]int{"4096": 4096, "64": 64} {
		b.Run(name, func(b *testing.B) {
			s := newScript()
			const packets = 1 << 12
			for i := range packets / 2 {
				s.ab(write(wire.PSN(i), wire.RCRDMAWriteOnly, n))
				s.ba(ack(wire.PSN(i)))
			}
			a := diagnose.New(diagnose.Options{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%packets == 0 {
					a = diagnose.New(diagnose.Options{})
				}
				a.Frame(s.frames[i%packets])
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
		})
	}
}

// A FLUSH is answered in any case, as a READ is: if its answer fails to come, it is open. How long it takes is no matter of
// READs.
func TestFlushOpen(t *testing.T) {
	flush := func(psn wire.PSN) wire.Packet {
		return wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: psn}, FETH: wire.FETH{Placement: wire.FlushPersistent}, RETH: wire.RETH{VA: 0x1000, RKey: 7, Length: 8}}
	}
	done := func(psn wire.PSN) wire.Packet {
		return wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAReadResponseOnly, PSN: psn}, AETH: wire.AETH{Syndrome: wire.SyndromeACK(31)}}
	}
	s := newScript()
	for i := range wire.PSN(100) {
		s.ab(flush(i))
		if i%30 == 29 {
			s.now += 20 * time.Millisecond
		}
		s.ba(done(i))
	}
	if r := s.report(diagnose.Options{}); len(idsOf(r.Notes)) > 0 || len(r.Findings) > 0 {
		t.Errorf("FLUSHes of which some take long: %v, %v; want nothing", idsOf(r.Findings), idsOf(r.Notes))
	}
	s.ab(flush(100))
	s.now += 10 * time.Second
	s.put(append(ipv4(s.a, s.b, 0, 17, 1, 28), make([]byte, 28)...), 0) // the capture goes on
	if got := idsOf(s.report(diagnose.Options{}).Findings); !slices.Equal(got, []string{"RC-DIED"}) {
		t.Errorf("a FLUSH without an answer: %v, want RC-DIED", got)
	}
}
