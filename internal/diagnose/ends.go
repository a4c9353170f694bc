package diagnose

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// compareEnds compares the two directions of a queue pair.
func (a *Analyzer) compareEnds(f *flow) {
	g := f.peer
	if g == nil || f.key.src.Compare(g.key.src) > 0 || f.key.src == g.key.src && f.key.qpn > g.key.qpn {
		return // once for both
	}
	a.comparePriorities(f, g)
	if !wire.MayTalk(f.pKey, g.pKey) && f.places[pKey] == nil && g.places[pKey] == nil && !f.isSilent() && !g.isSilent() {
		if x := a.mark(f, pKey, 0); x != nil {
			if f.answers+g.answers > 0 {
				x.Severity = Warning // somebody takes them
			}
			x.Words = a.pKeyWords(f, g)
		}
	}
	if f.maxPayload == 1024 && f.mtu() == 1024 && a.count.large > 0 {
		a.mark(f, mtu1024, 0)
	}
}

func (a *Analyzer) pKeyWords(f, g *flow) string {
	return words("%s sends with P_Key %s, and %s with %s.", a.names.addr(f.key.src), a.names.key("%#04x", uint64(f.pKey)), a.names.addr(g.key.src), a.names.key("%#04x", uint64(g.pKey)))
}

// isSilent reports whether not one of a flow's requests was answered, though they were sent again: [Analyzer.wrongPKey]
// judges it.
func (f *flow) isSilent() bool { return f.answers == 0 && f.silentTries >= silentRepeats }

// wrongPKey: what a silent queue pair sends has another P_Key than what its peer sends, or where that is not known all
// that comes back from the host.
func (a *Analyzer) wrongPKey(f *flow) bool {
	g := f.peer
	if g == nil && f.hosts.back != nil {
		for _, back := range f.hosts.back.flows {
			switch {
			case !back.acknowledged():
			case wire.MayTalk(f.pKey, back.pKey):
				return false
			case g == nil:
				g = back
			}
		}
	}
	if g == nil || wire.MayTalk(f.pKey, g.pKey) {
		return false
	}
	x := a.onSilence(f, pKey)
	if g.isSilent() {
		g.explained = true
		g.drop(rcSilent)
	}
	if x != nil {
		x.Words = a.pKeyWords(f, g) + " " + f.silenceWords()
	}
	return true
}

// mixedPriorities finds a queue pair whose requests do not all have the same priority.
func (a *Analyzer) mixedPriorities(f *flow) {
	name, of := "", ""
	switch {
	case bits.OnesCount64(f.dscps) > 1:
		name, of = "DSCPs", setOf(f.dscps)
	case bits.OnesCount8(f.pcps) > 1:
		name, of = "VLAN priorities (PCP)", setOf(uint64(f.pcps))
	default:
		return
	}
	if x := a.mark(f, dscpMix, 0); x != nil {
		x.Words = words("Requests of one direction have the %s %s.", name, of)
	}
}

// comparePriorities compares the requests of both directions.
func (a *Analyzer) comparePriorities(f, g *flow) {
	if f.places[dscpMix] != nil || g.places[dscpMix] != nil || f.dscps == 0 || g.dscps == 0 {
		return
	}
	text := ""
	switch {
	case f.dscps != g.dscps:
		text = words("DSCP %s one way and %s the other.", setOf(f.dscps), setOf(g.dscps))
	case f.pcps != g.pcps && f.pcps != 0 && g.pcps != 0: // a host's capture may have no tags of what comes in
		text = words("VLAN priority (PCP) %s one way and %s the other.", setOf(uint64(f.pcps)), setOf(uint64(g.pcps)))
	default:
		return
	}
	if x := a.mark(f, dscpMix, 0); x != nil {
		x.Words = text
	}
}

// setOf lists the numbers whose bits are set.
func setOf(set uint64) string {
	var list []string
	for ; set != 0; set &= set - 1 {
		list = append(list, strconv.Itoa(bits.TrailingZeros64(set)))
	}
	if n := len(list); n > 1 {
		return strings.Join(list[:n-1], ", ") + " and " + list[n-1]
	}
	return strings.Join(list, "")
}
