package rdmacm

import (
	"errors"
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/sim"
	"github.com/adverb-rdma/adverb/verbs"
)

// A device that CloseDevices finds in use, while it is opened anew under its name, is not lost: CloseDevices names it
// until it can close it.
func TestBusyDeviceOpenedAnew(t *testing.T) {
	n := sim.New(sim.Config{})
	old, anew := simDevice(t, n, 1), simDevice(t, n, 2)
	hold := func(d *verbs.Device) openedDevice {
		t.Helper()
		a, err := acquireAgent(d)
		if err != nil {
			t.Fatal(err)
		}
		return openedDevice{d, a}
	}
	const name = "a device of this test"
	busy := hold(old)
	used := hold(old).agent // as by an ID
	opened.mu.Lock()
	opened.byName[name] = hold(anew)
	opened.mu.Unlock()
	if err := busy.close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("a device in use: got %v, want %v", err, verbs.ErrBusy)
	}
	busy.keep(name)
	if got := opened.byName[name].Device; got != anew {
		t.Errorf("the next ID gets device %s, want the one that was opened last", got.Name())
	}
	if err := CloseDevices(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("CloseDevices with a device in use: got %v, want %v", err, verbs.ErrBusy)
	}
	used.release()
	if err := CloseDevices(); err != nil {
		t.Errorf("CloseDevices with nothing in use: got %v", err)
	}
	if _, err := old.Query(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the device that was in use: got %v, want %v", err, verbs.ErrClosed)
	}
}

// A device that fails while CloseDevices finds it in use is given to nobody.
func TestBusyDeviceFails(t *testing.T) {
	d := simDevice(t, sim.New(sim.Config{}), 1)
	a, err := acquireAgent(d)
	if err != nil {
		t.Fatal(err)
	}
	a.retain() // as by an ID
	busy := openedDevice{d, a}
	if err := busy.close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("a device in use: got %v, want %v", err, verbs.ErrBusy)
	}
	a.deviceGone(verbs.ErrClosed)
	busy.keep(d.Name())
	if _, ok := opened.byName[d.Name()]; ok {
		t.Error("a device that has failed is kept for the next ID")
	}
	a.release()
	if err := CloseDevices(); err != nil {
		t.Errorf("CloseDevices with nothing in use: got %v", err)
	}
	if _, err := d.Query(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("the device that was in use: got %v, want %v", err, verbs.ErrClosed)
	}
}
