package mem

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/adverb-rdma/adverb/verbs"
)

// EnvDebug names the environment variable that lists the debugging aids to turn on.
const EnvDebug = "ADVERB_DEBUG"

// debugMR reports whether ADVERB_DEBUG asks for "mr": each region that is allocated then has addresses
// that nothing else ever gets, with a page on either side that faults, and Close says on stderr which
// addresses fault from then on. Those who open devices refuse any other value.
var debugMR = sync.OnceValue(func() bool {
	mr, _ := ParseDebug(os.Getenv(EnvDebug))
	return mr
})

// ParseDebug reads ADVERB_DEBUG, a list with commas in which there may be "mr".
func ParseDebug(list string) (mr bool, err error) {
	for word := range strings.SplitSeq(list, ",") {
		switch word {
		case "mr":
			mr = true
		case "":
		default:
			err = verbs.Errorf(verbs.ErrInvalid, "%q: nothing of the name %q can be debugged: there is \"mr\"", list, word)
		}
	}
	return mr, err
}

// tell tells that a region is closed. The runtime's message of a fault has an address, which the reader
// finds here. It cannot name the region itself.
func (r *Region) tell() {
	fmt.Fprintf(os.Stderr, "adverb: mr lkey %v, %d bytes, was closed by %s: addresses %#x to %#x fault from now on\n",
		r.lkey, len(r.buf), caller(), addrOf(r.buf), addrOf(r.buf)+uint64(len(r.buf))-1)
}

const module = "github.com/adverb-rdma/adverb/"

// caller returns the place in the program that led here.
func caller() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		ours := strings.HasPrefix(f.Function, module+"internal/") || strings.HasPrefix(f.Function, module+"verbs.")
		if !ours || strings.HasSuffix(f.File, "_test.go") {
			return fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line)
		}
		if !more {
			return "adverb"
		}
	}
}
