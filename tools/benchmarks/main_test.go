package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page and its plots come from a run that holds a bit of everything: a peer that is missing, one
// that failed, a network that was skipped.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := write(filepath.Join("testdata", "data.json"), dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "BENCHMARKS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| measured | 2026-01-02 03:04 UTC |", "| machine | Toy, 2 CPUs, amd64 |",
		"A cache line takes 155 ns from core to core (60–250 over the rounds).",
		"| adverb | 0123456789ab, built with a profile (-pgo) |", "does not take it: the column",
		"| | median | adverb ÷ it | no profile ÷ it | cores | |\n|---|---|---|---|---|---|\n",
		"| adverb | 1.50 M/s (1.00–2.00) |  | 0.90 (0.90–0.90) |  | 1.10 packets an operation, sent again: 6; 0.05 allocations an operation |",
		"| adverb, no profile | 1.35 M/s (0.90–1.80) | 1.11 (1.11–1.11) |  |  |  |",
		"| probe (limit) | 3.00 M/s (2.00–4.00) | 0.50 (0.50–0.50) | 0.45 (0.45–0.45) |  |  |",
		"| Go TCP | 1.00 M/s (1.00–1.00) | 2.00 (2.00–2.00) | 1.80 (1.80–1.80) |  | failed in 1 of 2 rounds: reset by \\|peer; one Write each |",
		"| UCX tcp |  |  |  |  | not installed |", "Not measured: needs root.",
		"| | median | adverb ÷ it | cores | |\n|---|---|---|---|---|\n| adverb | 3.00 µs (3.00–3.00) |  | 1.00 + 0.50 |  |\n",
		"| probe | 3.50 µs (3.50–3.50) |", // beaten
		"![rate over loopback](benchmarks/loopback-rate.svg)",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("got no line with %q in\n%s", want, page)
		}
	}
	if strings.Contains(string(page), "libfabric") {
		t.Errorf("got a line of a peer that has nothing like the workload in\n%s\nwant none", page)
	}
	plots, err := filepath.Glob(filepath.Join(dir, plotDir, "*"))
	if err != nil || len(plots) != 2 {
		t.Fatalf("got the plots %q, %v, want those of rate and latency", plots, err)
	}
	for _, name := range plots {
		texts := svgTexts(t, name)
		for _, want := range []string{"adverb", "Go TCP"} {
			if !strings.Contains(texts, want) {
				t.Errorf("%s: got the texts %q, want %q among them", name, texts, want)
			}
		}
		if strings.Contains(texts, "UCX") {
			t.Errorf("%s: got the texts %q, want no peer without a value", name, texts)
		}
	}
}

// svgTexts are the texts of an SVG file, which must be whole XML.
func svgTexts(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var texts strings.Builder
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c, ok := token.(xml.CharData); ok {
			texts.Write(c)
		}
	}
}

func TestBadData(t *testing.T) {
	for _, content := range []string{"", "{", `{"networks": 5}`, "{}"} {
		name := filepath.Join(t.TempDir(), "data.json")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := write(name, t.TempDir()); err == nil || !strings.Contains(err.Error(), "read "+name) {
			t.Errorf("%q: got %v, want an error that names the file", content, err)
		}
	}
}
