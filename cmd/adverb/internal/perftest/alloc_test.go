//go:build !race

package perftest

import (
	"runtime"
	"strings"
	"testing"
)

// The measured loops allocate nothing: 6000 messages more take hardly more allocations. What
// there is comes from the runtime and from opening the device, which reads the list of all the host's Unix
// sockets: while the tests of other packages open theirs, that list is a thousand allocations longer in one
// run than in the next. (Under the race detector some of what is on the stack counts.)
func TestLoopsAllocateNothing(t *testing.T) {
	for _, prog := range []string{"send_bw -s 64", "write_bw -s 64", "read_bw -s 64", "atomic_bw", "send_lat", "write_lat", "read_lat", "send_bw -b -s 64 -q 2"} {
		t.Run(strings.ReplaceAll(prog, " ", ""), func(t *testing.T) {
			name, flags, _ := strings.Cut(prog, " ")
			allocations := func(iters string) uint64 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				server, client := runPair(t, "ib_"+name, flags+" -n "+iters, flags+" -n "+iters)
				runtime.ReadMemStats(&after)
				if server.Code != 0 || client.Code != 0 {
					t.Fatalf("got status %d and %d: %s%s", server.Code, client.Code, server.Stderr, client.Stderr)
				}
				return after.Mallocs - before.Mallocs
			}
			allocations("100") // what is made once
			few, many := allocations("100"), allocations("6100")
			if more := int64(many) - int64(few); more > 3000 { // half an allocation for each further message
				t.Errorf("got %d allocations for 6100 messages and %d for 100, want hardly more", many, few)
			}
		})
	}
}
