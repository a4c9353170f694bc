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
