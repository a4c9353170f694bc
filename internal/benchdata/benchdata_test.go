package benchdata

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{1, 3, 3, 3}},
		{[]float64{3, 1}, Spread{2, 2, 1, 3}},
		{[]float64{5, 1, 9}, Spread{3, 5, 1, 9}},
		{[]float64{4, 1, 9, 2}, Spread{4, 3, 1, 9}},
	} {
		before := append([]float64(nil), tt.values...)
		if got := NewSpread(tt.values); got != tt.want {
			t.Errorf("%v: got %+v, want %+v", tt.values, got, tt.want)
		}
		if !reflect.DeepEqual(before, tt.values) {
			t.Errorf("%v: got the values sorted, want them left alone: %v", before, tt.values)
		}
	}
}

func cells(values ...float64) (list []Cell) {
	for _, v := range values {
		c := Cell{Value: v}
		if v < 0 {
			c.Failed = "broken"
		}
		list = append(list, c)
	}
	return list
}

// Ratios are taken within the rounds, not between medians, and without rounds that failed.
func TestRatios(t *testing.T) {
	for _, tt := range []struct {
		what string
		a, b []Cell
		want Spread
	}{
		{"a machine that slows down", cells(100, 10, 1), cells(50, 10, 4), Spread{3, 1, 0.25, 2}},
		{"failures at either", cells(100, -1, 30), cells(50, 10, -1), Spread{1, 2, 2, 2}},
		{"fewer rounds", cells(100, 10), cells(50), Spread{1, 2, 2, 2}},
		{"nothing moved", cells(100), cells(0), Spread{}},
		{"none", nil, nil, Spread{}},
	} {
		a, b := Series{Cells: tt.a}, Series{Cells: tt.b}
		if got := a.Ratios(&b); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.what, got, tt.want)
		}
	}
}

func TestSeries(t *testing.T) {
	s := Series{Cells: cells(1, -1, 3, -1)}
	s.Cells[0].Counts, s.Cells[0].Ops = &Counts{Allocs: 5, Packets: 20, Repeats: 1}, 10
	s.Cells[2].Counts, s.Cells[2].Ops = &Counts{Allocs: 2, Repeats: 3, RNRNAKs: 2}, 20
	if got := s.Values(); !reflect.DeepEqual(got, []float64{1, 3}) {
		t.Errorf("values: got %v, want 1 and 3", got)
	}
	if n, cause := s.Failures(); n != 2 || cause != "broken" {
		t.Errorf("failures: got %d of cause %q, want 2, broken", n, cause)
	}
	if sum, ops, ok := s.Counts(); sum != (Counts{7, 20, 4, 2}) || ops != 30 || !ok {
		t.Errorf("counts: got %+v of %d operations, %v, want 7, 20, 4 and 2 of 30", sum, ops, ok)
	}
	if _, _, ok := (&Series{Cells: cells(1)}).Counts(); ok {
		t.Error("counts of a peer that does not tell: got some, want none")
	}
	for _, tt := range []struct {
		c    Counts
		want string
	}{{Counts{Repeats: 7}, "7"}, {Counts{Repeats: 7, RNRNAKs: 2}, "7 (2 RNR NAKs)"}} {
		if got := tt.c.RepeatsText(); got != tt.want {
			t.Errorf("repeats: got %q, want %q", got, tt.want)
		}
	}
	w := Workload{Title: "WRITE", Outstanding: 16}
	if got := w.Label(); got != "WRITE, 16 at a time" {
		t.Errorf("label: got %q, want the operations in it", got)
	}
	if w.Outstanding = 1; w.Label() != "WRITE" {
		t.Errorf("label: got %q, want the title alone", w.Label())
	}
	r := Row{Series: []Series{{Peer: "a"}, {Peer: "b"}}}
	if r.Find("b") != &r.Series[1] || r.Find("c") != nil {
		t.Error("Find: got another series than the peer's")
	}
}

func TestFormat(t *testing.T) {
	for _, tt := range []struct {
		unit Unit
		v    float64
		want string
	}{
		{PerSecond, 1.314e6, "1.31 M/s"}, {PerSecond, 52_400, "52.4 k/s"}, {PerSecond, 7, "7.00 /s"},
		{BytesPerSecond, 8.4e9, "8.40 GB/s"}, {BytesPerSecond, 14.51e9, "14.5 GB/s"}, {BytesPerSecond, 380e6, "380 MB/s"},
		{BytesPerSecond, 90e3, "90.0 kB/s"},
		{Seconds, 2.94e-6, "2.94 µs"}, {Seconds, 170e-9, "0.17 µs"}, {Seconds, 1.7e-3, "1.70 ms"},
	} {
		if got := tt.unit.Format(tt.v); got != tt.want {
			t.Errorf("%v %s: got %q, want %q", tt.v, tt.unit, got, tt.want)
		}
	}
	s := NewSpread([]float64{0.9e6, 1.2e6, 1.5e6})
	if got, want := PerSecond.FormatRange(s), "0.90–1.50"; got != want { // in the median's unit
		t.Errorf("range: got %q, want %q", got, want)
	}
	if got, want := FormatRatio(NewSpread([]float64{0.5, 0.8, 12})), "0.80 (0.50–12.0)"; got != want {
		t.Errorf("ratio: got %q, want %q", got, want)
	}
	if got := FormatRatio(Spread{}); got != "" {
		t.Errorf("no ratio: got %q, want nothing", got)
	}
}

// The JSON reads back as what was written.
func TestJSON(t *testing.T) {
	want := Report{Rounds: 2, Networks: []Network{{Name: "n", Distance: []float64{60}, Rows: []Row{{
		Workload: Workload{Name: "w", Unit: Seconds, Size: 64}, Series: []Series{{Peer: "p", Cells: []Cell{{Value: 1, Counts: &Counts{Repeats: 2}}}}}}}}}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// A bound that another series has beaten is no limit. Of times less is better.
func TestIsLimit(t *testing.T) {
	for _, tt := range []struct {
		unit  Unit
		bound []Cell
		other []Cell
		want  bool
	}{
		{PerSecond, cells(10, 10, 10), cells(9, 11, 9), true},
		{PerSecond, cells(10, 10, 10), cells(11, 9, 11), false},
		{BytesPerSecond, cells(10), cells(-1), true},
		{Seconds, cells(2, 2, 2), cells(3, 3, 1), true},
		{Seconds, cells(2, 2, 2), cells(1, 1, 3), false},
		{PerSecond, nil, cells(1), false},
	} {
		r := Row{Workload: Workload{Unit: tt.unit}, Series: []Series{
			{Peer: "a", Title: "A", Cells: tt.other}, {Peer: "b", Title: "B", Bound: true, Cells: tt.bound}, {Peer: "c", Title: "C", Bound: true, Cells: cells(1e6, 1e6, 1e6)},
		}}
		label := map[bool]string{true: "B (limit)", false: "B"}[tt.want]
		if got := r.IsLimit(&r.Series[1]); got != tt.want || r.Label(&r.Series[1]) != label || r.Label(&r.Series[0]) != "A" {
			t.Errorf("%s, bound %v, other %v: got limit %v, %q; want %v", tt.unit, tt.bound, tt.other, got, r.Label(&r.Series[1]), tt.want)
		}
	}
}

// The cores that both ends kept busy are medians of the rounds that tell.
func TestCores(t *testing.T) {
	s := Series{Cells: cells(1, 1, 1, -1)}
	for i, client := range []float64{.5, .1, .2} {
		s.Cells[i].Seconds, s.Cells[i].CPU = .5, &CPU{Client: client, Server: .25}
	}
	if got := s.CoresText(); got != "0.40 + 0.50" {
		t.Errorf("got %q, want 0.40 + 0.50", got)
	}
	if got := (&Series{Cells: cells(1)}).CoresText(); got != "" {
		t.Errorf("of a peer that does not tell: got %q, want nothing", got)
	}
}
