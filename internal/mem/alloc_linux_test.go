//go:build !adverb_portable

package mem

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// hostOf makes the files that limits are read from.
func hostOf(t *testing.T, files map[string]string) host {
	t.Helper()
	h := host{root: t.TempDir()}
	for name, text := range files {
		name = filepath.Join(h.root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// take allocates from m, and gives it back at the end of the test.
func take(t *testing.T, m *allocator, n int) *allocation {
	t.Helper()
	a, err := m.allocate(n, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.bytes) != n || cap(a.bytes) != n || addrOf(a.bytes)%uint64(pageSize) != 0 {
		t.Errorf("%d bytes: %d at %#x, want them to start on a page", n, len(a.bytes), addrOf(a.bytes))
	}
	if !bytes.Equal(a.bytes, make([]byte, n)) {
		t.Errorf("%d new bytes are not zero, want zeroes", n)
	}
	return a
}

// slabs returns how many slabs there are.
func (m *allocator) slabs() (n int) {
	for _, c := range m.classes {
		n += len(c.slabs)
	}
	return n
}

func give(t *testing.T, m *allocator, a *allocation) {
	t.Helper()
	if err := m.free(a); err != nil {
		t.Fatal(err)
	}
}

// TestSlabs: small regions share few mappings, and no two share memory.
func TestSlabs(t *testing.T) {
	m := &allocator{host: host{root: "/"}}
	var all []*allocation
	for i := range 3000 {
		a := take(t, m, 1+i*97%20_000)
		for j := range a.bytes {
			a.bytes[j] = byte(i)
		}
		all = append(all, a)
	}
	if n := m.areas; n > 30 {
		t.Errorf("%d mappings for %d regions of up to 20 KB, want few", n, len(all))
	}
	for i, a := range all {
		if want := bytes.Repeat([]byte{byte(i)}, len(a.bytes)); !bytes.Equal(a.bytes, want) {
			t.Fatalf("region %d has bytes of another, want %d alone", i, i)
		}
	}
	for _, a := range all {
		give(t, m, a)
	}
	if m.release(0); m.slabs() > classCount || m.areas != m.slabs() {
		t.Errorf("%d areas and %d slabs are left when all is given back; want a slab of each size at most, and an area for each",
			m.areas, m.slabs())
	}
	m.small = ownSmall
	if a := take(t, m, 20_000); a.m.slab == nil { // zeroed again
		t.Error("a region is not cut from a slab, want it to be")
	}
}

// TestSmallOwn: a few small regions have mappings of their own, which others can map, until they are closed.
func TestSmallOwn(t *testing.T) {
	m := &allocator{host: host{root: "/"}}
	var all []*allocation
	own := func(a *allocation) bool { return a.lent() != nil }
	for range ownSmall {
		all = append(all, take(t, m, 4096))
	}
	if n := slices.IndexFunc(all, func(a *allocation) bool { return !own(a) }); n >= 0 {
		t.Errorf("region %d of %d is cut from a slab, want a mapping of its own", n, ownSmall)
	}
	if own(take(t, m, 4096)) || own(take(t, m, ownLeast)) {
		t.Errorf("more than %d small regions have mappings of their own, want those cut from slabs", ownSmall)
	}
	give(t, m, all[3])
	give(t, m, all[4])
	if !own(take(t, m, 100)) || !own(take(t, m, ownLeast)) || own(take(t, m, 1)) {
		t.Error("two mappings were given back, want them taken by the next two regions and by no more")
	}
	if !own(take(t, m, ownLeast+1)) {
		t.Error("a large region is cut from a slab, want a mapping of its own")
	}
}

// TestQuarantine: memory that is given back is not given out again for long, and faults. Then its
// addresses serve again, so that regions which come and go take no more and more addresses.
func TestQuarantine(t *testing.T) {
	for _, tt := range []struct {
		n     int
		small int // regions that have mappings of their own already
		piece bool
	}{{1, 0, false}, {1, ownSmall, true}, {20_000, ownSmall, true}, {3 << 20, 0, false}} {
		n := tt.n
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			m := &allocator{host: host{root: "/"}, small: tt.small}
			gone := take(t, m, n)
			if piece := gone.m.slab != nil; piece != tt.piece {
				t.Errorf("cut from a slab: %v, want %v", piece, tt.piece)
			}
			gone.bytes[0] = 1
			give(t, m, gone)
			wantFault(t, gone.bytes)
			rounds := maxQuarantined - 1
			if n > maxPiece {
				rounds = 50
			}
			for range rounds {
				a := take(t, m, n)
				if addrOf(a.bytes) < addrOf(gone.bytes)+uint64(n) && addrOf(gone.bytes) < addrOf(a.bytes)+uint64(n) {
					t.Fatal("a new region has the addresses of one that was just closed")
				}
				give(t, m, a)
			}
			wantFault(t, gone.bytes)
			if n > maxPiece {
				return
			}
			most := 0
			for range 2 * maxQuarantined {
				give(t, m, take(t, m, n))
				most = max(most, m.slabs()*slabSize)
			}
			if limit := maxQuarantined*gone.size + 2*slabSize; most > limit || len(m.quarantined) > maxQuarantined {
				t.Errorf("%d bytes were mapped while one region at a time was open, and %d in quarantine; want %d and %d at most",
					most, len(m.quarantined), limit, maxQuarantined)
			}
		})
	}
}

// wantFault fails the test unless reading b faults.
func wantFault(t *testing.T, b []byte) {
	t.Helper()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		t.Helper()
		e, ok := recover().(interface{ Addr() uintptr })
		if !ok || uint64(e.Addr()) != addrOf(b) {
			t.Errorf("reading closed memory at %#x: %v, want a fault there", addrOf(b), e)
		}
	}()
	t.Errorf("closed memory reads as %d, want a fault", b[0])
}

// TestMemoryLimits: memory that the host, or the container, cannot hold is refused at once, and the
// error names the limit.
func TestMemoryLimits(t *testing.T) {
	const v2 = "sys/fs/cgroup/a/memory."
	meminfo := func(kb int) string { return fmt.Sprintf("MemTotal: 99999999 kB\nMemAvailable: %d kB\n", kb) }
	for _, tt := range []struct {
		name  string
		files map[string]string
		size  int // the largest region that fits
		text  string
	}{
		{"machine", map[string]string{"proc/meminfo": meminfo(100 << 10)}, 100 << 20, "104857600 bytes are available (MemAvailable): allocate less"},
		{"group", map[string]string{"proc/meminfo": meminfo(100 << 10), "proc/self/cgroup": "0::/a/b\n",
			v2 + "max": "50000000", v2 + "current": "45000000", v2 + "stat": "anon 1\ninactive_file 13000000\nactive_file 4000000\n", "sys/fs/cgroup/a/b/memory.max": "max"},
			20_000_000, "20000000 bytes are available (memory.max 50000000 of control group /a): allocate less, or raise the limit of the container"},
		{"group of version 1", map[string]string{"proc/meminfo": meminfo(100 << 10), "proc/self/cgroup": "4:memory:/elsewhere\n1:cpu:/x\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "50000000", "sys/fs/cgroup/memory/memory.usage_in_bytes": "30000000"},
			20_000_000, "20000000 bytes are available (memory.limit_in_bytes 50000000 of control group /): "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &allocator{host: hostOf(t, tt.files)}
			_, err := m.allocate(tt.size+1<<20, false)
			if !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%v, want ErrLimit with %q", err, tt.text)
			}
			fits := tt.size &^ (pageSize - 1)
			a, err := m.allocate(fits, false)
			if err != nil {
				t.Fatalf("%d bytes: %v, want no error", fits, err)
			}
			// Nothing has touched them, so they take nothing from others.
			give(t, m, take(t, m, fits))
			give(t, m, a)
			give(t, m, take(t, m, 1<<20))
		})
	}
	if bits.UintSize < 64 { // a host may have as much as an int can count
		return
	}
	m := &allocator{host: host{root: "/"}}
	if _, err := m.allocate(1<<(bits.UintSize-14), false); !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "bytes are available (") {
		t.Errorf("2^50 bytes: %v, want ErrLimit that names what is available", err)
	}
}

// TestAddressLimit: with RLIMIT_AS, regions leave the runtime some of it, and fail before it does.
func TestAddressLimit(t *testing.T) {
	h := hostOf(t, map[string]string{"proc/self/statm": fmt.Sprintf("%d 5 5\n", (100<<20)/pageSize)})
	defer func(f func() uint64) { addressLimit = f }(addressLimit)
	addressLimit = func() uint64 { return 200 << 20 }
	m := &allocator{host: h}
	_, err := m.allocate(40<<20, false)
	if want := "RLIMIT_AS is 209715200 bytes, of which the process uses 104857600"; !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want ErrLimit with %q", err, want)
	}
	give(t, m, take(t, m, 8<<20))
	give(t, m, take(t, m, 8<<20))
	if n := len(m.quarantined); n != 1 {
		t.Errorf("%d mappings of 8 MiB in quarantine, want one: addresses are few", n)
	}
	if _, err := m.allocate(40<<20, false); !errors.Is(err, verbs.ErrLimit) || len(m.quarantined) != 0 {
		t.Errorf("%v, and %d mappings in quarantine; want ErrLimit, once the quarantine has given way", err, len(m.quarantined))
	}
}

// TestMappingLimit: regions leave half of the process's mappings to others.
func TestMappingLimit(t *testing.T) {
	m := &allocator{host: hostOf(t, map[string]string{"proc/sys/vm/max_map_count": "10\n"})}
	var all []*allocation
	for range 5 {
		all = append(all, take(t, m, maxPiece+1))
	}
	if _, err := m.allocate(maxPiece+1, false); !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "half of vm.max_map_count") {
		t.Errorf("the sixth mapping: %v, want ErrLimit that names vm.max_map_count", err)
	}
	give(t, m, all[0])
	all[0] = take(t, m, maxPiece+1) // addresses in quarantine give way
	for _, a := range all {
		give(t, m, a)
	}
}

// TestMappingsTaken: where the rest of the program has the mappings that the process may have, the error of mmap
// says so. The process itself is no place to try it, since Go's runtime needs mappings too.
func TestMappingsTaken(t *testing.T) {
	for _, tt := range []struct {
		mappings int
		err      error
		want     string
	}{
		{64, unix.ENOMEM, "64 mappings, of 64"},
		{64 - fewMappings, fmt.Errorf("mmap: %w", unix.ENOMEM), "56 mappings, of 64"},
		{64 - fewMappings - 1, unix.ENOMEM, ""},
		{64, unix.EINVAL, ""},
	} {
		h := hostOf(t, map[string]string{"proc/sys/vm/max_map_count": "64\n", "proc/self/maps": strings.Repeat("00400000-00500000 r-xp "+strings.Repeat("x", 200)+"\n", tt.mappings)})
		got := h.whyNoMapping(tt.err)
		if (got != "") != (tt.want != "") || !strings.Contains(got, tt.want) || tt.want != "" && !strings.Contains(got, "vm.max_map_count") {
			t.Errorf("%v with %d mappings: %q, want %q and vm.max_map_count", tt.err, tt.mappings, got, tt.want)
		}
	}
	if got := hostOf(t, nil).whyNoMapping(unix.ENOMEM); got != "" {
		t.Errorf("where nothing can be read: %q, want nothing", got)
	}
}

// TestMappingsShort: regions of medium size have their own mappings, and can be lent, until half of the mappings
// that regions may have are taken. The others share mappings.
func TestMappingsShort(t *testing.T) {
	m := &allocator{host: hostOf(t, map[string]string{"proc/sys/vm/max_map_count": "40\n"})}
	lent := 0
	for range 100 {
		if take(t, m, ownLeast+1).lent() != nil {
			lent++
		}
	}
	if lent != 10 {
		t.Errorf("%d of 100 regions can be lent, want the first 10", lent)
	}
}

// TestMemfdDenied: where a sandbox denies memfd_create, regions have memory all the same.
func TestMemfdDenied(t *testing.T) {
	if s := Unshared(); s != "" {
		t.Skipf("this system denies memfds: %s", s)
	}
	defer func(f func(string, int) (int, error)) { memfdCreate = f }(memfdCreate)
	memfdCreate = func(string, int) (int, error) { return -1, unix.EPERM }
	if s := Unshared(); s != "memfd_create: operation not permitted" {
		t.Errorf("Unshared: got %q, want that memfd_create is not permitted", s)
	}
	m := &allocator{host: host{root: "/"}}
	for _, n := range []int{100, 1 << 20} {
		a := take(t, m, n)
		a.bytes[n-1] = 1
		if _, _, ok := a.file(); ok {
			t.Error("anonymous memory has a file")
		}
		give(t, m, a)
		wantFault(t, a.bytes)
		m.release(0)
		give(t, m, take(t, m, n)) // zeroed
	}
	memfdCreate = func(string, int) (int, error) { return -1, unix.EINVAL }
	if _, err := m.allocate(1<<20, false); !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), "memfd_create: invalid argument") {
		t.Errorf("%v, want an error that names memfd_create", err)
	}
}

// memfds returns how many files in memory are open.
func memfds(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, _ := os.Readlink(f); strings.HasPrefix(to, "/memfd:") {
			n++
		}
	}
	return n
}

// TestFile: another mapping of a region's file shows the region's memory, and no more is needed of it.
func TestFile(t *testing.T) {
	p := newPD(t)
	for _, n := range []int{100, 100, 1 << 20} {
		r := region(t, p, verbs.MRAttr{Length: n})
		fd, off, ok := r.File()
		if !ok {
			t.Fatal("the region has no file, want one")
		}
		b, err := unix.Mmap(fd, off, n, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		copy(r.Bytes()[n-7:], "written")
		if !bytes.Equal(b, r.Bytes()) {
			t.Errorf("the file has %q at the end, want what is written", b[n-7:])
		}
		if err := errors.Join(unix.Munmap(b), r.Close()); err != nil {
			t.Error(err)
		}
		if r.lent != nil { // or it is a piece of a slab, which others use
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
				t.Errorf("the file of a region of %d bytes is open after Close, want its memory given back", n)
			}
		}
	}
	before := memfds(t)
	if _, err := newMapping(math.MaxInt&^(pageSize-1), 0); err == nil || memfds(t) != before {
		t.Errorf("a mapping beyond the address space: got %v, and %d files more; want an error, and none", err, memfds(t)-before)
	}
	own := region(t, p, verbs.MRAttr{Buf: make([]byte, 8)})
	if _, _, ok := own.File(); ok {
		t.Error("memory of the program's has a file")
	}
}

// TestDebug: with ADVERB_DEBUG=mr the use of closed memory, and of memory beside a region, ends the
// program, and the text on stderr leads from the fault's address to the region and its Close.
func TestDebug(t *testing.T) {
	if what := os.Getenv("ADVERB_TEST_FAULT"); what != "" {
		useWrongly(t, what)
		return
	}
	for _, what := range []string{"closed", "closed long ago", "before", "behind"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestDebug$")
			cmd.Env = append(os.Environ(), "ADVERB_DEBUG=mr", "ADVERB_TEST_FAULT="+what)
			out, err := cmd.CombinedOutput()
			fault := regexp.MustCompile(`unexpected fault address 0x([0-9a-f]+)`).FindSubmatch(out)
			if err == nil || fault == nil {
				t.Fatalf("the program ended with %v, want a fault:\n%s", err, out)
			}
			at, _ := strconv.ParseUint(string(fault[1]), 16, 64)
			told := regexp.MustCompile(`mr lkey 0x[0-9a-f]{8}, 5 bytes, was closed by \S*useWrongly \(\S+alloc_linux_test.go:\d+\): addresses 0x([0-9a-f]+) to 0x([0-9a-f]+) fault`).FindSubmatch(out)
			if closed := strings.HasPrefix(what, "closed"); closed != (told != nil) {
				t.Fatalf("told of a closed region: %v, want %v:\n%s", told != nil, closed, out)
			} else if closed {
				first, _ := strconv.ParseUint(string(told[1]), 16, 64)
				last, _ := strconv.ParseUint(string(told[2]), 16, 64)
				if last != first+4 || at != first {
					t.Errorf("fault at %#x, and the closed region is told at [%#x, %#x]; want the fault at its first byte", at, first, last)
				}
			}
		})
	}
}

// useWrongly makes the mistake that TestDebug asks for, in a process of its own.
func useWrongly(t *testing.T, what string) {
	p := newPD(t)
	r := region(t, p, verbs.MRAttr{Length: 5})
	b, page := r.Bytes(), uint64(pageSize)
	beyond := func(off uint64) { take(t, &memory, 1).m.all[off]++ } // with the guards: the first page is one
	switch what {
	case "closed", "closed long ago":
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if what != "closed" {
			for range 2 * maxQuarantined {
				give(t, &memory, take(t, &memory, 1))
			}
		}
		b[0]++
	case "before":
		beyond(page - 1)
	case "behind":
		beyond(2 * page)
	}
}

// TestHugeLength: no length overflows.
func TestHugeLength(t *testing.T) {
	m := &allocator{host: host{root: "/"}}
	for _, n := range []int{math.MaxInt, math.MaxInt - pageSize, math.MaxInt - 5*pageSize} {
		if _, err := m.allocate(n, false); !errors.Is(err, verbs.ErrLimit) {
			t.Errorf("%d bytes: %v, want ErrLimit", n, err)
		}
	}
}
