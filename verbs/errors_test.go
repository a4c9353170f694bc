package verbs_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

func TestOpError(t *testing.T) {
	err := error(&verbs.OpError{Verb: "modify", Object: "qp 0x000011", Err: verbs.Errorf(verbs.ErrInvalid, "missing %s: %w", "PATH_MTU", io.EOF)})
	if got, want := err.Error(), "modify qp 0x000011: missing PATH_MTU: EOF"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(err, verbs.ErrInvalid) || !errors.Is(err, io.EOF) || errors.Is(err, verbs.ErrState) {
		t.Error("the kind and the wrapped error are not found, or another kind is")
	}
}

func TestWCStatusIs(t *testing.T) {
	for s := verbs.WCLocLenErr; s <= verbs.WCTMRndvIncomplete; s++ {
		wc := verbs.WC{ID: 0x2a, QPN: 0x11, Status: s}
		err := wc.Err()
		if !errors.Is(err, s) || errors.Is(err, s+1) {
			t.Errorf("%v: errors.Is does not find it, or finds its neighbour, want it alone", s)
		}
		if text := err.Error(); !strings.HasPrefix(text, "work request 0x2a on qp 0x000011: "+s.String()) {
			t.Errorf("%v: text %q, want it to name the work request, the QP and the status", s, text)
		}
	}
	wc := verbs.WC{Status: verbs.WCSuccess}
	if err := wc.Err(); err != nil {
		t.Errorf("success has error %v, want nil", err)
	}
}

// The provider's cause is in the text, and errors.Is finds it.
func TestWCErrorCause(t *testing.T) {
	wc := verbs.WC{ID: 1, QPN: 2, Status: verbs.WCRetryExceeded, Cause: io.ErrClosedPipe}
	err := wc.Err()
	if !errors.Is(err, io.ErrClosedPipe) || !errors.Is(err, verbs.WCRetryExceeded) {
		t.Errorf("errors.Is on %v does not find the cause or the status, want both", err)
	}
	if got := err.Error(); !strings.HasSuffix(got, "(io: read/write on closed pipe)") || !strings.Contains(got, "is it up") {
		t.Errorf("text %q, want the meaning of the status, and the cause at the end", got)
	}
	if e, ok := errors.AsType[*verbs.WCError](err); !ok || e.WC.ID != 1 {
		t.Errorf("the error is a %T, want a *WCError with ID 1", err)
	}
}
