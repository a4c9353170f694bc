package fabric

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// request is a question to subnet administration.
type request struct {
	lrh wire.LRH
	qpn uint32 // the asker's
	mad wire.SAMAD
}

// administration takes a packet of subnet administration, and reports whether it is one.
func (p *Port) administration(whole []byte) bool {
	h, pk, ok := readMAD(whole)
	if !ok || pk.DestQP != wire.GSIQPN || pk.DETH.QKey != wire.GSIQKey || pk.Payload[1] != wire.MADClassSA {
		return false
	}
	s, err := wire.DecodeSAMAD(pk.Payload)
	switch {
	case err != nil || s.ClassVersion != wire.MADVersionSA:
	case s.Method&wire.MADMethodResponse != 0:
		if _, asked := p.answers[s.TID]; asked {
			p.answers[s.TID] = &s
		}
	case p.manager != nil:
		p.requests = append(p.requests, request{h, pk.DETH.SrcQP, s})
	}
	return true
}

// Ask asks subnet administration, and settles the fabric meanwhile. Mask says which fields of the record are given.
func (p *Port) Ask(method uint8, attr uint16, mask uint64, put func(*wire.SAMAD)) (wire.SAMAD, error) {
	if p.info.State != Active || p.info.SMLID == 0 {
		return wire.SAMAD{}, ErrNotActive
	}
	for range tries {
		tid, err := p.question(method, attr, mask, put)
		if err != nil {
			delete(p.answers, tid)
			return wire.SAMAD{}, err
		}
		got := p.await(tid)
		delete(p.answers, tid)
		switch {
		case got == nil:
		case got.Status != 0:
			return *got, SAError(got.Status)
		default:
			return *got, nil
		}
	}
	return wire.SAMAD{}, errors.New("subnet administration does not answer: its subnet manager may have failed, or the way there")
}

const maxWaits = 2000 // for an answer

// await returns the answer to a question, or nil if there is none.
func (p *Port) await(tid uint64) *wire.SAMAD {
	f := p.node.f
	f.Settle()
	for i := 0; p.answers[tid] == nil && f.Wait != nil && f.Congested() && i < maxWaits; i++ {
		f.Wait()
		f.Settle()
	}
	return p.answers[tid]
}

// question sends a question to subnet administration. p.answers has the answer by the number that it returns, once it
// has come.
func (p *Port) question(method uint8, attr uint16, mask uint64, put func(*wire.SAMAD)) (tid uint64, err error) {
	p.lastTID++
	p.answers[p.lastTID] = nil
	s := wire.SAMAD{MADHeader: wire.MADHeader{BaseVersion: wire.MADBaseVersion, MgmtClass: wire.MADClassSA, ClassVersion: wire.MADVersionSA,
		Method: method, TID: p.lastTID, AttrID: attr}}
	put(&s)
	s.Mask = mask
	h := wire.LRH{VL: VL(p.info.SMSL), SL: p.info.SMSL, DLID: p.info.SMLID, SLID: p.info.LID}
	return p.lastTID, p.Send(mad(h, wire.GSIQPN, wire.GSIQPN, wire.GSIQKey, s.AppendTo(nil)))
}

// SAError is the status of an answer of subnet administration's that says no.
type SAError uint16

// Error says what the status means.
func (e SAError) Error() string {
	for status, words := range map[uint16]string{
		wire.SAStatusNoResources: "no resources", wire.SAStatusInvalid: "invalid request", wire.SAStatusNoRecords: "no such record",
		wire.SAStatusBadGID: "unknown GID", wire.SAStatusMissing: "components are missing",
	} {
		if uint16(e) == status {
			return "subnet administration refuses: " + words
		}
	}
	return fmt.Sprintf("subnet administration refuses: status %#04x", uint16(e))
}

// Path asks for the path from the port to a GID in a partition, by a P_Key; 0 leaves the partition to subnet
// administration.
func (p *Port) Path(dgid [16]byte, pkey uint16) (wire.PathRecord, error) {
	r := wire.PathRecord{DGID: dgid, SGID: p.GID(), Reversible: true, Count: 1, PKey: pkey}
	mask := uint64(wire.PathDGID | wire.PathSGID | wire.PathReversible | wire.PathNumb)
	if pkey != 0 {
		mask |= wire.PathPKey
	}
	got, err := p.Ask(wire.MADMethodGet, wire.AttrPathRecord, mask, r.Put)
	return wire.DecodePathRecord(&got.Data), err
}

// A new group has all of these: subnet administration makes none without.
const memberComponents = wire.MemberMGID | wire.MemberPort | wire.MemberState | wire.MemberQKey | wire.MemberTrafficClass | wire.MemberPKey |
	wire.MemberSL | wire.MemberFlowLabel

// Join makes the port a full member of a multicast group, and has it take the group's packets. mlid is the group's
// LID, if the group is new and the LID is free; 0 leaves it to the subnet manager. pkey is the group's partition; 0 is the
// default one.
func (p *Port) Join(mgid [16]byte, mlid, pkey uint16) (wire.MCMemberRecord, error) {
	r := wire.MCMemberRecord{MGID: mgid, Port: p.GID(), MLID: mlid, PKey: cmp.Or(pkey, wire.DefaultPKey), JoinState: wire.JoinFull}
	mask := uint64(memberComponents)
	if mlid != 0 {
		mask |= wire.MemberMLID
	}
	got, err := p.Ask(wire.MADMethodSet, wire.AttrMCMemberRecord, mask, r.Put)
	if err == nil {
		p.groups[mgid] = true
	}
	return wire.DecodeMCMemberRecord(&got.Data), err
}

// Leave undoes Join.
func (p *Port) Leave(mgid [16]byte) error {
	delete(p.groups, mgid)
	r := wire.MCMemberRecord{MGID: mgid, Port: p.GID(), JoinState: wire.JoinFull}
	_, err := p.Ask(wire.MADMethodDelete, wire.AttrMCMemberRecord, wire.MemberMGID|wire.MemberPort|wire.MemberState, r.Put)
	return err
}

// serve answers a question.
func (m *manager) serve(r *request) {
	s := &r.mad
	if m.state != smMaster {
		return
	}
	ask := s.Method
	switch {
	case s.AttrID == wire.AttrPathRecord && (ask == wire.MADMethodGet || ask == wire.MADMethodGetTable):
		s.Status = m.path(s)
	case s.AttrID == wire.AttrMCMemberRecord && (ask == wire.MADMethodGet || ask == wire.MADMethodSet || ask == wire.MADMethodDelete):
		s.Status = m.member(s)
	case s.AttrID == wire.AttrPathRecord || s.AttrID == wire.AttrMCMemberRecord:
		s.Status = wire.MADStatusBadMethod
	default:
		s.Status = wire.MADStatusBadAttr
	}
	s.Method = ask | wire.MADMethodResponse
	if ask == wire.MADMethodSet {
		s.Method = wire.MADMethodGetResp
	}
	h := wire.LRH{VL: r.lrh.VL, SL: r.lrh.SL, DLID: r.lrh.SLID, SLID: m.port.info.LID}
	_ = m.port.Send(mad(h, r.qpn, wire.GSIQPN, wire.GSIQKey, s.AppendTo(nil))) // an asker without answer asks again
}

// endOf finds the port of a GID or of a LID.
func (m *manager) endOf(gid [16]byte, lid uint16, byGID bool) *end {
	ends := m.subnet.ends()
	i := slices.IndexFunc(ends, func(e end) bool {
		if byGID {
			return gidOf(e.info.Prefix, e.guid) == gid
		}
		return m.used[lid] == e.guid
	})
	if i < 0 || m.lids[ends[i].guid] == 0 {
		return nil
	}
	return &ends[i]
}

// path answers a question for a path. As OpenSM does, it refuses a GID that is nobody's, and has no record of a LID that is
// not the port's, and of a partition that the ports do not share.
func (m *manager) path(s *wire.SAMAD) (status uint16) {
	q := wire.DecodePathRecord(&s.Data)
	has := func(component uint64) bool { return s.Mask&component != 0 }
	if !has(wire.PathSGID|wire.PathSLID) || !has(wire.PathDGID|wire.PathDLID) {
		return wire.SAStatusMissing
	}
	from := m.endOf(q.SGID, q.SLID, has(wire.PathSGID))
	to := m.endOf(q.DGID, q.DLID, has(wire.PathDGID))
	routed := to == nil && has(wire.PathDGID)
	if routed {
		to = m.gateway(prefixOf(q.DGID))
	}
	switch {
	case from == nil && has(wire.PathSGID), to == nil && has(wire.PathDGID) && !isGroup(q.DGID):
		return wire.SAStatusBadGID
	case from == nil, to == nil, has(wire.PathSLID) && m.used[q.SLID] != from.guid, has(wire.PathDLID) && m.used[q.DLID] != to.guid:
		return wire.SAStatusNoRecords
	}
	r := wire.PathRecord{
		SGID: gidOf(m.prefix, from.guid), DGID: gidOf(m.prefix, to.guid), SLID: m.lids[from.guid], DLID: m.lids[to.guid],
		Reversible: true, Rate: rate100, Lifetime: lifetime,
	}
	if routed {
		r.DGID, r.HopLimit = q.DGID, maxHopLimit
	}
	if from.guid == to.guid {
		r.Lifetime = 0 // the port's own loop
	}
	if r.PKey = m.commonPKey(from, to, q.PKey, has(wire.PathPKey)); r.PKey == 0 {
		return wire.SAStatusNoRecords
	}
	if has(wire.PathDLID) {
		r.DLID = q.DLID // of several that the port has
	}
	if has(wire.PathSLID) {
		r.SLID = q.SLID
	}
	if has(wire.PathSL) {
		r.SL = q.SL
	}
	if r.MTU = m.subnet.pathMTU(from, to, r.DLID); r.MTU == 0 {
		return wire.SAStatusNoRecords
	}
	r.Put(s)
	return 0
}

// commonPKey returns the P_Key of a path between two ports: the one that is asked for, or the first that they share; 0 if
// there is none.
func (m *manager) commonPKey(from, to *end, pkey uint16, asked bool) uint16 {
	a, b := m.pkeysOf(from.node), m.pkeysOf(to.node)
	keys := a
	if asked {
		keys = []uint16{pkey}
	}
	i := slices.IndexFunc(keys, func(k uint16) bool { return sharePKey(a, b, k) })
	if i < 0 {
		return 0
	}
	return keys[i]
}

// isGroup reports whether a GID is that of a multicast group.
func isGroup(gid [16]byte) bool { return gid[0] == 0xff }

// prefixOf returns the subnet's part of a GID.
func prefixOf(gid [16]byte) uint64 { return binary.BigEndian.Uint64(gid[:]) }

// gidOf makes a GID of a subnet's prefix and a port's GUID.
func gidOf(prefix, guid uint64) (g [16]byte) {
	for i := range 8 {
		g[i], g[8+i] = uint8(prefix>>(56-8*i)), uint8(guid>>(56-8*i))
	}
	return g
}
