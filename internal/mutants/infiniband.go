package main

const (
	fabric = "internal/fabric/"
	ibnet  = "internal/ibnet/"
)

// infiniBandMutants are of InfiniBand's own link, which exists in memory.
var infiniBandMutants = []mutant{
	// The headers and the checksums.
	{"the ICRC covers the virtual lane", wire + "ibflow.go",
		"h := LRH{VL: 0xf, SL: sl,", "h := LRH{SL: sl,", "./internal/wire", "TestLocalICRC"},
	{"the ICRC of a packet with a GRH covers the hop limit", wire + "ibflow.go",
		"NextHeader: GRHNextHeader, HopLimit: 0xff,", "NextHeader: GRHNextHeader,", "./internal/wire", "TestGlobalICRC"},

	// Switches and cables.
	{"a packet leaves without credits", fabric + "move.go",
		"	if p.credits[vl] < n {\n		return false\n	}\n", "", "./internal/fabric", "TestCredits"},
	{"a packet that was received frees no credits", fabric + "move.go",
		"		p.grant(r.vl, blocks(r.packet))\n", "", "./internal/fabric", "TestCredits"},
	{"a cable that comes back has all credits", fabric + "fabric.go",
		"bufferSize - p.peer.held(vl)", "bufferSize", "./internal/fabric", "TestCreditsOfPending"},
	{"a damaged packet is taken", fabric + "move.go",
		"	case !ok, err != nil, int(h.Length)*4 != len(whole), int(h.VL) != vl:\n", "	case !ok && false, err != nil:\n", "./internal/fabric", "TestDamagedData"},
	{"a group's packet goes back to where it came from", fabric + "move.go",
		"mask := n.mft[dlid] &^ (1 << in)", "mask := n.mft[dlid]", "./internal/fabric", "TestGroup"},
	{"a port that is not active carries data", fabric + "move.go",
		"	if p.info.State != Active {\n		p.Stats.Discarded++\n		return ErrNotActive\n	}\n", "", "./internal/fabric", "TestSwitchFails"},
	{"a failed switch remembers its table", fabric + "fabric.go",
		"	s.n.forget()\n	s.n.repair()\n", "	s.n.repair()\n", "./internal/fabric", "TestRepairForgets"},

	{"what waits for a port that fails waits for ever", fabric + "fabric.go",
		"		p.out[vl] = nil\n	}\n	p.release()\n", "		p.out[vl] = nil\n	}\n	p.kick()\n", "./internal/fabric", "TestDownBlocksNobody"},

	// The subnet manager.
	{"two ports get one LID", fabric + "manager.go",
		"		if m.used[lid+i] != 0 {\n", "		if m.used[lid+i] != 0 && i > width {\n", "./internal/fabric", "TestBringUp"},
	{"all ways go by the first of equal ports", fabric + "subnet.go",
		"(best == noPort || load[n][num] < load[n][best])", "best == noPort", "./internal/fabric", "TestMinimumHops"},
	{"ways are longer than they need be", fabric + "subnet.go",
		"if ok && far == d-1 && (best", "if ok && far != d && (best", "./internal/fabric", "."},
	{"a port goes from INIT to ACTIVE at once", fabric + "sma.go",
		"	case v.State == Armed && p.info.State == Init, v.State == Active && p.info.State == Armed:\n", "	case v.State == Armed, v.State == Active:\n", "./internal/fabric", "TestPortStates"},
	{"what nobody answers is not asked again", fabric + "manager.go",
		"const tries = 4 // of a question", "const tries = 1 // of a question", "./internal/fabric", "TestBadCable"},
	{"a port that fails sends no trap", fabric + "fabric.go",
		"		p.node.trap()\n", "", "./internal/fabric", "TestSwitchFails"},
	{"the manager of the highest GUID is the master", fabric + "manager.go",
		"c == 0 && n.sm.GUID < m.port.guid", "c == 0 && n.sm.GUID > m.port.guid", "./internal/fabric", "TestLowestGUID"},
	{"priorities of managers count for nothing", fabric + "manager.go",
		"c := cmp.Compare(n.sm.Priority, m.priority)", "c := 0 * cmp.Compare(n.sm.Priority, m.priority)", "./internal/fabric", "TestHandover"},
	{"a manager that takes over asks nobody to register anew", fabric + "manager.go",
		"(took || m.fresh[n.portGUID] || info.State == Armed)", "(info.State == Armed)", "./internal/fabric", "TestHandover"},
	{"ports that a manager finds in service need not register", fabric + "manager.go",
		"took || m.fresh[n.portGUID] || info", "took || info", "./rdmatest", "TestInfiniBandMerge"},
	{"a manager that takes over knows the groups", fabric + "manager.go",
		"		clear(m.groups) // nobody has told of them\n", "", "./internal/fabric", "TestManagerAgain"},
	{"no port is in a partition", fabric + "manager.go",
		"			keys = append(keys, p.PKey)\n", "", "./internal/fabric", "TestPartitions"},
	{"who leaves a group stays in it", fabric + "group.go",
		"delete(g.members, e.guid); len(", "len(", "./internal/fabric", "TestGroup"},

	// Routers.
	{"a router keeps the hop limit", fabric + "router.go",
		"	b[wire.LRHSize+hopLimitAt]--\n", "", "./internal/fabric", "TestRouters"},
	{"a router forwards a packet of hop limit 1", fabric + "router.go",
		"g.HopLimit <= 1 ||", "g.HopLimit < 1 ||", "./internal/fabric", "TestRouterDiscards"},
	{"a router forwards packets of link-local GIDs", fabric + "router.go",
		" || prefixOf(g.SGID) == linkLocal", "", "./internal/fabric", "TestRouterDiscards"},
	{"a router keeps the source's LID", fabric + "router.go",
		"	h.SLID, h.DLID = w.out.info.LID, w.dlid\n", "	h.DLID = w.dlid\n", "./internal/fabric", "TestRouters"},
	{"a router never asks again for a LID", fabric + "router.go",
		"(w.dlid == 0 || w.age == n.f.changes)", "true", "./internal/fabric", "TestRouterLearns"},
	{"an answer that waits for credits counts as lost", fabric + "router.go",
		"		if s == nil && n.f.Congested() {\n			return false\n		}\n", "", "./internal/fabric", "TestAnswerWaits"},
	{"a path to another subnet has hop limit 0", fabric + "sa.go",
		"r.DGID, r.HopLimit = q.DGID, maxHopLimit", "r.DGID = q.DGID", "./internal/fabric", "TestRouters"},
	{"a question at a busy port is lost", fabric + "sa.go",
		"		f.Wait()\n", "", "./internal/fabric", "TestAnswerWaits"},
	{"a REQ across routers has LIDs", connector + "ibpath.go",
		", Routed: p.HopLimit > 0}", "}", "./internal/connector", "TestWayTo"},

	// The software HCA.
	{"the path's hop limit is not sent", hca + "send.go",
		"		d.HopLimit = o.ib.hopLimit\n", "		d.HopLimit = 64\n", "./rdmatest", "TestRouterPaths"},
	{"packets come from the lowest LID of the port", hca + "infiniband.go",
		"ib.LID&^(1<<ib.LMC-1) | uint16(ah.SrcPathBits)&(1<<ib.LMC-1)", "ib.LID &^ (1<<ib.LMC - 1)", "./rdmatest", "TestInfiniBandDatagrams"},
	{"a QP takes packets of any partition", hca + "infiniband.go",
		"	if o.pkey == 0 {\n		return pkey&wire.PKeyBase == wire.DefaultPKey&wire.PKeyBase\n	}\n	return", "	return true ||", "./rdmatest", "TestInfiniBandPartitions"},
	{"two limited members talk to each other", hca + "infiniband.go",
		" && (pkey|o.pkey)&^uint16(wire.PKeyBase) != 0", "", "./internal/hca", "TestTakesPKey"},
	{"nobody hears of a new LID", hca + "infiniband.go",
		"	raise(was.LID != is.LID || was.LMC != is.LMC, verbs.EventLIDChange)\n", "", "./rdmatest", "TestInfiniBandMerge"},
	{"nobody hears of a new subnet manager", hca + "infiniband.go",
		"	raise(was.SMLID != is.SMLID || was.SMSL != is.SMSL, verbs.EventSMChange)\n", "", "./rdmatest", "TestInfiniBandPriority"},
	{"nobody hears that a manager wants clients to register anew", hca + "infiniband.go",
		"	raise(was.Reregistered != is.Reregistered, verbs.EventClientReregister)\n", "", "./rdmatest", "TestInfiniBandPriority"},
	// Path migration.
	{"a QP that wants to migrate does not say so", transport + "packet.go",
		"q.attr.PathMigState == verbs.MigMigrated, wire.DefaultPKey", "true, wire.DefaultPKey", "./rdmatest", "TestPathMigration"},
	{"a QP fails in place of migrating", transport + "rc.go",
		"	if !r.qp.Migrate(now) {\n		r.giveUp()\n		return\n	}\n", "	if true {\n		r.giveUp()\n		return\n	}\n", "./rdmatest", "TestPathMigration"},
	{"a QP that has migrated sends by its old path", hca + "infiniband.go",
		"		q.setPath(*ib.alt)\n", "", "./rdmatest", "TestPathMigration"},
	{"the peer of a QP that has migrated does not follow", hca + "infiniband.go",
		"	if !q.t.Migrate(now) {\n		return false\n	}\n	q.takeAlternate()\n	return true\n", "	return false\n", "./rdmatest", "TestPathMigration"},
	{"a QP is armed without the peer's wish", transport + "migrate.go",
		"	if a.PathMigState != verbs.MigArmed {\n", "	if a.PathMigState == verbs.MigMigrated {\n", "./rdmatest", "TestPathMigrationAlone"},

	{"a port's owner that is gone holds credits", ibnet + "ibnet.go",
		"				again = discard(p) || again\n", "", "./internal/ibnet", "TestUnattended"},
}
