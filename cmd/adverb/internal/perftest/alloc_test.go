//go:build !race

package perftest

import (
	"runtime"
	"slices"
	"strings"
	"testing"
)

// The measured loops allocate nothing: 6000 messages more take hardly more allocations. The others come from the
// runtime. (Under the race detector some of the stack's values count.)
func TestLoopsAllocateNothing(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	for _, prog := range []string{"send_bw -s 64", "write_bw -s 64", "read_bw -s 64", "atomic_bw", "send_lat", "write_lat", "read_lat", "send_bw -b -s 64 -q 2"} {
		t.Run(strings.ReplaceAll(prog, " ", ""), func(t *testing.T) {
			name, flags, _ := strings.Cut(prog, " ")
			run := func(iters string) (n int64, grown map[string]int64) {
				before := allocations(t)
				server, client := runPair(t, "ib_"+name, flags+" -n "+iters, flags+" -n "+iters)
				if server.Code != 0 || client.Code != 0 {
					t.Fatalf("got status %d and %d: %s%s\nwant status 0 of both", server.Code, client.Code, server.Stderr, client.Stderr)
				}
				grown = allocations(t)
				for place := range grown {
					grown[place] -= before[place]
					n += grown[place]
				}
				return n, grown
			}
			run("100") // the allocations that are made once
			few, before := run("100")
			many, where := run("6100")
			if more := many - few; more > 1500 { // a quarter of an allocation for each further message
				t.Errorf("got %d allocations for 6100 messages and %d for 100, want hardly more", many, few)
				for place, n := range where {
					if n -= before[place]; n > 100 {
						t.Logf("%d more by %s", n, place)
					}
				}
			}
		})
	}
}

// others are in the stacks of allocations that do not count.
var others = []string{"adverb/internal/host.", "adverb/internal/watch.", "perftest.allocations"}

// allocations counts the allocations so far, by place, apart from two packages. internal/host lists all the Unix
// sockets of the host when a device opens. While the tests of other packages open theirs, that list is thousands of
// allocations longer in one run than in the next. internal/watch answers those of them that ask all processes for
// their objects. Its own allocations do not count either.
func allocations(t *testing.T) (places map[string]int64) {
	t.Helper()
	runtime.GC() // publishes the profile
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 1<<15)
	size, ok := runtime.MemProfile(records, true)
	if !ok {
		t.Fatalf("got a profile of %d records, want room for them", size)
	}
	places = map[string]int64{}
	for i := range records[:size] {
		place := placeOf(records[i].Stack())
		if !slices.ContainsFunc(others, func(name string) bool { return strings.Contains(place, name) }) {
			places[place] += records[i].AllocObjects
		}
	}
	return places
}

// placeOf names the functions of a stack, the innermost first.
func placeOf(stack []uintptr) string {
	var names []string
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		names = append(names, f.Function)
		if !more {
			return strings.Join(names, " < ")
		}
	}
}
