package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	_ "github.com/adverb-rdma/adverb/provider/soft"
	"github.com/adverb-rdma/adverb/rdmacm"
	"github.com/adverb-rdma/adverb/verbs"
)

// newRNICPair is newPair with iWARP devices of the loopback interface, with addresses that no other process takes.
func newRNICPair(t *testing.T) (p pair, at netip.AddrPort) {
	t.Helper()
	ifis, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	for _, ifi := range ifis {
		if ifi.Flags&net.FlagLoopback == 0 {
			continue
		}
		for i, d := range []**verbs.Device{&p.a, &p.b} {
			addr := netip.AddrFrom4([4]byte{127, 128 | byte(pid>>8)&127, byte(pid), byte(71 + i)})
			at = netip.AddrPortFrom(addr, 0) // the listener's is the last
			if *d, err = verbs.Open(fmt.Sprintf("iw_%s@%v", ifi.Name, addr)); err != nil {
				t.Skipf("SKIPPED, and so this shows nothing: no iWARP here: %v", err)
			}
			t.Cleanup(func() { (*d).Close() })
		}
		return p, at
	}
	t.Skip("SKIPPED, and so this shows nothing: there is no loopback interface")
	panic("unreachable")
}

// A connection that an iWARP peer has closed without an answer is no refusal by its program, and programs can tell.
func TestRejectErrorKinds(t *testing.T) {
	gid := verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.2"))
	for name, c := range map[string]struct {
		err            rdmacm.RejectError
		refused, reset bool
		says           string
	}{
		"a program":   {rdmacm.RejectError{Reason: rdmacm.RejectConsumerDefined}, true, false, "program has rejected"},
		"a limit":     {rdmacm.RejectError{Reason: rdmacm.RejectNoResources}, true, false, "no resources for the connection (out of resources)"},
		"no QP":       {rdmacm.RejectError{Reason: 1}, true, false, "no resources for the connection"},
		"no listener": {rdmacm.RejectError{Reason: rdmacm.RejectInvalidServiceID, Port: 7}, true, false, "no listener for port 7"},
		"given up":    {rdmacm.RejectError{Reason: rdmacm.RejectTimeout}, false, true, "given up"},
		"a GID": {rdmacm.RejectError{Reason: rdmacm.RejectInvalidGID, Info: gid[:]}, false, false,
			"does not have the GID that the request names as its own (GID not accepted, reason 12): it would accept the GID ::ffff:10.0.0.2"},
		"a short GID": {rdmacm.RejectError{Reason: rdmacm.RejectInvalidGID, Info: make([]byte, 3)}, false, false, "(GID not accepted, reason 12)"},
		"a version":   {rdmacm.RejectError{Reason: rdmacm.RejectInvalidClassVersion, Info: []byte{2}}, false, false, "reason 31): it would accept version 2"},
		"nobody's":    {rdmacm.RejectError{Reason: 99}, false, false, "rejected by the peer: unknown reason 99"},
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

// A request that this end has no resources for, whatever lacks, is refused with a reason that says so. Where the program
// says no, that is the reason. Over iWARP, which has no reasons, the connection ends without an answer.
func TestNoResources(t *testing.T) {
	limit := verbs.Errorf(verbs.ErrLimit, "the limit of a test")
	for name, tt := range map[string]struct {
		answer func(context.Context, *rdmacm.Request) error
		want   rdmacm.RejectReason
	}{
		"memory": {func(ctx context.Context, r *rdmacm.Request) error {
			_, err := r.Accept(ctx, &rdmacm.Config{Setup: func(*rdmacm.Conn) error { return limit }})
			return err
		}, rdmacm.RejectNoResources},
		"descriptors": {func(ctx context.Context, r *rdmacm.Request) error {
			_, err := r.Accept(ctx, &rdmacm.Config{Setup: func(*rdmacm.Conn) error { return os.NewSyscallError("socket", syscall.EMFILE) }})
			return err
		}, rdmacm.RejectNoResources},
		"another error": {func(ctx context.Context, r *rdmacm.Request) error {
			_, err := r.Accept(ctx, &rdmacm.Config{Setup: func(*rdmacm.Conn) error { return errors.New("not today") }})
			return err
		}, rdmacm.RejectConsumerDefined},
		"the program": {func(_ context.Context, r *rdmacm.Request) error {
			return errors.Join(errors.New("not today"), r.Reject(nil))
		}, rdmacm.RejectConsumerDefined},
	} {
		for _, iwarp := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, iWARP %v", name, iwarp), func(t *testing.T) {
				p := newPair(t)
				at := addr(t, p.b, false, 0)
				if iwarp {
					p, at = newRNICPair(t)
				}
				l := p.listen(t, at)
				answered := make(chan error, 1)
				go func() {
					r, err := l.Accept(t.Context())
					if err == nil {
						err = tt.answer(t.Context(), r)
					}
					answered <- err
				}()
				_, err := p.dial(t, l.Addr(), nil)
				rejected, ok := errors.AsType[*rdmacm.RejectError](err)
				closed := iwarp && tt.want == rdmacm.RejectNoResources
				switch {
				case !ok, (rejected.Cause != nil) != closed, !closed && rejected.Reason != tt.want:
					t.Errorf("the peer got %v, want reason %v", err, tt.want)
				case closed && !strings.Contains(err.Error(), "it cannot serve this one"), !closed && !errors.Is(err, rdmacm.ErrRefused):
					t.Errorf("the peer got %v, want it to be told", err)
				}
				if err := <-answered; err == nil {
					t.Error("the listening end got no error, want one")
				}
			})
		}
	}
}
