package watch

import (
	"reflect"
	"slices"
	"testing"
)

// TestAddDevice: a device that the program has opened twice is one, with all objects. Its counters are verbs.Totals'.
func TestAddDevice(t *testing.T) {
	var p Process
	p.add(Device{Name: "a", Count: map[string]int{"qp": 1, "mr": 5}, QP: []QP{{QPN: 1}}})
	p.add(Device{Name: "b", Count: map[string]int{"qp": 10}})
	p.add(Device{Name: "a", Count: map[string]int{"qp": 1, "cq": 3}, QP: []QP{{QPN: 2}}})
	want := []Device{
		{Name: "a", Count: map[string]int{"qp": 2, "mr": 5, "cq": 3}, QP: []QP{{QPN: 1}, {QPN: 2}}},
		{Name: "b", Count: map[string]int{"qp": 10}},
	}
	if !reflect.DeepEqual(p.Devices, want) {
		t.Errorf("got %+v, want %+v", p.Devices, want)
	}

	// Each open has names of its own, wherever they stand.
	p = Process{}
	for range 3 {
		p.add(Device{Name: "a", PD: []string{"pd1"}, CQ: []CQ{{Name: "cq1"}}, QP: []QP{{PD: "pd1", SendCQ: "cq1", RecvCQ: "cq1"}},
			MR: []MR{{PD: "pd1"}}, MW: []MW{{PD: "pd1"}}, SRQ: []SRQ{{Name: "srq1", PD: "pd1"}}})
	}
	if got := p.Devices[0]; !slices.Equal(got.PD, []string{"pd1", "pd1#2", "pd1#3"}) || got.CQ[1].Name != "cq1#2" ||
		!reflect.DeepEqual(got.QP[2], QP{PD: "pd1#3", SendCQ: "cq1#3", RecvCQ: "cq1#3"}) ||
		got.MR[1].PD != "pd1#2" || got.MW[1].PD != "pd1#2" || got.SRQ[2] != (SRQ{Name: "srq1#3", PD: "pd1#3"}) {
		t.Errorf("got %+v, want the number of the open behind each name", got)
	}

	// No list is forgotten.
	one := Device{Name: "a"}
	for _, f := range reflect.ValueOf(&one).Elem().Fields() {
		if f.Kind() == reflect.Slice {
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		}
	}
	p = Process{}
	p.add(one)
	p.add(one)
	for name, f := range reflect.ValueOf(p.Devices[0]).Fields() {
		if f.Kind() == reflect.Slice && f.Len() != 2 {
			t.Errorf("%s: got %d elements, want those of both, 2", name.Name, f.Len())
		}
	}
}
