package adverbprom_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/adverbprom"
	"github.com/adverb-rdma/adverb/internal/promtext"
	"github.com/adverb-rdma/adverb/internal/watch"
	"github.com/adverb-rdma/adverb/verbs"
)

// A program that has this package, and "adverb stat --prometheus" that asks a program which has not, give the same
// metrics: name, type and help. So one dashboard fits both.
func TestParity(t *testing.T) {
	x, _ := connected(t)
	families, err := registry(t, adverbprom.WithDevices(x.Device), adverbprom.WithQueuePairs()).Gather()
	if err != nil {
		t.Fatal(err)
	}
	inside := map[string]string{}
	for _, f := range families {
		inside[f.GetName()] = strings.ToLower(f.GetType().String()) + " " + f.GetHelp()
	}
	values := func(cs verbs.Counters, err error) map[string]uint64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]uint64{}
		for _, c := range cs {
			m[c.Name] = c.Value
		}
		return m
	}
	d := watch.Device{
		Counters: values(x.Device.Counters()), Port: values(x.Device.PortCounters(1)), Count: map[string]int{"qp": 1},
		QP: []watch.QP{{Counters: values(x.QP.Counters())}},
	}
	var text strings.Builder
	if err := promtext.Write(&text, []watch.Process{{Devices: []watch.Device{d}}}, 0); err != nil {
		t.Fatal(err)
	}
	outside, help := map[string]string{}, ""
	for line := range strings.Lines(text.String()) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch {
		case len(f) == 4 && f[1] == "HELP":
			help = f[3]
		case len(f) == 4 && f[1] == "TYPE":
			outside[f[2]] = f[3] + " " + help
		}
	}
	delete(outside, "adverb_programs") // of the exporter itself
	if len(inside) < 50 || !maps.Equal(inside, outside) {
		for name, what := range inside {
			if outside[name] != what {
				t.Errorf("%s: %q inside, %q outside", name, what, outside[name])
			}
		}
		for name, what := range outside {
			if inside[name] == "" {
				t.Errorf("%s: nothing inside, %q outside", name, what)
			}
		}
		t.Errorf("%d metrics inside, %d outside, want the same ones", len(inside), len(outside))
	}
}
