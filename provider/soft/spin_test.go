package soft

import (
	"runtime"
	"testing"
)

// TestSpinByEnvironment: goroutines spin before they sleep where there are two processors, but for ADVERB_SPIN=0.
func TestSpinByEnvironment(t *testing.T) {
	usual := spinPolls
	if runtime.NumCPU() == 1 || runtime.GOMAXPROCS(0) == 1 {
		usual = 0
	}
	for value, want := range map[string]int{"": usual, "1": usual, "0": 0, "false": 0} {
		t.Setenv("ADVERB_SPIN", value)
		env, err := readEnvironment()
		if err != nil {
			t.Fatal(err)
		}
		if got := env.spin(); got != want {
			t.Errorf("ADVERB_SPIN=%q: got %d looks before a sleep, want %d", value, got, want)
		}
	}
}
