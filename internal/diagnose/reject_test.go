package diagnose_test

import (
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// A rejected connection is told with what adverb explain knows of the reason: where to look, causes, and what to check.
func TestRejects(t *testing.T) {
	address := append([]byte{10: 0xff, 11: 0xff}, 10, 1, 0, 9)
	for _, tt := range []struct {
		reason wire.RejReason
		info   []byte
		side   diagnose.Side
		words  string
		remedy string
	}{
		{wire.RejNoResources, nil, diagnose.OfHost, "sends reason 3: the peer lacks memory, descriptors, QPs or room in its backlog.", "The usual causes, the likeliest first: the listener's backlog is full: its program accepts too slowly;"},
		{wire.RejInvalidCommID, nil, diagnose.OfProgram, "sends reason 6: the peer knows no connection by this ID.", "the peer has restarted"},
		{wire.RejInvalidGID, address, diagnose.OfSetup, "The GID of 10.1.0.9 would do.", "Check: show_gids at both ends;"},
		{wire.RejInvalidLID, []byte{0, 7}, diagnose.OfSetup, "LID 7 would do.", "a stale path record"},
		{wire.RejInvalidSL, []byte{3}, diagnose.OfSetup, "the peer does not accept the service level. Additional information: 03.", "Ask for what the peer accepts, or change the peer's setup."},
		{wire.RejPortCMRedirect, make([]byte, 72), diagnose.OfSetup, "another connection manager serves this: ask that one.", "send it there"},
		{wire.RejPortRedirect, address, diagnose.OfSetup, "That port has the GID of 10.1.0.9.", "send it there"},
		{wire.RejInvalidMTU, []byte{3}, diagnose.OfSetup, "A path MTU of 1024 would do.", "Check: ip link at both ends;"},
		{99, nil, diagnose.OfHost, "sends reason 99, which the specification does not know.", "look into its log"},
	} {
		s := newScript()
		s.req(nil)
		s.rej(tt.reason, func(m *wire.REJ) { m.ARILen = uint8(copy(m.ARI[:], tt.info)) })
		r := s.report(diagnose.Options{})
		if len(r.Findings) != 1 {
			t.Fatalf("reason %d: %v, want one finding", tt.reason, idsOf(r.Findings))
		}
		if f := r.Findings[0]; f.Side != tt.side || !strings.HasSuffix(f.Words, tt.words) || !strings.Contains(strings.Join(f.Remedy, "\n"), tt.remedy) {
			t.Errorf("reason %d: look at the %v: %q, %q; want %v, %q and %q", tt.reason, f.Side, f.Words, f.Remedy, tt.side, tt.words, tt.remedy)
		}
	}
}

// The address in a REJ is replaced in a redacted report.
func TestRejectRedacted(t *testing.T) {
	s := newScript()
	s.req(nil)
	s.rej(wire.RejInvalidGID, func(m *wire.REJ) { m.ARILen = uint8(copy(m.ARI[:], append([]byte{10: 0xff, 11: 0xff}, 10, 1, 0, 9))) })
	if f := s.report(diagnose.Options{Redact: true}).Findings[0]; !strings.HasSuffix(f.Words, "The GID of 192.0.2.3 would do.") {
		t.Errorf("%q, want a replacement", f.Words)
	}
}
