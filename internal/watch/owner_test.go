package watch

import (
	"reflect"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestByOwner: the devices of each owner are an answer of their own. A program says which process has its devices, but is
// believed only of those of its user.
func TestByOwner(t *testing.T) {
	child, stranger := Owner{20, "child"}, Owner{1, "init"}
	p := Process{PID: 10, Command: "me", Alone: "why", Devices: []Device{
		{Name: "a", Owner: child}, {Name: "a", Owner: stranger}, {Name: "b", Owner: child},
	}}
	ours := func(pid int) bool { return pid == child.PID }
	got := p.byOwner(ours)
	want := []Process{
		{PID: 20, Command: "child", Alone: "why", Devices: []Device{{Name: "a"}, {Name: "b"}}},
		{PID: 10, Command: "init", Alone: "why", Devices: []Device{{Name: "a"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	p.Devices = append(p.Devices, Device{Name: "c"})
	want = append([]Process{{PID: 10, Command: "me", Alone: "why", Devices: []Device{{Name: "c"}}}}, want...)
	if got := p.byOwner(ours); !reflect.DeepEqual(got, want) {
		t.Errorf("with a device of its own: got %+v, want %+v", got, want)
	}
	p.Devices = []Device{}
	if got := p.byOwner(ours); !reflect.DeepEqual(got, []Process{p}) {
		t.Errorf("without devices: got %+v, want %+v", got, p)
	}
}

// TestAddOwned: the devices of two owners stay apart, and each has the names of its own opens.
func TestAddOwned(t *testing.T) {
	var p Process
	for _, o := range []Owner{{1, "x"}, {2, "y"}, {1, "x"}} {
		p.add(Device{Name: "a", Owner: o, PD: []string{"pd1"}})
	}
	want := []Device{{Name: "a", Owner: Owner{1, "x"}, PD: []string{"pd1", "pd1#2"}}, {Name: "a", Owner: Owner{2, "y"}, PD: []string{"pd1"}}}
	if !reflect.DeepEqual(p.Devices, want) {
		t.Errorf("got %+v, want %+v", p.Devices, want)
	}
}

// TestOpenedFor: a device has its owner until that is forgotten.
func TestOpenedFor(t *testing.T) {
	dev := new(verbs.Device)
	want := Owner{7, "seven"}
	forget := OpenedFor(dev, func() Owner { return want })
	if got := ownerOf(dev); got != want {
		t.Errorf("got owner %+v, want %+v", got, want)
	}
	forget()
	if got := ownerOf(dev); got != (Owner{}) || len(owners.of) != 0 {
		t.Errorf("got owner %+v after it was forgotten, and %d owners, want none", got, len(owners.of))
	}
}
