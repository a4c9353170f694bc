package main

import (
	"encoding/hex"
	"strings"
	"testing"
)

// The MSG_MR that a C rdma-client sent, and the RDMA buffer's address and key that its peer then used.
func TestDemoMessageGolden(t *testing.T) {
	b, err := hex.DecodeString("000000000500000020b395d647560000307e95d64756000070f195d647560000000400000000000007000000580500005805000000000000")
	if err != nil {
		t.Fatal(err)
	}
	m, err := parseDemoMessage(b)
	want := demoMessage{kind: demoMR, addr: 0x5647d695f170, size: 1024, lkey: 0x558, rkey: 0x558}
	if err != nil || m != want {
		t.Errorf("got %+v, %v; want %+v", m, err, want)
	}
	buf := make([]byte, demoMessageSize)
	m.put(buf)
	if again, err := parseDemoMessage(buf); err != nil || again != m {
		t.Errorf("comes back as %+v, %v", again, err)
	}
	if _, err := parseDemoMessage(b[:55]); err == nil {
		t.Error("short message accepted")
	}
	b[0] = 9
	if _, err := parseDemoMessage(b); err == nil || !strings.Contains(err.Error(), "message type 9") {
		t.Errorf("unknown type: %v", err)
	}
}

func TestDemoView(t *testing.T) {
	var b strings.Builder
	v := newDemoView(&b, false)
	v.say(demoServer, "peer disconnected.", "note")
	v.say(demoClient, "received MSG_MR. writing message to remote memory...", "note")
	v.note(demoServer, "n %d", 1)
	v.packet(demoClient, []byte{1})
	diffLines(t, b.String(), ""+
		"server  peer disconnected.              | note\n"+
		"client  received MSG_MR. writing message to remote memory...\n"+
		"                                        | note\n"+
		"server                                  | n 1\n"+
		"client  --> server                      | cannot be decoded\n")
}
