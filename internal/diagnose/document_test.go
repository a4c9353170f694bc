package diagnose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/diagnose"
)

// docs/DIAGNOSE.md lists all rules.
func TestDocument(t *testing.T) {
	var rows strings.Builder
	rows.WriteString("| finding | | certainty | look at | means |\n|---|---|---|---|---|\n")
	for _, f := range diagnose.Rules() {
		severities, certainties := diagnose.Variants(f.ID)
		fmt.Fprintf(&rows, "| %s | %s | %s | %v | %s |\n", f.ID, listed(severities), listed(certainties), f.Side, f.Title)
	}
	compareDocument(t, "findings", rows.String())
}

// listed joins what a finding can be.
func listed[T fmt.Stringer](list []T) string {
	var s []string
	for _, x := range list {
		s = append(s, x.String())
	}
	return strings.Join(s, ", ")
}

// A finding has no severity and no certainty but those that the document lists, and each that it lists is shown by a
// conversation.
func TestVariants(t *testing.T) {
	type kind struct {
		id        string
		severity  diagnose.Severity
		certainty diagnose.Certainty
	}
	seen := map[kind]bool{}
	for _, tt := range scripts {
		s := newScript()
		tt.play(s)
		r := s.report(diagnose.Options{})
		for _, f := range append(r.Findings, r.Notes...) {
			id := f.ID
			if slices.IndexFunc(diagnose.Rules(), func(r diagnose.Finding) bool { return r.ID == id }) < 0 && strings.HasPrefix(id, "CM-REJ-") {
				id = "CM-REJ-N"
			}
			severities, certainties := diagnose.Variants(id)
			if !slices.Contains(severities, f.Severity) || !slices.Contains(certainties, f.Certainty) {
				t.Errorf("%s: %s is %v, %v; the document has %v, %v", tt.name, id, f.Severity, f.Certainty, severities, certainties)
			}
			seen[kind{id, f.Severity, f.Certainty}] = true
		}
	}
	for _, r := range diagnose.Rules() {
		severities, certainties := diagnose.Variants(r.ID)
		for _, s := range severities[1:] {
			if !slices.ContainsFunc(certainties, func(c diagnose.Certainty) bool { return seen[kind{r.ID, s, c}] }) {
				t.Errorf("no conversation shows %s as %v", r.ID, s)
			}
		}
		for _, c := range certainties[1:] {
			if !slices.ContainsFunc(severities, func(s diagnose.Severity) bool { return seen[kind{r.ID, s, c}] }) {
				t.Errorf("no conversation shows %s as %v", r.ID, c)
			}
		}
	}
}
