package rdmacm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// TestStatuses: the status of an event is the errno that errors.Is finds in its error, as Linux numbers it, whatever the
// cause is wrapped in.
func TestStatuses(t *testing.T) {
	id := &ID{}
	for _, s := range statuses {
		for _, cause := range []error{s.kind, fmt.Errorf("reach it: %w", s.kind), verbs.Errorf(s.kind, "it is so")} {
			ev := id.failed(EventAddrError, "try", -5, cause)
			if ev.Status != s.status || !errors.Is(ev.Err, s.errno) || !errors.Is(ev.Err, s.kind) {
				t.Errorf("%v: got status %d, %v; want %d, an error that is %v", s.kind, ev.Status, ev.Err, s.status, s.errno)
			}
		}
	}
	ev := id.failed(EventAddrError, "try", -5, errors.New("something else"))
	if ev.Status != -5 {
		t.Errorf("a cause of no kind: got status %d, want the usual one", ev.Status)
	}
	for _, s := range statuses {
		if errors.Is(ev.Err, s.errno) {
			t.Errorf("a cause of no kind is %v, want none", s.errno)
		}
	}
}
