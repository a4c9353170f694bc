package rnic

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/iwarp"
	"github.com/adverb-rdma/adverb/internal/link/pcap"
	"github.com/adverb-rdma/adverb/internal/link/trace"
	"github.com/adverb-rdma/adverb/internal/mpa"
)

// lockedBuffer is a bytes.Buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// readFrame reads an MPA frame. Nothing is behind it yet.
func readFrame(t *testing.T, c net.Conn) mpa.Frame {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, mpa.MaxFrame)
	for n := 0; ; {
		k, err := c.Read(b[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
		if f, _, err := mpa.DecodeFrame(b[:n]); err == nil {
			_ = c.SetReadDeadline(time.Time{})
			return f
		}
	}
}

// TestCapture has a second opinion on the bytes of a stream: tshark's dissectors of MPA, DDP and RDMAP, which share
// no code with this project, on the capture of one end, with CRCs and markers and without. The trace has a line for
// each message.
func TestCapture(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	for _, c := range []struct{ crc, markers bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("crc=%v markers=%v", c.crc, c.markers), func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "test.pcapng")
			file, err := os.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			w, err := pcap.New(file, pcap.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var lines lockedBuffer
			x, y := ends(t)
			a, b := tcpPair(t)
			sent, received := iwarp.Tracers()
			a = trace.Stream(w.Stream(a), &lines, "dev", time.Now(), sent, received)
			offer := mpa.Offer{CRC: c.crc, Markers: c.markers, IRD: 8, ORD: 8}
			request := offer.Request()
			if _, err := a.Write(request.AppendTo(nil)); err != nil {
				t.Fatal(err)
			}
			request = readFrame(t, b)
			reply, ty := offer.Answer(&request) // which asks for the same
			if _, err := b.Write(reply.AppendTo(nil)); err != nil {
				t.Fatal(err)
			}
			reply = readFrame(t, a)
			tx, err := offer.Settle(&reply)
			if err != nil {
				t.Fatal(err)
			}
			x.attach(a, tx)
			y.attach(b, ty)
			exchange(t, x, y, 1000)
			x.prov.Shutdown(x.qp.QPN())
			y.ended()
			y.must(y.qp.Close())
			x.ended()
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if !c.markers { // tshark loses its place in a marked segment of several FPDUs
				wantDecoded(t, tshark, name)
			}
			if text := lines.String(); !strings.Contains(text, "MPA request rev=2") || !strings.Contains(text, "Atomic Request") || strings.Contains(text, "FPDU: ") {
				t.Errorf("the trace has no MPA request, no atomic, or an FPDU that does not decode:\n%.2000s\nwant both, and all FPDUs decoded", text)
			}
		})
	}
}

// wantDecoded checks that tshark decodes a capture of exchange: each kind of message, and nothing malformed.
func wantDecoded(t *testing.T, tshark, name string) {
	t.Helper()
	// The payload is none of the protocols that tshark guesses.
	out, err := exec.Command(tshark, "-r", name, "--disable-protocol", "rpcordma", "-T", "fields",
		"-e", "_ws.malformed", "-e", "iwarp_rdma.opcode", "-Y", "iwarp_mpa || _ws.malformed").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	count := map[string]int{}
	for line := range strings.Lines(string(out)) {
		malformed, opcodes, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		if malformed != "" {
			t.Errorf("tshark finds %s, want nothing malformed", malformed)
		}
		for opcode := range strings.SplitSeq(opcodes, ",") {
			count[opcode]++
		}
	}
	// A WRITE each and the one that says that the initiator is ready, two each of SENDs, atomic requests and
	// responses, READ requests and responses, and a READ more before the end.
	for opcode, want := range map[string]int{"0x00": 3, "0x01": 3, "0x02": 3, "0x03": 2, "0x0a": 2, "0x0b": 2} {
		if count[opcode] != want {
			t.Errorf("tshark finds %d messages of opcode %s, want %d: all are %v", count[opcode], opcode, want, count)
		}
	}
}
