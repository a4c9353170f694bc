//go:build !adverb_portable

package mem

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// Bounds that we chose.
const (
	// Where RLIMIT_AS bounds the address space, spareAddresses bytes of it are left to the rest of the program:
	// the runtime ends a program whose heap cannot grow.
	spareAddresses = 64 << 20
	// And the quarantine takes one part in quarantinePart of the address space at most.
	quarantinePart = 16
	// maxAreasUnknown stands for half of vm.max_map_count where that cannot be read.
	maxAreasUnknown = 32 << 10
	// An answer of the host serves for answerAge: see answer.
	answerAge = time.Second
	// fewMappings are left where one call of mmap needs more than there are.
	fewMappings = 8
)

// host is where the limits of the machine, the container and the process are read.
type host struct{ root string }

// room is the number of bytes that a limit leaves.
type room struct {
	bytes uint64
	limit string // its name and value, for errors
	hint  string
}

// holdsAddresses returns an error if so many bytes more are beyond RLIMIT_AS.
func (h host) holdsAddresses(size uint64) error {
	limit := addressLimit()
	if limit == math.MaxUint64 {
		return nil
	}
	used := h.addresses()
	if free := limit - min(limit, used+spareAddresses); size > free {
		return verbs.Errorf(verbs.ErrLimit, "RLIMIT_AS is %d bytes, of which the process uses %d and keeps %d in reserve: raise it (ulimit -v)",
			limit, used, uint64(spareAddresses))
	}
	return nil
}

// addressLimit is a variable for tests: a test cannot raise a limit that it has lowered.
var addressLimit = func() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) != nil {
		return math.MaxUint64
	}
	return limit.Cur
}

// addresses returns how much of the address space the process uses.
func (h host) addresses() uint64 {
	pages, _, _ := strings.Cut(h.read("proc/self/statm"), " ")
	n, _ := strconv.ParseUint(pages, 10, 64)
	return n * uint64(pageSize)
}

// quarantineBytes returns the number of bytes of addresses that may be in quarantine.
func (h host) quarantineBytes() uint64 {
	if math.MaxUint == math.MaxUint32 {
		return maxQuarantineBytes32
	}
	if limit := addressLimit(); limit != math.MaxUint64 {
		return limit / quarantinePart
	}
	return maxQuarantineBytes
}

func (h host) maxMappings() (int, error) {
	return strconv.Atoi(strings.TrimSpace(h.read("proc/sys/vm/max_map_count")))
}

// whyNoMapping says more of an error of mmap, if the process has all mappings that it may have: the rest of the
// program takes some too.
func (h host) whyNoMapping(err error) string {
	most, none := h.maxMappings()
	if none != nil || !errors.Is(err, unix.ENOMEM) {
		return ""
	}
	f, none := os.Open(filepath.Join(h.root, "proc/self/maps"))
	if none != nil {
		return ""
	}
	defer f.Close()
	n, buf := 0, make([]byte, 4096) // the heap cannot grow
	for {
		k, err := f.Read(buf)
		if n += bytes.Count(buf[:k], []byte{'\n'}); err != nil {
			break
		}
	}
	if n+fewMappings < most {
		return ""
	}
	return ": the process has " + strconv.Itoa(n) + " mappings, of " + strconv.Itoa(most) + " that it may have: raise vm.max_map_count, or map less"
}

// memory returns the least of the rooms that the machine and the control groups leave.
func (h host) memory() room {
	least := room{bytes: math.MaxUint64}
	if n, ok := h.field("proc/meminfo", "MemAvailable:"); ok {
		least = room{n << 10, "MemAvailable", "allocate less, or end other programs"}
	}
	for line := range strings.Lines(h.read("proc/self/cgroup")) {
		_, group, ok := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, ok2 := strings.Cut(group, ":")
		if !ok || !ok2 {
			continue
		}
		f := cgroup2
		switch {
		case controllers == "memory":
			f = cgroup1
		case controllers != "":
			continue
		}
		// A group's own limit may be wide, and that of a group around it narrow. In a container the
		// path may be one of outside, and the root is the container's.
		for ; ; path = filepath.Dir(path) {
			if r, ok := h.group(f, path); ok && r.bytes < least.bytes {
				least = r
			}
			if path == "/" || path == "." {
				break
			}
		}
	}
	return least
}

// groupFiles are the names of a version of control groups.
type groupFiles struct{ dir, limit, usage, inactive, active string }

var (
	cgroup2 = groupFiles{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"}
	cgroup1 = groupFiles{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"}
)

// group returns the room that a control group leaves, if the group has a limit. Files that the kernel keeps in memory
// give way to other uses. Of those that are in frequent use half count, as in MemAvailable.
func (h host) group(f groupFiles, path string) (room, bool) {
	dir := filepath.Join(f.dir, path)
	limit, err := strconv.ParseUint(strings.TrimSpace(h.read(filepath.Join(dir, f.limit))), 10, 64)
	if err != nil { // "max", or no such file
		return room{}, false
	}
	used, _ := strconv.ParseUint(strings.TrimSpace(h.read(filepath.Join(dir, f.usage))), 10, 64)
	inactive, _ := h.field(filepath.Join(dir, "memory.stat"), f.inactive)
	active, _ := h.field(filepath.Join(dir, "memory.stat"), f.active)
	used -= min(used, inactive+active/2)
	return room{limit - min(limit, used), f.limit + " " + strconv.FormatUint(limit, 10) + " of control group " + path,
		"allocate less, or raise the limit of the container"}, true
}

// field returns the number that follows a name at the beginning of a line.
func (h host) field(file, name string) (uint64, bool) {
	for line := range strings.Lines(h.read(file)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseUint(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func (h host) read(file string) string {
	b, err := os.ReadFile(filepath.Join(h.root, file))
	if err != nil {
		return ""
	}
	return string(b)
}
