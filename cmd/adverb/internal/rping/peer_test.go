package rping

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// hostileText changes a terminal's colour, begins a line, and is no UTF-8. harmlessText is how it is printed.
const (
	hostileText  = "\x1b[31mred\r\n\xff"
	harmlessText = `\x1b[31mred\x0d\x0a\xff`
)

// advertOf describes n bytes of p.Data from the offset off on.
func advertOf(p *tooltest.Peer, off, n int) []byte {
	return advert{Remote: p.Data.Remote(off), Size: uint32(n)}.AppendTo(nil)
}

// Each step of the server, with a client that the test plays. The server reads as much as the client says. It writes
// back the text with its NUL, and no more. Escape sequences in the text are printed as text.
func TestRpingServerSteps(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	server := startServer(ctx, t, "-v -S 128")
	p := tooltest.DialPeer(ctx, t, clientDevice, serverAddr, testPort)
	const there, back = 0, 1024
	goAhead := make([]byte, advertSize)
	for _, text := range []string{"one\x00two", "\x00", "longer, and without an end", hostileText + "\x00"} {
		copy(p.Data.Bytes()[there:], text)
		rest := bytes.Repeat([]byte{0xee}, 256)
		copy(p.Data.Bytes()[back:], rest)
		p.Send(advertOf(p, there, len(text)))
		if m := p.Receive(); !bytes.Equal(m, goAhead) {
			t.Fatalf("got %x, want the go-ahead %x", m, goAhead)
		}
		p.Send(advertOf(p, back, len(text)))
		if m := p.Receive(); !bytes.Equal(m, goAhead) {
			t.Fatalf("got %x, want the go-ahead %x", m, goAhead)
		}
		want := append([]byte(text[:len(clib.String([]byte(text)))]), 0)
		got := p.Data.Bytes()[back:][:256]
		if !bytes.Equal(got[:len(want)], want) || !bytes.Equal(got[len(want):], rest[len(want):]) {
			t.Errorf("the server wrote %q, want %q and the rest as it was", got, want)
		}
	}
	p.Must(p.ID.Disconnect())
	tooltest.CheckLines(t, <-server, 0, "server ping data: one\nserver ping data: \nserver ping data: longer, and without an end\nserver ping data: "+harmlessText+"\n"+
		"server DISCONNECT EVENT...\nwait for RDMA_READ_ADV state 10\n")
}

// Each step of the client, with a server that the test plays. The adverts have 16 bytes. The data is
// where the first advert says. The content of go-aheads does not matter.
func TestRpingClientSteps(t *testing.T) {
	for _, tt := range []struct {
		flags  string
		answer func(data []byte) // the server's answer to the data
		code   int
		want   string
	}{
		{"-V -v -C 1", func([]byte) {}, 0, "ping data: rdma-ping-0: ABCDEFGHI\nclient DISCONNECT EVENT...\n"},
		{"-V -v -C 1", func(b []byte) { b[22] = 1 }, 255, "data mismatch!\nrping client failed: -1\nclient DISCONNECT EVENT...\n"},
		{"-v -C 1", func(b []byte) { copy(b, "other\x00") }, 0, "ping data: other\nclient DISCONNECT EVENT...\n"},
		{"-v -C 1", func(b []byte) { copy(b, hostileText+"\x00") }, 0, "ping data: " + harmlessText + "\nclient DISCONNECT EVENT...\n"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
		p := tooltest.ListenPeer(ctx, t, serverDevice, serverAddr, testPort)
		client := tool.Background(ctx, strings.Fields("rping -c -S 23 -p "+testPort+" --ib-dev "+clientDevice+" -a "+serverAddr+" "+tt.flags)...)
		p.Accept()
		operate := func(op verbs.Opcode) {
			m := p.Receive()
			a := decodeAdvert(m)
			if len(m) != advertSize || a.Size != 23 {
				t.Fatalf("got advert %x, want one of %d bytes about 23 bytes", m, advertSize)
			}
			p.Operate(op, a.Remote, 23)
			p.Send([]byte("sixteen bytes...")[:advertSize])
		}
		operate(verbs.OpRDMARead)
		if got, want := string(p.Data.Bytes()[:23]), "rdma-ping-0: ABCDEFGHI\x00"; got != want {
			t.Errorf("got data %q, want %q", got, want)
		}
		tt.answer(p.Data.Bytes()[:23])
		operate(verbs.OpRDMAWrite)
		p.Expect(rdmacm.EventDisconnected)
		p.Must(p.ID.Disconnect())
		tooltest.CheckLines(t, <-client, tt.code, tt.want)
		p.Close()
		cancel()
	}
}

// A message that no rping sends ends the connection with the C program's lines and a reason.
func TestRpingBogusMessage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), tooltest.Patience)
	defer cancel()
	server := startServer(ctx, t, "")
	p := tooltest.DialPeer(ctx, t, clientDevice, serverAddr, testPort)
	for range 2 { // a round, after which the server knows that it is connected
		p.Send(advertOf(p, 0, 1))
		p.Receive()
	}
	p.Send(make([]byte, 8))
	p.Expect(rdmacm.EventDisconnected)
	p.Must(p.ID.Disconnect())
	tooltest.CheckLines(t, <-server, 255, "Received bogus data, size 8\nrecv wc error: -1\nwait for RDMA_READ_ADV state 11\n"+
		"adverb: the peer's message has 8 bytes, and rping's have 16: the peer is another program\n"+
		"rping server failed: -1\nserver DISCONNECT EVENT...\n")
}
