//go:build linux && (amd64 || arm64)

package native

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// The fake library's devices: fake0, whose port 1 is RoCE and whose port 2 is InfiniBand, and quick0, which moves nothing.
const (
	fakeName  = "fake0"
	quickName = "quick0"
	rocePort  = 1
	ibPort    = 2
	rocev2    = 3 // the index of the GID of an IPv4 address
	mlid      = 0xc005
)

// fakeLibrary is the fake library of testdata, built once.
type fakeLibrary struct {
	*provider
	fail func(call string, errno int32) // the next call of that name fails
	nth  func(n, errno int32) int32     // the n-th call from now on fails; returns how many calls were left to the last such one
	live func() int32                   // objects that are not destroyed
	open func() int32                   // devices that are

	lacks func(ops uint64) // the driver lacks these operations of QPs

	gone func(fatal, atEnd bool) // the devices go: with the event, and with an end of all events and calls; neither: they are back
	// Completion channels that are made have descriptors that are never read, and in error once the device is gone. While it is
	// on, no descriptor tells that devices go.
	mute func(on bool)

	disturb func() int32 // acts in a process as libraries of C do; 0 says that all went well
}

var buildFake = sync.OnceValues(func() (*fakeLibrary, error) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "adverb-native")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the process keeps its mappings
	file := filepath.Join(dir, "libfake.so")
	if out, err := exec.Command(cc, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", file, "testdata/fake.c", "-lpthread").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cc, err, out)
	}
	f := &fakeLibrary{provider: newProvider(file, "")}
	if _, err := f.load(); err != nil {
		return nil, err
	}
	f.kernel = func() []kernelDevice { return []kernelDevice{{fakeName, "uverbs0"}, {quickName, "uverbs1"}} }
	h, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		return nil, err
	}
	purego.RegisterLibFunc(&f.fail, h, "fake_fail")
	purego.RegisterLibFunc(&f.nth, h, "fake_fail_nth")
	purego.RegisterLibFunc(&f.live, h, "fake_live")
	purego.RegisterLibFunc(&f.open, h, "fake_open")
	purego.RegisterLibFunc(&f.lacks, h, "fake_lacks")
	purego.RegisterLibFunc(&f.gone, h, "fake_gone")
	purego.RegisterLibFunc(&f.mute, h, "fake_mute")
	purego.RegisterLibFunc(&f.disturb, h, "fake_disturb")
	return f, nil
})

// fake returns the fake library, or skips the test where there is no C compiler.
func fake(t testing.TB) *fakeLibrary {
	t.Helper()
	f, err := buildFake()
	switch {
	case err != nil:
		t.Fatal(err)
	case f == nil:
		missing(t, "a C compiler (on Debian: gcc and libc6-dev)")
	}
	return f
}

// missing skips the test for want of a program, which CI must not be without.
func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this needs %s", what)
	}
	t.Skipf("this needs %s", what)
}

// device opens a device of the library's.
func (f *fakeLibrary) device(t testing.TB, name string) *verbs.Device {
	t.Helper()
	d, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	return verbs.NewDevice(d)
}

// exact is a device of the library's that promises the statuses which it has.
type exact struct{ *device }

func (e exact) Query() (verbs.DeviceAttr, error) {
	a, err := e.device.Query()
	a.Guarantees |= verbs.GuaranteeExactStatus
	return a, err
}

// exactDevice opens fake0 as one that promises its statuses.
func (f *fakeLibrary) exactDevice(t testing.TB) *verbs.Device {
	t.Helper()
	return verbs.NewDevice(exact{f.device(t, fakeName).Provider().(*device)})
}

// TestConformanceFake runs the conformance suite on the fake library, over RoCE and over InfiniBand.
func TestConformanceFake(t *testing.T) {
	f := fake(t)
	for _, p := range []struct {
		name      string
		port, gid int
		mlid      uint16
	}{{"RoCE", rocePort, rocev2, 0}, {"InfiniBand", ibPort, 0, mlid}} {
		t.Run(p.name, func(t *testing.T) {
			before := f.live()
			verbstest.Run(t, verbstest.Config{
				Port: p.port, GIDIndex: p.gid, MLID: p.mlid,
				Require: verbstest.ExactStatus | verbstest.Timestamps | verbstest.Multicast | verbstest.XRC |
					verbstest.AtomicWrites | verbstest.FlushGlobal | verbstest.FlushPersistent, Open: func(t testing.TB) (a, b *verbs.Device) {
					return f.exactDevice(t), f.exactDevice(t)
				}})
			if n := f.live() - before; n != 0 {
				t.Errorf("%d objects are left", n)
			}
		})
	}
}
