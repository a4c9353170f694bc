//go:build !adverb_portable

package mem

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/verbs"
)

// A region of up to probeWhole bytes is probed page by page. The kernel gets the pages ready for an access, as it does for
// a card, which pins them. A larger region may be a reservation that the program fills by and by, so its pages are not
// taken: the rights of its mappings are looked up, and the last page of each is made ready, since a file that is too short
// ends before that page.
const probeWhole = 1 << 20

// probe returns an error if the program's memory does not allow all of access. See probe.go.
func probe(b []byte, access verbs.Access) error {
	page := uintptr(pageSize)
	from := uintptr(addrOf(b)) &^ (page - 1)
	to := (uintptr(addrOf(b)) + uintptr(len(b)) + page - 1) &^ (page - 1)
	whole := len(b) <= probeWhole
	if whole && populate(from, to, access) == nil {
		return nil
	}
	list, err := areas(from, to)
	if err != nil { // no /proc
		return sample(b, access)
	}
	for _, a := range list {
		at := a.to - page
		if whole {
			at = a.from
		}
		for ; at < a.to; at += page {
			if err := a.probe(b, at, access); err != nil {
				return err
			}
		}
	}
	return nil
}

// area is a part of the address space with the same rights.
type area struct {
	from, to uintptr
	rights   string // such as "rw-p"; empty where nothing is mapped
	file     string
}

// probe probes the page of b at an address.
func (a *area) probe(b []byte, at uintptr, access verbs.Access) error {
	err := populate(at, at+uintptr(pageSize), access)
	switch {
	case err == nil:
		return nil
	case a.rights == "":
		return badMemory(uint64(at), needed(access), "nothing is mapped there", access)
	case a.rights[0] != 'r':
		return badMemory(uint64(at), "read", a.String(), access)
	case access&changes != 0 && a.rights[1] != 'w':
		return badMemory(uint64(at), "written", a.String(), access)
	case !errors.Is(err, unix.EINVAL):
		return badMemory(uint64(at), needed(access), fmt.Sprintf("%v: %v, as behind the end of a file", a, err), access)
	case populates(): // memory of a device, perhaps, which the kernel cannot get ready
		return nil
	}
	off := at - min(at, uintptr(addrOf(b)))
	if touch(b[off:off+1], false) != nil {
		return badMemory(uint64(at), "read", a.String(), access)
	}
	return nil
}

// String names the mapping.
func (a *area) String() string { return strings.TrimSpace("a mapping " + a.rights + " " + a.file) }

// populate gets pages ready to be read or written. It fails with EINVAL where a mapping lacks the right, where it is a
// special one, and before Linux 5.14. It is a variable for tests of such systems.
var populate = func(from, to uintptr, access verbs.Access) error {
	advice := unix.MADV_POPULATE_READ
	if access&changes != 0 {
		advice = unix.MADV_POPULATE_WRITE
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, uintptr(advice))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// populates reports whether the kernel knows populate.
func populates() bool {
	b := new([1]byte)
	at := uintptr(unsafe.Pointer(b)) &^ (uintptr(pageSize) - 1)
	return populate(at, at+uintptr(pageSize), 0) == nil
}

// areas returns the mappings in a range of addresses, with the gaps between.
func areas(from, to uintptr) (list []area, err error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for from < to && lines.Scan() {
		var a area
		if a.from, a.to, err = addresses(lines.Text()); err != nil {
			return nil, err
		}
		if a.to <= from {
			continue
		}
		if a.from > from {
			list = append(list, area{from: from, to: min(a.from, to)})
		}
		if a.from, a.to = max(a.from, from), min(a.to, to); a.from < a.to {
			fields := strings.Fields(lines.Text()) // addresses, rights, offset, device, inode, file
			if a.rights = fields[1]; len(fields) > 5 {
				a.file = strings.Join(fields[5:], " ")
			}
			list = append(list, a)
		}
		from = a.to
	}
	if from < to {
		list = append(list, area{from: from, to: to})
	}
	return list, lines.Err()
}

// addresses returns those that begin a line of /proc/self/maps, as in "7f00a000-7f00b000 rw-p".
func addresses(line string) (from, to uintptr, err error) {
	begin, rest, _ := strings.Cut(line, "-")
	end, _, _ := strings.Cut(rest, " ")
	a, err1 := strconv.ParseUint(begin, 16, 64)
	b, err2 := strconv.ParseUint(end, 16, 64)
	return uintptr(a), uintptr(b), errors.Join(err1, err2)
}
