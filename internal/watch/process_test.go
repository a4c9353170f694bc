package watch

import (
	"reflect"
	"testing"
)

// TestAddDevice: a device that the program has opened twice is one, with the sums.
func TestAddDevice(t *testing.T) {
	var p Process
	p.add(Device{Name: "a", Counters: map[string]uint64{"sent": 1}, Count: map[string]int{"qp": 1}, QP: []QP{{QPN: 1}}})
	p.add(Device{Name: "b", Counters: map[string]uint64{"sent": 10}})
	p.add(Device{Name: "a", Counters: map[string]uint64{"sent": 2, "lost": 3}, Count: map[string]int{"qp": 1}, QP: []QP{{QPN: 2}}})
	want := []Device{
		{Name: "a", Counters: map[string]uint64{"sent": 3, "lost": 3}, Count: map[string]int{"qp": 2}, QP: []QP{{QPN: 1}, {QPN: 2}}},
		{Name: "b", Counters: map[string]uint64{"sent": 10}},
	}
	if !reflect.DeepEqual(p.Devices, want) {
		t.Errorf("got %+v, want %+v", p.Devices, want)
	}
}
