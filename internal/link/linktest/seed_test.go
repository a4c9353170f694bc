package linktest_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/internal/link/linktest"
)

func TestSeed(t *testing.T) {
	for value, want := range map[string]uint64{"0x2a": 42, "42": 42, "18446744073709551615": 1<<64 - 1} {
		t.Setenv(linktest.EnvSeed, value)
		if got := linktest.Seed(t); got != want {
			t.Errorf("%s=%s: seed %d, want %d", linktest.EnvSeed, value, got, want)
		}
	}
	t.Setenv(linktest.EnvSeed, "")
	if a, b := linktest.Seed(t), linktest.Seed(t); a == b {
		t.Errorf("seed %d twice, want different ones", a)
	}
}
