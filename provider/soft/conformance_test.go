package soft_test

import (
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
	"github.com/adverb-rdma/adverb/verbs/verbstest"
)

// In the second process of TestConformanceAcross, the suite takes over before TestMain.
func init() { verbstest.Main(verbs.Open) }

func suite(a, b string) verbstest.Config {
	return verbstest.Config{
		Open: func(t testing.TB) (x, y *verbs.Device) {
			for i, d := range []**verbs.Device{&x, &y} {
				var err error
				if *d, err = verbs.Open([]string{a, b}[i]); err != nil {
					t.Fatal(err)
				}
			}
			return x, y
		},
		Require: required(),
	}
}

// required is all capabilities. Multicast and FLUSH to storage are missing on systems other than Linux.
func required() verbstest.Capability {
	if portable {
		return verbstest.All &^ (verbstest.Multicast | verbstest.FlushPersistent)
	}
	return verbstest.All
}

// TestConformance runs the suite of package verbstest over UDP within one process.
func TestConformance(t *testing.T) {
	noLanes(t)
	a, b := loopback(t)+"@"+loopAddr(11), loopback(t)+"@"+loopAddr(12)
	verbstest.Run(t, suite(a, b))
}

// noLanes has this process and those that it starts send packets by the network alone.
func noLanes(t *testing.T) { t.Setenv("ADVERB_SHM", "0") }

// TestConformanceAcross runs the suite between two processes. Where that is possible, they share
// one address.
func TestConformanceAcross(t *testing.T) {
	noLanes(t)
	a := loopback(t) + "@" + loopAddr(13)
	b := a
	if portable {
		b = loopback(t) + "@" + loopAddr(14)
	}
	verbstest.RunAcross(t, suite("", ""), a, b)
}
