package rdmacm_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/adverb-rdma/adverb/rdmacm"
)

// A connection that an iWARP peer has closed without an answer is no refusal by its program, and programs can tell.
func TestRejectErrorKinds(t *testing.T) {
	for name, c := range map[string]struct {
		err            rdmacm.RejectError
		refused, reset bool
		says           string
	}{
		"a program":   {rdmacm.RejectError{Reason: rdmacm.RejectConsumerDefined}, true, false, "program has rejected"},
		"no listener": {rdmacm.RejectError{Reason: rdmacm.RejectInvalidServiceID, Port: 7}, true, false, "no listener for port 7"},
		"given up":    {rdmacm.RejectError{Reason: rdmacm.RejectTimeout}, false, true, "given up"},
		"closed":      {rdmacm.RejectError{Reason: rdmacm.RejectConsumerDefined, Cause: syscall.ECONNRESET}, false, true, "reset"},
	} {
		if got := errors.Is(&c.err, rdmacm.ErrRefused); got != c.refused {
			t.Errorf("%s: ErrRefused %v, want %v", name, got, c.refused)
		}
		if got := errors.Is(&c.err, rdmacm.ErrReset); got != c.reset {
			t.Errorf("%s: ErrReset %v, want %v", name, got, c.reset)
		}
		if !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: got %q, want %q", name, c.err.Error(), c.says)
		}
	}
}
