package device

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/verbs"
)

// ClassDir is the directory in which Linux lists its RDMA devices. Tests change it.
var ClassDir = "/sys/class/infiniband"

// WithCards reports whether this build serves the kernel's devices.
func WithCards() bool { return slices.Contains(verbs.Providers(), "native") }

// Unserved returns the names of the kernel's devices if this build does not serve them.
func Unserved() (names []string) {
	if WithCards() {
		return nil
	}
	entries, _ := os.ReadDir(ClassDir) // there is none where the kernel has no RDMA
	for _, e := range entries {
		// Each device of sysfs has this file. The devices that adverb run shows, which are the software devices, have none.
		if _, err := os.Stat(filepath.Join(ClassDir, e.Name(), "uevent")); err == nil {
			names = append(names, e.Name())
		}
	}
	return names
}

// UnservedRemedy names the builds that serve the kernel's devices of those names. This build does not.
func UnservedRemedy(names []string) string {
	return "the kernel has " + strings.Join(names, ", ") +
		": this build has no cards; use the release's file that ends in -native, or go build -tags adverb_native ./cmd/adverb"
}

// ExplainUnserved says on stderr which of the kernel's devices this build does not serve, if there are any. A user whose
// ADVERB_DEVICES takes other devices has chosen.
func ExplainUnserved(inv *cli.Invocation) {
	if names := Unserved(); len(names) > 0 && os.Getenv("ADVERB_DEVICES") == "" {
		inv.Explain(errors.New(UnservedRemedy(names)))
	}
}
