//go:build !adverb_portable

package mem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/adverb-rdma/adverb/internal/user/usertest"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestAnswer: the host is asked for its limits once in a second, and when more is wanted than its answer leaves.
func TestAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hostOf(t, map[string]string{"proc/meminfo": "MemAvailable: 102400 kB\n"})
		says := func(kb int) {
			text := fmt.Sprintf("MemAvailable: %d kB\n", kb)
			if err := os.WriteFile(filepath.Join(h.root, "proc/meminfo"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		refused := func(m *allocator, n int, want string) {
			t.Helper()
			if _, err := m.allocate(n, false); !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), want) {
				t.Errorf("%d bytes: %v, want ErrLimit with %q", n, err, want)
			}
		}
		m := &allocator{host: h}
		give(t, m, take(t, m, 1<<20))
		says(10 << 10)
		for range 200 { // each is given back, so all but the latest answer is left
			give(t, m, take(t, m, 1<<20))
		}
		kept := take(t, m, 80<<20)
		refused(m, 21<<20, "10485760 bytes are available (MemAvailable)") // the answer leaves 20 MiB, and so is no good
		give(t, m, kept)

		says(5 << 10)
		give(t, m, take(t, m, 6<<20)) // within the second
		time.Sleep(answerAge + 1)
		refused(m, 6<<20, "5242880 bytes are available (MemAvailable)")
		says(50 << 10)
		give(t, m, take(t, m, 6<<20)) // a refusal is never an old answer's
	})
}

// TestSlabShort: a small region needs its own bytes, and not those of its slab.
func TestSlabShort(t *testing.T) {
	m := &allocator{host: hostOf(t, map[string]string{"proc/meminfo": "MemAvailable: 100 kB\n"}), small: ownSmall}
	give(t, m, take(t, m, 20<<10))
	if _, err := m.allocate(120<<10, false); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("120 KiB where 100 are available: %v, want ErrLimit", err)
	}
}

// TestMemoryGroup: in a control group, memory in use counts.
func TestMemoryGroup(t *testing.T) {
	const group = 64 << 20
	if !usertest.In(t, usertest.MemoryGroup(group)) {
		return
	}
	p := newPD(t)
	var idle []*Region
	for range 50 { // 400 MiB
		idle = append(idle, region(t, p, verbs.MRAttr{Length: 8 << 20}))
	}
	used := idle[0].Bytes()
	for i := range used {
		used[i] = 1
	}
	memory.answer = answer{} // an answer from before they were used
	for _, n := range []int{group - len(used), group} {
		_, err := p.register(verbs.MRAttr{Length: n}, false)
		if !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), fmt.Sprintf(" %d of control group ", group)) {
			t.Errorf("%d bytes in a group of %d, of which %d are used: %v, want ErrLimit that names the group and its limit", n, group, len(used), err)
		}
	}
	region(t, p, verbs.MRAttr{Length: group / 4})
}
