//go:build !adverb_portable

package host

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestHolder(t *testing.T) {
	name := serviceName(netip.MustParseAddr("127.0.0.1"), uint64(os.Getpid())<<32|0xfeed)
	if s := holder(name); !strings.Contains(s, "ended") {
		t.Errorf("of a free name: got %q, want that its process has ended", s)
	}
	box, err := openMailbox(name)
	if err != nil {
		t.Fatal(err)
	}
	defer box.close()
	if s, want := holder(name), fmt.Sprintf("process %d (", os.Getpid()); !strings.HasPrefix(s, want) {
		t.Errorf("got %q, want it to begin with %q", s, want)
	}
}
