package ladder_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/browsertest"
	"github.com/adverb-rdma/adverb/internal/ladder"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// page makes the page of captures.
func page(t testing.TB, d ladder.Diagnosis, tapes ...*tape) string {
	t.Helper()
	c := ladder.NewCollector()
	for _, tape := range tapes {
		if err := c.Read(bytes.NewReader(tape.b)); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	if err := c.HTML(&b, "a capture", ladder.Options{Limit: 10}, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// traffic is a capture of WRITEs of 16 packets at 8 QPs, with answers, losses and repeats, of a seed.
func traffic(n int, seed uint64) *tape {
	random := rand.New(rand.NewPCG(seed, 0))
	c := newTape()
	var at time.Duration
	psns, vas := [8]int{}, [8]uint64{}
	for i := 0; i < n; {
		q := random.IntN(len(psns))
		first := psns[q]
		for k := range 16 {
			at += time.Duration(200 + random.IntN(3000))
			p := send(psns[q])
			p.DestQP = uint32(0x100 + q)
			p.Payload = make([]byte, 4)
			switch k {
			case 0:
				p.Opcode, p.RETH = wire.RCRDMAWriteFirst, wire.RETH{VA: 0x7f00_1234_0000 + vas[q], RKey: 0x1000 + uint32(q), Length: 64}
				vas[q] = (vas[q] + 64) % (1 << 20)
			case 15:
				p.Opcode, p.AckReq = wire.RCRDMAWriteLast, true
			default:
				p.Opcode = wire.RCRDMAWriteMiddle
			}
			if random.IntN(500) != 0 { // else lost before the capture
				c.add(at, addrA, addrB, p)
			}
			psns[q]++
		}
		at += time.Duration(2000 + random.IntN(20_000))
		a := answer(psns[q]-1, ack)
		a.DestQP, a.AETH.MSN = uint32(0x200+q), uint32(psns[q]/16)
		if random.IntN(50) == 0 {
			a.PSN, a.AETH.Syndrome, psns[q] = wire.PSN(first), nak, first
		}
		c.add(at, addrB, addrA, a)
		i += 17
	}
	return c
}

// A page of 100,000 packets has 1.5 MB at most, all that it needs, and its own script alone.
func TestPageSize(t *testing.T) {
	const n, limit, seed = 100_000, 1_500_000, 1
	text := page(t, ladder.Diagnosis{}, traffic(n, seed))
	empty := page(t, ladder.Diagnosis{}, newTape())
	t.Logf("%d packets: %d bytes, %.2f a packet besides the %d of an empty page", n, len(text), float64(len(text)-len(empty))/n, len(empty))
	if len(text) > limit {
		t.Errorf("a page of %d packets has %d bytes, want %d at most", n, len(text), limit)
	}
	if !strings.Contains(text, "default-src 'none'") || strings.Contains(text, "unsafe") {
		t.Error("the page's policy allows more than its script and its style")
	}
	if m := regexp.MustCompile(`(?i)\b(src|href)=|url\(|@import|https?://`).FindString(text); m != "" {
		t.Errorf("the page has %q, and must not need the network", m)
	}
}

// head is the data of a page, but for its columns.
func head(t *testing.T, text string) (m map[string]any) {
	t.Helper()
	_, after, _ := strings.Cut(text, `id="head">`)
	data, _, ok := strings.Cut(after, "</script>")
	if !ok {
		t.Fatal("the page has no data")
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// Texts cannot end the data, and findings name packets by the frames of their captures.
func TestPageData(t *testing.T) {
	c := newTape()
	c.add(0, addrA, addrB, send(1))
	c.add(10*us, addrA, addrB, send(2))
	c.add(20*us, addrB, addrA, answer(2, ack))
	other := newTape()
	other.add(5*us, addrA, addrB, send(1)) // the same at the other end
	other.add(30*us, addrA, addrB, send(3))
	hostile := `</script><script>alert(1)</script>{{script}}`
	text := page(t, ladder.Diagnosis{Verdict: hostile, Findings: []ladder.Finding{
		{File: 0, Title: hostile, Frames: []int{3, 2}},
		{File: 1, Title: "at the other end", Frames: []int{1, 2, 77}},
	}}, c, other)
	if strings.Contains(text, "<script>alert") {
		t.Error("a text has begun a script")
	}
	m := head(t, text)
	if m["verdict"] != hostile {
		t.Errorf("the verdict is %q", m["verdict"])
	}
	var got []string
	for _, f := range m["findings"].([]any) {
		got = append(got, fmt.Sprint(f.(map[string]any)["items"]))
	}
	if want := "[2 1] [0 3]"; strings.Join(got, " ") != want {
		t.Errorf("the findings are at %q, want %s", got, want)
	}
}

// In a browser the columns are what was packed: words are those of the ladder as text.
func TestPageWords(t *testing.T) {
	c := traffic(3000, 7)
	p := writeOnly(1 << 20)
	c.add(time.Second, addrA, addrB, p)
	big := wire.Packet{BTH: wire.BTH{Opcode: wire.RCCompareSwap, DestQP: qpB, PSN: 0xffffff}}
	big.AtomicETH = wire.AtomicETH{VA: 0xffff_ffff_ffff_fff8, RKey: 0xffffffff, Compare: 1<<64 - 1, SwapAdd: 1<<63 + 7}
	c.add(time.Second+1, addrA, addrB, big)
	l := draw(t, ladder.Options{All: true}, c)
	name := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(name, []byte(page(t, ladder.Diagnosis{}, c)), 0o600); err != nil {
		t.Fatal(err)
	}
	b := browsertest.Start(t).OpenFile(name)
	b.Wait(`window.ladderPage`)
	lines := browsertest.Eval[[]string](b, `Array.from({length: ladderPage.model.p.n}, (_, i) => [ladderPage.model.p.frame[i], ladderPage.model.p.time[i], ladderPage.model.words(i), ...ladderPage.model.marks(i).map((m) => m.text)].join('|'))`)
	if len(lines) != len(l.Rows) {
		t.Fatalf("the page has %d packets, want %d", len(lines), len(l.Rows))
	}
	for i := range l.Rows {
		r := &l.Rows[i]
		want := fmt.Sprintf("%d|%d|%s", r.Frame, r.At.Nanoseconds(), r.Words())
		for _, m := range r.Marks {
			want += "|" + m.Text
		}
		if lines[i] != want {
			t.Fatalf("packet %d is\n%s, want\n%s", i, lines[i], want)
		}
	}
}

func writeOnly(bytes int) wire.Packet {
	return wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, DestQP: qpB, PSN: 1}, RETH: wire.RETH{VA: 0xffff_8000_0000_0000, RKey: 9, Length: uint32(bytes)}, Payload: make([]byte, 8)}
}

// A FLUSH names memory, and writes none. An atomic has no payload, and writes 8 bytes.
func TestPageMemory(t *testing.T) {
	c := newTape()
	flush := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, DestQP: qpB, PSN: 1}, RETH: wire.RETH{VA: 0x1000, RKey: 9, Length: 64}}
	add := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFetchAdd, DestQP: qpB, PSN: 2}, AtomicETH: wire.AtomicETH{VA: 0x1008, RKey: 9, SwapAdd: 1}}
	c.add(0, addrA, addrB, flush)
	done := answer(1, ack)
	done.Opcode = wire.RCRDMAReadResponseOnly
	c.add(us, addrB, addrA, done)
	c.add(2*us, addrA, addrB, add)
	name := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(name, []byte(page(t, ladder.Diagnosis{}, c)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := browsertest.Start(t).OpenFile(name)
	p.Wait(`window.ladderPage`)
	for upTo, want := range []string{"0,0,0,0,0,0,0,0", "0,0,0,0,0,0,0,0", "0,2,0,0,0,0,0,0"} {
		if got := browsertest.Eval[string](p, fmt.Sprintf(`ladderPage.memory.fill(%d, 8)[0].cells.join()`, upTo)); got != want {
			t.Errorf("up to packet %d the memory is %s, want %s", upTo, got, want)
		}
	}
}

// Pages of very many QPs, of which each is an end, open too.
func TestPageManyEnds(t *testing.T) {
	c := newTape()
	const n = 5000
	for i := range n {
		p, q := send(i), answer(i, ack)
		p.DestQP, q.DestQP = uint32(0x1000+i), uint32(0x100000+i)
		c.add(time.Duration(2*i)*us, addrA, addrA, p)
		c.add(time.Duration(2*i+1)*us, addrA, addrA, q)
	}
	name := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(name, []byte(page(t, ladder.Diagnosis{}, c)), 0o600); err != nil {
		t.Fatal(err)
	}
	p := browsertest.Start(t).OpenFile(name)
	p.Wait(`window.ladderPage && ladderPage.drawn > 0`)
	p.Press("45j")
	if got := browsertest.Eval[int](p, `ladderPage.picture.ends.length`); got > 40 {
		t.Errorf("%d lanes are drawn", got)
	}
	p.ScreenshotTo("ADVERB_SCREENSHOTS", "many.png")
}

// A damaged page says so, and does not hang.
func TestPageDamaged(t *testing.T) {
	text := page(t, ladder.Diagnosis{}, traffic(100, 3))
	i := strings.Index(text, `id="columns">`) + len(`id="columns">`)
	end := i + strings.Index(text[i:], "<")
	packed, err := base64.StdEncoding.DecodeString(text[i:end])
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "page.html")
	cut := text[:i] + base64.StdEncoding.EncodeToString(packed[:len(packed)/2]) + text[end:]
	if err := os.WriteFile(name, []byte(cut), 0o600); err != nil {
		t.Fatal(err)
	}
	p := browsertest.Start(t).OpenFile(name)
	p.Wait(`document.getElementById('summary').textContent.includes('damaged')`)
	p.Problems()
}

// TestPageSpeed says how fast pages open and scroll:
//
//	go test ./internal/ladder -run TestPageSpeed -v
//
// The figures are for people. What fails is a page that nobody would wait for.
func TestPageSpeed(t *testing.T) {
	if testing.Short() {
		t.Skip("figures, not for short tests")
	}
	for _, n := range []int{100_000, 450_000} {
		name := filepath.Join(t.TempDir(), "page.html")
		if err := os.WriteFile(name, []byte(page(t, ladder.Diagnosis{}, traffic(n, 1))), 0o600); err != nil {
			t.Fatal(err)
		}
		b := browsertest.Start(t)
		begin := time.Now()
		p := b.OpenFile(name)
		p.Wait(`window.ladderPage && ladderPage.drawn > 0`)
		all := time.Since(begin)
		opened := browsertest.Eval[float64](p, `ladderPage.opened`)
		const scroll = `(async () => {
			const s = ladderPage.scroller, frame = () => new Promise(requestAnimationFrame), before = ladderPage.drawn;
			const begin = performance.now();
			for (let i = 0; i < 120; i++) {
				s.scrollTop = (s.scrollHeight - s.clientHeight) * i / 120;
				await frame();
			}
			return [120 / (performance.now() - begin) * 1000, ladderPage.drawn - before];
		})()`
		near := browsertest.Eval[[2]float64](p, scroll)
		p.Run(`for (let i = 0; i < 40; i++) ladderPage.zoom(0.8)`)
		far := browsertest.Eval[[2]float64](p, scroll)
		search := browsertest.Eval[float64](p, `(() => { const begin = performance.now(); ladderPage.search.value = 'nak'; ladderPage.find(); return performance.now() - begin; })()`)
		p.ScreenshotTo("ADVERB_SCREENSHOTS", fmt.Sprintf("speed-%d.png", n))
		t.Logf("%d packets: opened in %.2f s with the tab, %.2f s of it the page's; %.0f frames/s scrolled near, %.0f from far; a search for words took %.2f s",
			n, all.Seconds(), opened/1000, near[0], far[0], search/1000)
		if all > 30*time.Second || near[0] < 5 || far[0] < 2 || near[1] < 60 {
			t.Errorf("with %d packets the page is too slow to use", n)
		}
	}
}
