package soft

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// A file names a domain of one open device. The device that another Open returns has none of it.
func TestXRCDOfAnotherOpen(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var devs [2]*verbs.Device
	for i := range devs {
		if devs[i], err = verbs.Open("soft_lo@127.0.88.41"); err != nil {
			t.Fatal(err)
		}
		defer devs[i].Close()
	}
	one, err := devs[0].OpenXRCD(verbs.XRCDAttr{File: file, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	again, err := devs[0].OpenXRCD(verbs.XRCDAttr{File: file})
	if err != nil {
		t.Errorf("the same device: got %v, want the domain", err)
	} else {
		again.Close()
	}
	if x, err := devs[1].OpenXRCD(verbs.XRCDAttr{File: file}); !errors.Is(err, verbs.ErrNotFound) || !strings.Contains(err.Error(), "set Create to make one") {
		t.Errorf("another Open: got %v, %v; want ErrNotFound, and what to do", x, err)
	}
}
