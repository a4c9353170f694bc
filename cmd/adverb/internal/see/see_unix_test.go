//go:build unix

package see

import (
	"context"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// interrupter is the user, who presses Ctrl-C when a program has printed something.
type interrupter struct {
	strings.Builder
	press func()
}

func (i *interrupter) Write(b []byte) (int, error) {
	i.press()
	return i.Builder.Write(b)
}

// A program that is interrupted is drawn all the same.
func TestInterrupted(t *testing.T) {
	ctx, press := context.WithTimeout(t.Context(), tooltest.Patience)
	var stderr strings.Builder
	stdout := &interrupter{press: press}
	code := tool.RunTo(ctx, stdout, &stderr, "adverb", "see", "--", "sh", "-c", "echo ready; exec sleep 60")
	if code != cli.StatusInterrupted || stdout.String() != "ready\nNo packets to draw.\n" || !strings.Contains(stderr.String(), "opened no software device") {
		t.Errorf("got status %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
}
