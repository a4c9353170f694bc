package devinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
)

// TestUnserved: where the kernel has a card, a build without cards says so beside its devices and where it knows none of the name.
// It says nothing of the devices that adverb run shows, and where ADVERB_DEVICES has chosen.
func TestUnserved(t *testing.T) {
	if device.WithCards() {
		t.Fatal("the tests of this package have provider/native, so nothing is left to be served")
	}
	dir := t.TempDir()
	for _, name := range []string{"mlx5_0", "mlx5_1", "rxe_lo"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "rxe_lo" { // as adverb run has it
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name, "uevent"), []byte("NAME="+name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const hint = "adverb: the kernel has mlx5_0, mlx5_1: this build has no cards; use the release's file that ends in -native, or go build -tags adverb_native"
	check := func(said bool, args ...string) {
		t.Helper()
		_, out, stderr := tool.Run(t.Context(), args...)
		if got := strings.Contains(stderr, hint); got != said {
			t.Errorf("%v: got stderr %q, want the hint in it: %v", args, stderr, said)
		}
		if strings.Contains(out, "mlx5") {
			t.Errorf("%v: got stdout %q, want no word of cards", args, out)
		}
	}
	was := device.ClassDir
	t.Cleanup(func() { device.ClassDir = was })
	device.ClassDir = dir
	for _, args := range []string{"adverb devices", "ibv_devices", "ibv_devinfo", "ibv_devinfo -l", "ibv_devinfo -d mlx5_0", "show_gids mlx5_0",
		"ibv_asyncwatch -d mlx5_0", "adverb verify mlx5_0"} {
		check(true, strings.Fields(args)...)
	}
	check(false, "ibv_devinfo", "-d", serverDevice)
	t.Setenv("ADVERB_DEVICES", "soft")
	check(false, "ibv_devices")
	t.Setenv("ADVERB_DEVICES", "")
	device.ClassDir = filepath.Join(dir, "none")
	check(false, "ibv_devices")
}
