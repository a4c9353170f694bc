package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A chart has the title of each column, each axis once, a legend where there are several lines, and ticks of one
// scale in a row.
func TestWriteCharts(t *testing.T) {
	dir := t.TempDir()
	if err := writeCharts(filepath.Join("testdata", "charts.json"), dir); err != nil {
		t.Fatal(err)
	}
	texts := svgTexts(t, filepath.Join(dir, "toy.svg"))
	for want, n := range map[string]int{"left": 1, "right": 1, "ms": 2, "goodput, Gbit/s": 1, "queue, KiB": 1, "sender 1": 1, "sender 2": 1, "300": 2, "25.00": 0} {
		if got := strings.Count(texts, want); got != n {
			t.Errorf("%q is there %d times, want %d: %q", want, got, n, texts)
		}
	}
}

// What is no chart is refused, with a word.
func TestWriteChartsRefuses(t *testing.T) {
	for name, data := range map[string]string{
		"no JSON": "x", "no chart": "{}",
		"a panel too few":   `{"charts":[{"name":"a","columns":["x","y"],"rows":[[{"lines":[{"x":[1],"y":[1]}]}]]}]}`,
		"a value too few":   `{"charts":[{"name":"a","columns":["x"],"rows":[[{"lines":[{"x":[1,2],"y":[1]}]}]]}]}`,
		"a line of nothing": `{"charts":[{"name":"a","columns":["x"],"rows":[[{"lines":[{"title":"l"}]}]]}]}`,
	} {
		file := filepath.Join(t.TempDir(), "charts.json")
		if err := os.WriteFile(file, []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := writeCharts(file, t.TempDir()); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}
