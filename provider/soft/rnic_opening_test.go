package soft_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/internal/mpa"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestIWARPOpening: a listener does not answer who speaks another protocol, and refuses an initiator that sends
// before it has the reply, and one whose revision it does not know: by a reply of a revision that it knows.
func TestIWARPOpening(t *testing.T) {
	_, name := rnics(t, 47, 48)
	dev, err := verbs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	l, err := (&rdmacm.ListenConfig{Devices: []*verbs.Device{dev}}).Listen(netip.AddrPortFrom(netip.MustParseAddr(loopAddr(48)), 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	request := (&mpa.Offer{IRD: 1, ORD: 1}).Request()
	good, newer := request.AppendTo(nil), request.AppendTo(nil)
	newer[17] = 9 // the revision
	for name, c := range map[string]struct {
		bytes    []byte
		answered bool
	}{
		"another protocol":     {[]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), false},
		"early FPDU":           {append(good, 0, 0, 0, 0, 0, 0, 0, 0), true},
		"revision of tomorrow": {newer, true},
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		conn.(*net.TCPConn).CloseWrite()
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(conn)
		conn.Close()
		if !c.answered {
			if len(b) > 0 {
				t.Errorf("%s: got %x, want no answer", name, b)
			}
			continue
		}
		f, _, derr := mpa.DecodeFrame(b)
		if derr != nil || err != nil || !f.Reply || !f.Reject || f.Revision > mpa.Revision2 {
			t.Errorf("%s: got %+v, %v, %v; want a reply that says no, of a revision up to 2", name, f, derr, err)
		}
	}
}
