package rdmatest_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/mem"
	"github.com/adverb-rdma/adverb/rdmatest"
	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// required is all capabilities. FLUSH to storage is missing on systems other than Linux.
func required() verbstest.Capability {
	if !mem.CanPersist() {
		return verbstest.All &^ verbstest.FlushPersistent
	}
	return verbstest.All
}

// TestConformanceSecured runs the suite with packets that are encrypted.
func TestConformanceSecured(t *testing.T) {
	verbstest.Run(t, verbstest.Config{
		Open: func(t testing.TB) (a, b *verbs.Device) {
			net := rdmatest.New(t)
			return net.Device(), net.Device()
		},
		Require: required(),
		Secured: true,
	})
}

// TestConformanceRoCEv1 runs the suite by GIDs of RoCEv1.
func TestConformanceRoCEv1(t *testing.T) {
	for name, index := range map[string]int{"IPv4": 0, "IPv6": 1, "LinkLocal": 2} {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, verbstest.Config{
				Open: func(t testing.TB) (a, b *verbs.Device) {
					net := rdmatest.New(t, rdmatest.RoCEv1())
					return net.Device(), net.Device()
				},
				GIDIndex: index,
				Require:  required(),
			})
		})
	}
}

// TestConformance runs the suite of package verbstest over the simulated network, by IPv4 and by IPv6.
func TestConformance(t *testing.T) {
	for name, index := range map[string]int{"IPv4": 0, "IPv6": 1} {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, verbstest.Config{
				Open: func(t testing.TB) (a, b *verbs.Device) {
					net := rdmatest.New(t)
					return net.Device(), net.Device()
				},
				GIDIndex: index,
				Require:  required(),
			})
		})
	}
}
