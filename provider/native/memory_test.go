//go:build linux && (amd64 || arm64)

package native

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/rdmapool"
	"github.com/adverb-rdma/adverb/verbs"
)

// TestMemlock: ENOMEM of a registration names the limit, and how to raise it.
func TestMemlock(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	var was syscall.Rlimit
	check(t, syscall.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
	limit := was
	limit.Cur = min(was.Max, 1<<16)
	check(t, syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &limit))
	defer syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &was)
	f.fail("ibv_reg_mr_iova2", int32(syscall.ENOMEM))
	_, err := p.pd.AllocMR(1<<20, 0)
	wantErr(t, "over the limit", err, verbs.ErrLimit, "1048576 bytes are to be pinned, and RLIMIT_MEMLOCK allows 65536 in all", "ulimit -l", "CAP_IPC_LOCK")
}

// TestAllocMR: the memory is zeroed, begins at a page or, where it is large, at a huge one, and does not share its addresses
// with other regions for a while.
func TestAllocMR(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	seen := map[uint64]bool{}
	for _, n := range []int{1, 4096, hugePage - 1, hugePage, 3*hugePage + 5} {
		for range 3 {
			mr := must(p.pd.AllocMR(n, everything))(t)
			if len(mr.Bytes()) != n || cap(mr.Bytes()) != n {
				t.Errorf("%d bytes of %d, want %d", len(mr.Bytes()), cap(mr.Bytes()), n)
			}
			align := uint64(4096)
			if n >= hugePage {
				align = hugePage
			}
			if mr.Addr()%align != 0 {
				t.Errorf("%d bytes at %#x, want them aligned by %#x", n, mr.Addr(), align)
			}
			if seen[mr.Addr()] {
				t.Errorf("%#x is used again at once", mr.Addr())
			}
			seen[mr.Addr()] = true
			for _, i := range []int{0, n / 2, n - 1} {
				if mr.Bytes()[i] != 0 {
					t.Errorf("byte %d is %d", i, mr.Bytes()[i])
				}
			}
			for _, i := range []int{0, n / 2, n - 1} {
				mr.Bytes()[i] = 1
			}
			check(t, mr.Close())
		}
	}
	if _, err := p.pd.AllocMR(1<<62, everything); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("more than there is: %v", err)
	}
}

// TestHugePages: AccessHugeTLB takes pages that the host has set aside, and the error where there are none says how to.
func TestHugePages(t *testing.T) {
	p := newPair(t, fake(t), fakeName)
	mr, err := p.pd.AllocMR(hugePage+1, everything|verbs.AccessHugeTLB)
	if err != nil {
		wantErr(t, "without huge pages", err, verbs.ErrLimit, "of huge pages", "vm.nr_hugepages")
		return
	}
	mr.Bytes()[hugePage] = 1
	if mr.Addr()%hugePage != 0 || len(mr.Bytes()) != hugePage+1 {
		t.Errorf("%d bytes at %#x, want %d at a huge page", len(mr.Bytes()), mr.Addr(), hugePage+1)
	}
	check(t, mr.Close())
}

// TestPool: many buffers of rdmapool are one registration.
func TestPool(t *testing.T) {
	f := fake(t)
	p := newPair(t, f, fakeName)
	before := f.live()
	pool := must(rdmapool.New(p.pd, nil))(t)
	for range 64 {
		b := must(pool.Get(t.Context(), 4096))(t)
		defer b.Release()
	}
	if n := f.live() - before; n != 1 {
		t.Errorf("64 buffers took %d registrations, want 1", n)
	}
	t.Cleanup(func() { check(t, pool.Close()) })
}
