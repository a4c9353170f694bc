package devinfo

import (
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/verbs"
)

func TestAsyncwatchLines(t *testing.T) {
	for e, want := range map[verbs.AsyncEvent]string{
		{Type: verbs.EventPortErr, Port: 1}:    "  event_type IBV_EVENT_PORT_ERR (10), port 1",
		{Type: verbs.EventGIDChange, Port: 1}:  "  event_type IBV_EVENT_GID_CHANGE (18), port 1",
		{Type: verbs.EventQPFatal}:             "  event_type unexpected (1), port 0",
		{Type: verbs.EventSRQLimitReached}:     "  event_type unexpected (15), port 0",
		{Type: verbs.EventPortActive, Port: 2}: "  event_type IBV_EVENT_PORT_ACTIVE (9), port 2",
	} {
		if got := eventLine(e); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The program runs until it is interrupted.
func TestAsyncwatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := tool.Start(ctx, "ibv_asyncwatch", "-d", serverDevice)
	if want := serverDevice + ": async event FD -1\n"; s.FirstLine != want {
		t.Errorf("got %q, want %q", s.FirstLine, want)
	}
	cancel()
	if r := <-s.Done; r.Code != cli.StatusInterrupted || r.Stderr != "" || r.Stdout != s.FirstLine {
		t.Errorf("got %+v, want status %d and the first line only", r, cli.StatusInterrupted)
	}
}

func TestAsyncwatchArguments(t *testing.T) {
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string // prefixes
	}{
		{"-h", 0, "Usage:\n  ibv_asyncwatch  ", ""},
		{"--help", 0, "Usage:\n  ibv_asyncwatch  ", ""},
		{"-x", 1, "Usage:\n", "ibv_asyncwatch: invalid option -- 'x'\n"},
		{"-d nope", 1, "", "IB device nope not found\nadverb: "},
	} {
		code, stdout, stderr := tool.Run(t.Context(), append([]string{"ibv_asyncwatch"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.HasPrefix(stdout, tt.stdout) || !strings.HasPrefix(stderr, tt.stderr) || stderr != "" && tt.stderr == "" {
			t.Errorf("%s: got status %d, stdout %q, stderr %q, want status %d, stdout %q…, stderr %q…", tt.args, code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
		}
	}
}
