package linktest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// EnvSeed names the environment variable that fixes all seeds, those of package rdmatest too.
const EnvSeed = "ADVERB_SEED"

// Seed returns the seed of a test's random choices: the value of ADVERB_SEED or, if that is not set, a new one each
// time. A test that fails prints the seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := DrawSeed(t)
	t.Logf("seed %#x; %s=%#[1]x repeats it", seed, EnvSeed)
	return seed
}

// DrawSeed is Seed for a caller that prints the seed itself.
func DrawSeed(t testing.TB) uint64 {
	t.Helper()
	s := os.Getenv(EnvSeed)
	if s == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Fatalf("read seed: %s=%q is no number: set it to one that a test has printed", EnvSeed, s)
	}
	return seed
}
