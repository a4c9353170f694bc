package cli

import (
	"errors"
	"strings"
	"testing"
)

// Where the API's remedy names a setting that a user cannot give, the line names the flag, or says that there is
// none.
func TestReword(t *testing.T) {
	refused := errors.New("connect: the listener demands packet security: set Config.Security, with its pre-shared key")
	for _, tt := range []struct {
		cmd  *Command
		want string
	}{
		{&Command{Flags: []Flag{{Long: "psk"}}}, "adverb: connect: the listener demands packet security: give --psk FILE, with the listener's key\n"},
		{&Command{}, "adverb: connect: the listener demands packet security: this command has no --psk, so start the listener without it\n"},
		{nil, "adverb: connect: the listener demands packet security: this command has no --psk, so start the listener without it\n"},
	} {
		var stderr strings.Builder
		(&Invocation{Cmd: tt.cmd, Stderr: &stderr}).Explain(refused)
		if stderr.String() != tt.want {
			t.Errorf("got %q, want %q", &stderr, tt.want)
		}
	}
}
