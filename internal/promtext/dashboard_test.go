package promtext

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/watch"
)

// dashboard is what this test reads of a Grafana dashboard.
type dashboard struct {
	Title      string
	Templating struct {
		List []struct {
			Name  string
			Query any
		}
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr string }
	}
}

// Each metric that the dashboard names is one that programs have, each counter is asked for by its rate, and each
// variable is declared.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "grafana.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	names, labels := metrics(t)
	variables := map[string]bool{"__rate_interval": true}
	var exprs []string
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if q, ok := v.Query.(map[string]any); ok {
			exprs = append(exprs, q["query"].(string))
		}
	}
	seen := map[int]bool{}
	for _, p := range d.Panels {
		if seen[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d, %q, at %+v: want an ID of its own, a title, and 24 columns", p.ID, p.Title, p.GridPos)
		}
		seen[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
			for _, name := range regexp.MustCompile(`adverb_\w+_total`).FindAllString(target.Expr, -1) {
				if !strings.Contains(target.Expr, "rate("+name) {
					t.Errorf("panel %q: %s is not under rate(): %s", p.Title, name, target.Expr)
				}
			}
		}
	}
	if len(exprs) < 20 {
		t.Fatalf("%d expressions, want those of a whole dashboard", len(exprs))
	}
	for _, e := range exprs {
		found := regexp.MustCompile(`\badverb_\w+`).FindAllString(e, -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", e)
		}
		for _, name := range found {
			if !names[name] {
				t.Errorf("%s: no program has the metric %s", e, name)
			}
		}
		for _, m := range regexp.MustCompile(`(\w+)=~?"`).FindAllStringSubmatch(e, -1) {
			if !labels[m[1]] {
				t.Errorf("%s: no metric has the label %s", e, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(e, -1) {
			if !variables[m[1]] {
				t.Errorf("%s: no variable is called %s", e, m[1])
			}
		}
		for _, pair := range []string{"()", "{}", "[]"} {
			if strings.Count(e, pair[:1]) != strings.Count(e, pair[1:]) {
				t.Errorf("%s: the %s are not in pairs", e, pair)
			}
		}
	}
}

// metrics returns the names of all metrics, and of all labels. Prometheus adds the label instance.
func metrics(t *testing.T) (names, labels map[string]bool) {
	t.Helper()
	all := map[string]uint64{}
	for _, c := range known {
		all[c.Name] = 1
	}
	p := watch.Process{Devices: []watch.Device{{Counters: all, Count: map[string]int{"qp": 1}, QP: []watch.QP{{Counters: all}}}}}
	names, labels = map[string]bool{}, map[string]bool{"instance": true}
	for line := range strings.Lines(written(t, []watch.Process{p}, 0)) {
		if name, rest, ok := strings.Cut(line, "{"); ok {
			names[name] = true
			for _, m := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(rest, -1) {
				labels[m[1]] = true
			}
		}
	}
	return names, labels
}
