package diagnose

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/capture"
	"github.com/adverb-rdma/adverb/internal/wire"
)

var (
	oneEnd   = netip.MustParseAddrPort("127.7.8.1:50001")
	otherEnd = netip.MustParseAddrPort("127.7.8.2:50002")
)

// refused is a WRITE to the other end, and its NAK.
func refused() (request, nak []byte) {
	seal := func(from, to netip.AddrPort, w wire.Packet) []byte {
		w.PKey = wire.DefaultPKey
		b := w.AppendTo(nil)
		flow := wire.NewFlow(from, netip.AddrPortFrom(to.Addr(), wire.UDPPort))
		flow.Seal(0, b)
		return b
	}
	request = seal(oneEnd, otherEnd, wire.Packet{BTH: wire.BTH{Opcode: wire.RCRDMAWriteOnly, DestQP: 0x22, PSN: 7, AckReq: true}, RETH: wire.RETH{RKey: 5, Length: 8}, Payload: make([]byte, 8)})
	nak = seal(otherEnd, oneEnd, wire.Packet{BTH: wire.BTH{Opcode: wire.RCAcknowledge, DestQP: 0x11, PSN: 7}, AETH: wire.AETH{Syndrome: wire.SyndromeNAK(wire.NAKRemoteAccessError)}})
	return request, nak
}

// runLines runs the command, and returns its lines as they come and its status.
func runLines(ctx context.Context, t *testing.T, args ...string) (lines <-chan string, status <-chan int) {
	r, w := io.Pipe()
	l, s := make(chan string, 1000), make(chan int, 1)
	go func() {
		s <- tooltest.New(Command).RunTo(ctx, w, w, append([]string{"adverb", "diagnose"}, args...)...)
		w.Close()
	}()
	go func() {
		for in := bufio.NewScanner(r); in.Scan(); {
			l <- in.Text()
		}
		close(l)
	}()
	return l, s
}

// await returns the first line that contains a text.
func await(t *testing.T, lines <-chan string, text string) string {
	t.Helper()
	var before []string
	for l := range lines {
		if strings.Contains(l, text) {
			return l
		}
		before = append(before, l)
	}
	t.Fatalf("no line has %q:\n%s", text, strings.Join(before, "\n"))
	return ""
}

// A capture at an interface tells of a finding as soon as it is certain, and of all at Ctrl-C.
func TestInterface(t *testing.T) {
	if l, err := capture.OpenLive("lo"); errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skip(err)
	} else if err == nil {
		l.Close()
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	lines, status := runLines(ctx, t, "-i", "lo")
	await(t, lines, "Capturing at lo")
	request, nak := refused()
	for _, p := range []struct {
		from, to netip.AddrPort
		b        []byte
	}{{oneEnd, otherEnd, request}, {otherEnd, oneEnd, nak}} {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(p.from))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.WriteToUDPAddrPort(p.b, netip.AddrPortFrom(p.to.Addr(), wire.UDPPort)); err != nil {
			t.Fatal(err)
		}
	}
	await(t, lines, "ERROR NAK-ACCESS: The peer refused access to its memory (127.7.8.1 → 127.7.8.2, to QP 0x000022 from QP 0x000011)")
	interrupt()
	await(t, lines, "ERROR NAK-ACCESS (proven)")
	if s := <-status; s != exitFindings {
		t.Errorf("status %d, want %d", s, exitFindings)
	}
}

// A pipe of packets that are being captured is read as it grows.
func TestPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	lines, status := runLines(t.Context(), t, "--json", name)
	w, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b23c4d)
	file = append(file, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0)
	request, nak := refused()
	packet := func(from, to netip.AddrPort, b []byte) {
		n, at, be, le := 28+len(b), time.Now(), binary.BigEndian, binary.LittleEndian
		file = le.AppendUint32(le.AppendUint32(file, uint32(at.Unix())), uint32(at.Nanosecond()))
		file = le.AppendUint32(le.AppendUint32(file, uint32(n)), uint32(n))
		file = be.AppendUint16(append(file, 0x45, 0), uint16(n))
		file = append(file, 0, 0, 0x40, 0, 64, 17, 0, 0)
		file = append(append(file, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		file = be.AppendUint16(be.AppendUint16(file, from.Port()), wire.UDPPort)
		file = append(append(be.AppendUint16(file, uint16(8+len(b))), 0, 0), b...)
	}
	packet(oneEnd, otherEnd, request)
	packet(otherEnd, oneEnd, nak)
	if _, err := w.Write(file); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Time    string
		Finding struct{ ID, Severity string }
		Report  struct{ Findings []struct{ ID string } }
	}
	if err := json.Unmarshal([]byte(await(t, lines, `"finding"`)), &got); err != nil || got.Finding.ID != "NAK-ACCESS" || got.Finding.Severity != "error" || got.Time == "" {
		t.Errorf("%+v, %v; want the error NAK-ACCESS", got, err)
	}
	w.Close()
	if err := json.Unmarshal([]byte(await(t, lines, `"report"`)), &got); err != nil || len(got.Report.Findings) != 1 || got.Report.Findings[0].ID != "NAK-ACCESS" {
		t.Errorf("%+v, %v; want a report with NAK-ACCESS", got, err)
	}
	if s := <-status; s != exitFindings {
		t.Errorf("status %d, want %d", s, exitFindings)
	}
}
