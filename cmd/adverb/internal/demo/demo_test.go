package demo

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

func TestDemoView(t *testing.T) {
	var b strings.Builder
	v := newView(&b, false)
	v.say(roleServer, "peer disconnected.", "note")
	v.say(roleClient, "received MSG_MR. writing message to remote memory...", "note")
	v.note(roleServer, "n %d", 1)
	v.packet(roleClient, []byte{1})
	tooltest.DiffLines(t, b.String(), ""+
		"server  peer disconnected.              | note\n"+
		"client  received MSG_MR. writing message to remote memory...\n"+
		"                                        | note\n"+
		"server                                  | n 1\n"+
		"client  --> server                      | cannot be decoded\n")
}

// An end operates once, when both regions are known: whatever else has come by then.
func TestMayOperate(t *testing.T) {
	for _, tt := range []struct {
		sent     sendProgress
		received recvProgress
		operated bool
		want     bool
	}{
		{sentNothing, receivedNothing, false, false}, {sentNothing, mrReceived, false, false}, {mrSent, receivedNothing, false, false},
		{mrSent, mrReceived, false, true}, {mrSent, doneReceived, false, true}, {mrSent, doneReceived, true, false}, {rdmaSent, doneReceived, true, false},
		{sentNothing, doneReceived, false, false},
	} {
		e := end{sendState: tt.sent, recvState: tt.received, operated: tt.operated}
		if got := e.mayOperate(); got != tt.want {
			t.Errorf("sent %d, received %d, operated %v: got %v, want %v", tt.sent, tt.received, tt.operated, got, tt.want)
		}
	}
}
