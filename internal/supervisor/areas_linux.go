//go:build amd64 || arm64

package supervisor

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// area is a mapping of a process's address space, or a part of it.
type area struct {
	from, to uint64
	offset   uint64 // in the file
	rights   string // such as "rw-p"
	file     inode  // zero for anonymous memory
	name     string

	// Only smaps tells these.
	flags string // VmFlags, such as " rd wr mr mw me ac "
	key   string // ProtectionKey, or empty
}

func (a *area) has(flag string) bool { return strings.Contains(a.flags, " "+flag+" ") }

// protection is that of mmap.
func (a *area) protection() (p uint64) {
	for i, bit := range []uint64{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
		if a.rights[i] != '-' {
			p |= bit
		}
	}
	return p
}

// cut returns the part of an area that is in a range.
func (a area) cut(from, to uint64) area {
	if a.from < from {
		a.offset, a.from = a.offset+from-a.from, from
	}
	a.to = min(a.to, to)
	return a
}

const mostAddress = 1<<63 - 1

// areas returns the mappings in a range of addresses, cut to it.
func areas(tid int, from, to uint64) ([]area, error) {
	list, err := areasByQuery(tid, from, to)
	if err == unix.ENOTTY || err == unix.EINVAL {
		return areasByText(tid, from, to, "maps")
	}
	return list, err
}

// detailedAreas is areas with flags and keys. The kernel walks over the pages for it.
func detailedAreas(tid int, from, to uint64) ([]area, error) {
	return areasByText(tid, from, to, "smaps")
}

// allAreas returns all mappings of a process.
func allAreas(tid int) ([]area, error) { return areasByText(tid, 0, mostAddress, "maps") }

// mapQuery is struct procmap_query, of Linux 6.11.
type mapQuery struct {
	size, flags, addr, start, end, vmaFlags, pageSize, offset, inode uint64
	major, minor, nameSize, buildIDSize                              uint32
	nameAddr, buildIDAddr                                            uint64
}

// ioctlMapQuery is PROCMAP_QUERY.
const ioctlMapQuery = 0xc0686611

// areasByQuery is areas by PROCMAP_QUERY, of Linux 6.11.
func areasByQuery(tid int, from, to uint64) (list []area, err error) {
	f, err := os.Open("/proc/" + strconv.Itoa(tid) + "/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for from < to {
		q := mapQuery{flags: queryNext, addr: from}
		q.size = uint64(unsafe.Sizeof(q))
		_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlMapQuery, uintptr(unsafe.Pointer(&q)))
		switch {
		case e == unix.ENOENT:
			return list, nil
		case e != 0:
			return nil, e
		case q.start >= to:
			return list, nil
		}
		rights := []byte("---p")
		for i, c := range []byte("rwxs") {
			if q.vmaFlags&(1<<i) != 0 {
				rights[i] = c
			}
		}
		a := area{from: q.start, to: q.end, offset: q.offset, rights: string(rights)}
		if q.inode != 0 {
			a.file = inode{unix.Mkdev(q.major, q.minor), q.inode}
		}
		list = append(list, a.cut(from, to))
		from = q.end
	}
	return list, nil
}

// queryNext asks for the mapping at an address or, where none is, for the next one.
const queryNext = 0x10

// areasByText is areas by the text of a file of /proc/TID.
func areasByText(tid int, from, to uint64, file string) (list []area, err error) {
	f, err := os.Open("/proc/" + strconv.Itoa(tid) + "/" + file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	inside := false // the last mapping is in the range
	for lines.Scan() {
		line := lines.Text()
		if a, ok := parseArea(line); ok {
			if a.from >= to {
				break
			}
			if inside = a.to > from; inside {
				list = append(list, a.cut(from, to))
			}
			continue
		}
		if !inside {
			continue
		}
		last := &list[len(list)-1]
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok {
			last.flags = flags + " "
		} else if key, ok := strings.CutPrefix(line, "ProtectionKey:"); ok {
			last.key = strings.TrimSpace(key)
		}
	}
	return list, lines.Err()
}

// parseArea reads a line of /proc/PID/maps: "7f00a000-7f00b000 rw-p 00001000 00:01 1234   /memfd:a name".
func parseArea(line string) (a area, ok bool) {
	var rest, dev string
	from, rest, ok1 := strings.Cut(line, "-")
	to, rest, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 {
		return a, false
	}
	f := strings.SplitN(rest, " ", 4)
	if len(f) != 4 || len(f[0]) != 4 {
		return a, false
	}
	a.rights, dev = f[0], f[2]
	ino, name, _ := strings.Cut(f[3], " ")
	major, minor, ok3 := strings.Cut(dev, ":")
	number := func(s string, base, bits int) (n uint64) {
		n, err := strconv.ParseUint(s, base, bits)
		ok3 = ok3 && err == nil
		return n
	}
	a.from, a.to, a.offset = number(from, 16, 64), number(to, 16, 64), number(f[1], 16, 64)
	a.file = inode{unix.Mkdev(uint32(number(major, 16, 32)), uint32(number(minor, 16, 32))), number(ino, 10, 64)}
	if a.file.ino == 0 {
		a.file = inode{}
	}
	a.name = strings.TrimLeft(name, " ")
	return a, ok3
}
