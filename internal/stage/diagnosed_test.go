package stage

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/wire"
)

var update = flag.Bool("update", false, "write the lab's table in docs/DIAGNOSE.md")

// frame is a packet as a capture has it.
type frame struct {
	at   time.Duration
	end  int // 0 is A's capture, 1 is B's
	data []byte
}

// framesOf returns the packets of a play, each where it was sent and where it arrived.
func framesOf(s *Stage) (list []frame) {
	ends := map[*node]int{s.a: 0, s.b: 1}
	for _, p := range s.packets {
		sent := bytes.Clone(p.data)
		if p.Damaged { // on its way
			sent[wire.BTHSize+(len(sent)-wire.BTHSize)/2] ^= 0x10
		}
		if p.CopyOf == 0 {
			at := p.Sent
			if p.Fate == Arrived { // "deliver now" spares a packet even its wait for the link
				at = min(at, p.Ended)
			}
			list = append(list, frame{at, ends[p.From], inIP(p, sent)})
		}
		if p.Fate == Arrived {
			list = append(list, frame{p.Ended, ends[p.To], inIP(p, p.data)})
		}
	}
	slices.SortStableFunc(list, func(a, b frame) int { return cmp.Compare(a.at, b.at) })
	return list
}

// inIP puts the headers of IP and UDP before a packet.
func inIP(p *Packet, payload []byte) []byte {
	const ip, udp = 20, 8
	b := make([]byte, ip+udp, ip+udp+len(payload))
	b[0], b[1], b[6], b[8], b[9] = 0x45, p.meta.TrafficClass, 0x40, 64, 17
	binary.BigEndian.PutUint16(b[2:], uint16(ip+udp+len(payload)))
	binary.BigEndian.PutUint16(b[4:], uint16(100+cmp.Or(p.CopyOf, p.N))) // as cards count; the ICRC is that of 0, which is a note
	copy(b[12:], p.From.addr.AsSlice())
	copy(b[16:], p.To.addr.AsSlice())
	binary.BigEndian.PutUint16(b[ip:], p.meta.Src.Port())
	binary.BigEndian.PutUint16(b[ip+2:], wire.UDPPort)
	binary.BigEndian.PutUint16(b[ip+4:], uint16(udp+len(payload)))
	return append(b, payload...)
}

// diagnosed returns the findings in captures of a play: at A, at B, and of both.
func diagnosed(t *testing.T, s *Stage) (ids [3]string) {
	t.Helper()
	const rawIP = 101
	frames := framesOf(s)
	for i := range ids {
		var file bytes.Buffer
		w, err := pcap.NewFrames(&file, "test")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"A", "B"} {
			if _, err := w.AddInterface(name, rawIP); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range frames {
			if i < 2 && f.end != i {
				continue
			}
			if err := w.Write(f.end, time.Unix(1_700_000_000, 0).Add(f.at), f.data); err != nil {
				t.Fatal(err)
			}
		}
		r, err := diagnose.File(&file, diagnose.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, f := range r.Findings {
			list = append(list, f.ID)
		}
		slices.Sort(list)
		ids[i] = cmp.Or(strings.Join(slices.Compact(list), ", "), "nothing")
	}
	return ids
}

// diagnosedPlays are lessons and decisions, and the findings that captures of them must have, at A, at B and of both.
var diagnosedPlays = []struct {
	what, link string
	want       [3]string
}{
	{"any of SEND, WRITE, READ, atomics, MTU, a connection, free play", "l=send", [3]string{"nothing", "nothing", "nothing"}},
	{"", "l=write", [3]string{"nothing", "nothing", "nothing"}},
	{"", "l=read", [3]string{"nothing", "nothing", "nothing"}},
	{"", "l=atomic", [3]string{"nothing", "nothing", "nothing"}},
	{"", "l=mtu", [3]string{"nothing", "nothing", "nothing"}},
	{"", "l=connect", [3]string{"nothing", "nothing", "nothing"}},
	{"", "l=free", [3]string{"nothing", "nothing", "nothing"}},
	{"loss: nothing is done", "l=loss", [3]string{"nothing", "nothing", "nothing"}},
	{"loss: drop PSN 1", "l=loss&d=2x2", [3]string{"LOSS-NAK", "LOSS-NAK", "LOSS-NAK, LOSS-PATH"}},
	{"loss: drop the last packet", "l=loss&d=2x6", [3]string{"LOSS-TIMEOUT", "nothing", "LOSS-PATH, LOSS-TIMEOUT"}},
	{"loss: damage PSN 1", "l=loss&d=2b2", [3]string{"LOSS-NAK", "ICRC-BAD, LOSS-NAK", "ICRC-BAD, LOSS-NAK"}},
	{"loss: copy PSN 1", "l=loss&d=2c2", [3]string{"nothing", "DUP", "DUP"}},
	{"loss: delay PSN 1", "l=loss&d=2l2", [3]string{"LOSS-NAK", "REORDER", "REORDER"}},
	{"loss: deliver PSN 2 now", "l=loss&d=2n3", [3]string{"LOSS-NAK", "REORDER", "REORDER"}},
	{"loss: cut the link", "l=loss&d=2k", [3]string{"RC-DIED", "nothing", "RC-DIED"}},
	{"selective repeat: drop PSN 1", "l=selective&d=2x2", [3]string{"LOSS-NAK", "LOSS-NAK", "LOSS-NAK, LOSS-PATH"}},
	{"a connection: drop the REQ", "l=connect&d=1x1", [3]string{"CM-REPEAT", "nothing", "CM-REPEAT, LOSS-PATH"}},
	{"receiver not ready", "l=rnr", [3]string{"RNR", "RNR", "RNR"}},
	{"keys and refusals", "l=keys", [3]string{"NAK-ACCESS", "NAK-ACCESS", "NAK-ACCESS"}},
	{"adaptive routing", "l=routing", [3]string{"nothing", "REORDER", "REORDER"}},
	{"adaptive routing, switched off", "l=routing&routing=0", [3]string{"LOSS-NAK", "LOSS-NAK, REORDER", "REORDER"}},
}

// What the lab's buttons do to packets has its findings in captures. docs/DIAGNOSE.md has the table.
func TestDiagnosed(t *testing.T) {
	rows := "| in the lab | captured at A | at B | at both |\n|---|---|---|---|\n"
	for _, tt := range diagnosedPlays {
		got := diagnosed(t, play(t, tt.link))
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.link, got, tt.want)
		}
		if tt.what != "" {
			rows += "| " + tt.what + " | " + strings.Join(got[:], " | ") + " |\n"
		}
	}
	if t.Failed() {
		return
	}
	const name, begin, end = "../../docs/DIAGNOSE.md", "<!-- lab -->\n", "<!-- end of lab -->\n"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	front, rest, _ := strings.Cut(string(b), begin)
	have, back, ok := strings.Cut(rest, end)
	switch {
	case !ok:
		t.Fatalf("%s has no part for the lab", name)
	case *update:
		if err := os.WriteFile(name, []byte(front+begin+rows+end+back), 0o644); err != nil {
			t.Fatal(err)
		}
	case have != rows:
		t.Errorf("%s: the lab's part is not what the code says: go test ./internal/stage -update", name)
	}
}
