package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// However a command ends, an interruption has one status and one text.
func TestFinish(t *testing.T) {
	failure := errors.New("failure")
	for _, tt := range []struct {
		name        string
		interrupted bool
		endless     bool
		err         error
		code        int
		stderr      string
	}{
		{"success", false, false, nil, ExitOK, ""},
		{"success at the last moment", true, false, nil, ExitOK, ""},
		{"failure", false, false, failure, 7, "adverb: failure\n"},
		{"reported failure", false, false, ErrReported, 7, ""},
		{"interruption", true, false, failure, StatusInterrupted, "adverb: interrupted\n"},
		{"interruption of a command that has no other end", true, true, context.Canceled, StatusInterrupted, ""},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if tt.interrupted {
			cancel()
		}
		var stderr strings.Builder
		inv := &Invocation{Ctx: ctx, Stderr: &stderr, Endless: tt.endless}
		code := inv.Finish(tt.err, func(err error) int { return inv.ExplainUnlessReported(err, 7) })
		if code != tt.code || stderr.String() != tt.stderr {
			t.Errorf("%s: got status %d, stderr %q; want %d, %q", tt.name, code, stderr.String(), tt.code, tt.stderr)
		}
		cancel()
	}
}

// A command whose output does not get anywhere has failed, and says so once.
func TestOutput(t *testing.T) {
	full := errors.New("no space left on device")
	for _, argv := range [][]string{{"adverb"}, {"adverb", "--help"}, {"adverb", "help"}, {"adverb", "completion", "bash"}, {"adverb", "lines"}, {"adverb", "json"}, {"adverb", "fails"}} {
		tool := &Tool{Name: "adverb", Commands: []*Command{
			{Name: "lines", Run: func(inv *Invocation) int { inv.Printf("one\n"); inv.LockOutput().Printf("two\n"); return ExitOK }},
			{Name: "json", Run: func(inv *Invocation) int { return inv.PrintJSON(1) }},
			{Name: "fails", Run: func(inv *Invocation) int { inv.Printf("one\n"); return inv.Fail(full, "") }},
		}}
		var stderr strings.Builder
		code := tool.Run(t.Context(), argv, strings.NewReader(""), failing{full}, &stderr)
		if want := "adverb: " + full.Error() + "\n"; code != ExitError || stderr.String() != want {
			t.Errorf("%v: got status %d, stderr %q, want %d, %q", argv, code, stderr.String(), ExitError, want)
		}
	}
}

// A command that has done all its work fails with an error at its end.
func TestAtEnd(t *testing.T) {
	var ends error
	tool := &Tool{Name: "adverb", AtEnd: func() error { return ends }, Commands: []*Command{
		{Name: "works", Run: func(inv *Invocation) int { return ExitOK }},
		{Name: "fails", Run: func(inv *Invocation) int { return 7 }},
	}}
	for _, tt := range []struct {
		name string
		ends error
		code int
		says string
	}{
		{"works", nil, ExitOK, ""},
		{"works", errors.New("no space left on device"), ExitError, "adverb: no space left on device\n"},
		{"fails", errors.New("no space left on device"), 7, ""}, // and has said why
	} {
		ends = tt.ends
		var stderr strings.Builder
		if code := tool.Run(t.Context(), []string{"adverb", tt.name}, nil, io.Discard, &stderr); code != tt.code || stderr.String() != tt.says {
			t.Errorf("%s, then %v: got status %d, stderr %q, want %d, %q", tt.name, tt.ends, code, stderr.String(), tt.code, tt.says)
		}
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
