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

// Pictures are drawn in the theme's colours alone, and each series of the largest figure has a colour of its own.
func TestThemed(t *testing.T) {
	dir := t.TempDir()
	if err := writeCharts(filepath.Join("testdata", "charts.json"), dir); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "toy.svg"))
	if err != nil {
		t.Fatal(err)
	}
	head, picture, ok := strings.Cut(string(svg), "</style>")
	if !ok || !strings.Contains(head, "prefers-color-scheme:dark") || !strings.Contains(head, "--ground:") {
		t.Errorf("the picture does not define the colours of the theme:\n%s", head)
	}
	if at := strings.Index(picture, "#"); at >= 0 {
		t.Errorf("a colour has no name: %q", picture[at:min(len(picture), at+20)])
	}
	if !strings.Contains(picture, "fill:var(--ground)") || !strings.Contains(picture, "stroke:var(--series3)") {
		t.Error("the ground or the second line does not have its colour")
	}
	if _, err := themed([]byte(`<svg><path style="fill:#123456"/></svg>`)); err == nil {
		t.Error("a colour without a name: got no error, want one")
	}
	if len(darkColors) != len(colors) || len(names) != len(colors)+3 {
		t.Errorf("%d colours, %d of them in the dark, and %d names: want as many, and 3 names more", len(colors), len(darkColors), len(names))
	}
}
