package diagnose

import "github.com/adverb-rdma/adverb/internal/capture"

// What else a capture shows may say why a queue pair's requests are not answered. Then that is the finding, in place of
// RC-SILENT.

// explain looks for the cause of a silence. It reports whether there is one.
func (a *Analyzer) explain(f *flow) bool {
	return a.mixedAddresses(f) || a.mixedPaths(f)
}

// silenceWords tells of the repeats of a request that is not answered.
func (f *flow) silenceWords() string {
	s := words("PSN %v was repeated %s.", f.silentPSN, counted(f.silentTries, "time"))
	if f.silentInterval > 0 {
		s += words(" The longest wait was %v", round(f.silentInterval))
		if code := timeoutCode(f.silentInterval); code > 0 {
			s += words(", which fits the timeout code %d", code)
		}
		s += "."
	}
	return s
}

// onSilence makes a finding of a rule on a silent flow, in place of RC-SILENT.
func (a *Analyzer) onSilence(f *flow, r ruleID) *Finding {
	f.explained = true
	f.drop(rcSilent)
	for _, frame := range f.silentFrames {
		a.mark(f, r, frame)
	}
	x := f.places[r]
	if x != nil {
		x.Count = f.silentTries
	}
	return x
}

// mixedAddresses: a link-local address sends to one that is not, or the other way round. Nobody routes that.
func (a *Analyzer) mixedAddresses(f *flow) bool {
	if f.kind == capture.InfiniBand || f.key.src.IsLinkLocalUnicast() == f.key.dst.IsLinkLocalUnicast() {
		return false
	}
	if x := a.onSilence(f, gidLL); x != nil {
		x.Words = "One address is link-local and the other is not. " + f.silenceWords()
	}
	return true
}

// mixedPaths: the queue pairs of two Ethernet addresses send to each other by different kinds of GIDs, and none is
// answered. One of the kinds is not routed, so the Ethernet addresses are the hosts' own.
func (a *Analyzer) mixedPaths(f *flow) bool {
	if f.srcMAC == [6]byte{} || f.dstMAC == [6]byte{} {
		return false
	}
	var found *flow
	for g := a.oldest; g != nil; g = g.newer {
		if g.srcMAC != f.dstMAC || g.dstMAC != f.srcMAC || g.gidKind() == f.gidKind() || g.answers > 0 || g.silentTries == 0 || !g.acknowledged() {
			continue
		}
		if found == nil || found.explained && !g.explained {
			found = g
		}
	}
	if found == nil {
		return false
	}
	x := a.onSilence(f, gidLL)
	found.explained = true
	found.drop(rcSilent)
	if x != nil {
		for _, frame := range found.silentFrames {
			x.hit(frame)
		}
		x.Words = words("%s sends by %s, and the other end, %s, by %s: so no packet finds the peer's queue pair. %s", a.names.addr(f.key.src), f.gidKind(), a.names.addr(found.key.src), found.gidKind(), f.silenceWords())
		x.paired = found
	}
	return true
}

// gidKind is the kind of the GIDs by which packets go.
func (f *flow) gidKind() string {
	switch {
	case f.kind == capture.RoCEv1:
		return "RoCE v1"
	case f.kind == capture.RoCEv2 && f.key.src.IsLinkLocalUnicast():
		return "a link-local address"
	case f.kind == capture.RoCEv2:
		return "a routed address"
	}
	return ""
}
