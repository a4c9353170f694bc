package diagnose

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// rejectSides says where to look for the cause of a REJ. The rest are matters of the setup: the peer does not accept what the
// REQ asks for.
var rejectSides = map[wire.RejReason]Side{
	wire.RejNoQP: OfHost, wire.RejNoResources: OfHost, wire.RejUnsupported: OfHost, wire.RejDuplicateLocalCommID: OfHost,
	wire.RejInvalidCommID: OfProgram, wire.RejInvalidCommInstance: OfProgram, wire.RejInvalidTransportType: OfProgram, wire.RejInsufficientRespResources: OfProgram,
}

// explainReject tells of a reason without a rule of its own, by the table that adverb explain has.
func (a *Analyzer) explainReject(x *Finding, m *wire.REJ) {
	x.ID = words("CM-REJ-%d", m.Reason)
	who, _, _ := strings.Cut(x.Words, ": ")
	e, ok := meaning.Lookup(meaning.KindReject, int(m.Reason))
	if !ok {
		x.Side = OfHost
		x.Words = who + ", which the specification does not know."
		x.Remedy = []string{"The peer's device, or the program that answers for it, has reasons of its own: look into its log, and into its documents."}
		x.Words += a.rejectInfo(m)
		return
	}
	if side, ok := rejectSides[m.Reason]; ok {
		x.Side = side
	}
	x.Words = words("%s: %s.", who, e.Brief) + a.rejectInfo(m)
	x.Remedy = nil
	if len(e.Causes) > 0 {
		x.Remedy = append(x.Remedy, "The usual causes, the likeliest first: "+strings.Join(e.Causes, "; ")+".")
	}
	if len(e.Checks) > 0 {
		x.Remedy = append(x.Remedy, "Check: "+strings.Join(e.Checks, "; ")+".")
	}
	switch {
	case m.Reason == wire.RejPortCMRedirect || m.Reason == wire.RejPortRedirect:
		x.Remedy = append(x.Remedy, "The REQ belongs elsewhere: send it there, or correct the address that the program was given. "+e.More)
	case len(x.Remedy) == 0:
		x.Remedy = append(x.Remedy, "Ask for what the peer accepts, or change the peer's setup. "+e.More)
	}
}

// rejectInfo tells what the additional information of a REJ holds.
func (a *Analyzer) rejectInfo(m *wire.REJ) string {
	const gidSize = 16
	info := m.Info()
	switch r := m.Reason; {
	case len(bytes.Trim(info, "\x00")) == 0:
		return ""
	case (r == wire.RejInvalidGID || r == wire.RejInvalidAltGID) && len(info) >= gidSize:
		return words(" The GID of %s would do.", a.names.addr(gid([gidSize]byte(info))))
	case r == wire.RejPortRedirect && len(info) >= gidSize:
		return words(" That port has the GID of %s.", a.names.addr(gid([gidSize]byte(info))))
	case (r == wire.RejInvalidLID || r == wire.RejInvalidAltLID) && len(info) >= 2:
		return words(" LID %d would do.", binary.BigEndian.Uint16(info))
	case r == wire.RejInvalidMTU && info[0] >= 1 && info[0] <= 5:
		return words(" A path MTU of %d would do.", 128<<info[0])
	}
	return words(" Additional information: %s.", a.names.data(info))
}
