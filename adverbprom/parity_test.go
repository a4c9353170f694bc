package adverbprom_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

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
	parser := expfmt.NewTextParser(model.LegacyValidation)
	read, err := parser.TextToMetricFamilies(strings.NewReader(text.String()))
	if err != nil {
		t.Fatalf("%v in what is served:\n%s", err, &text)
	}
	outside := map[string]string{}
	for _, f := range read {
		outside[f.GetName()] = strings.ToLower(f.GetType().String()) + " " + f.GetHelp()
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
