package diagnose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/diagnose"
)

// docs/DIAGNOSE.md lists all rules.
func TestDocument(t *testing.T) {
	var rows strings.Builder
	rows.WriteString("| finding | | certainty | look at | means |\n|---|---|---|---|---|\n")
	for _, f := range diagnose.Rules() {
		fmt.Fprintf(&rows, "| %s | %v | %v | %v | %s |\n", f.ID, f.Severity, f.Certainty, f.Side, f.Title)
	}
	compareDocument(t, "findings", rows.String())
}
