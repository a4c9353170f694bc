package main

// endMutants are the defects of what ends, is refused or is cut short: access that is taken back, connections that
// fail, addresses that nobody answers.
var endMutants = []mutant{
	// Shared memory.
	{"memory is detached before those who use it are told", mem + "lend.go",
		"	m.end() // first: what the others do until they are told is in the region, and must stay there\n	m.detach(off, n)\n",
		"	m.detach(off, n)\n	m.end()\n", "./internal/mem", "TestDetach$"},
	{"a grant made while memory is detached stays", hca + "direct.go",
		"	if s.File.Detached() {", "	if false {", "./internal/hca", "TestDirectDetached"},
	{"a region's end does not wait for a QP that is ending its grants", hca + "direct.go",
		"		g.end() // first: the region's end waits for it too\n		g.forget()\n", "		g.forget()\n		g.end()\n", "./internal/hca", "TestDirectReregBeside"},
	{"who ends a grant second hears of nobody that is stuck", shm + "access.go",
		"			g.stuckAt, g.stuck = off, n\n", "", "./internal/shm", "TestRevokeStuck"},
	{"grants outlive a lane that the receiver drops", shm + "access.go",
		"	for slot := range s.slots {\n		i.slotWord(slot, stateAt).Store(0)\n	}\n", "", "./internal/shm", "TestAccessLaneDropped"},
	{"what was lent by a lane stays lent when it ends", shm + "lend.go",
		"		o.Recall(l.loans)\n		l.forget()\n", "		l.forget()\n", "./internal/hca", "TestLendRecalled"},
	{"a QP that may have no READ outstanding reads directly", hca + "direct.go",
		" || need != verbs.AccessRemoteWrite && !q.t.MayRead()", "", "./internal/hca", "TestDirectRefused"},
	{"a lane that nobody waited for stays while its receiver sleeps", host + "lanes_linux.go",
		"		n.wake(to) // to drop the lane\n", "", "./internal/host", "TestLaneNotAwaited"},

	// iWARP.
	{"immediate data of nothing have the bytes of the WRITE before", iwarp + "sender.go",
		"(s.off > 0 || !s.counts)", "true", "./internal/iwarp", "TestImmediateOfNothing"},
	{"a connection that failed still answers READs", iwarp + "sender.go",
		"		if q.attr.State == verbs.QPStateErr { // by a local operation", "		if false { // by a local operation", "./internal/iwarp", "TestFailureBesideAnswer"},
	{"an atomic that is refused takes what was cut before with it", iwarp + "sender.go",
		"			if s.count > 0 { // what was cut before goes first\n", "			if false {\n", "./internal/iwarp", "TestRefusedLate"},
	{"a READ that is not allowed takes what was posted before with it", iwarp + "sender.go",
		"			if s.count > 0 || q.sq.head != q.sq.cur {", "			if false {", "./internal/iwarp", "TestDepthBehindSend"},

	// The facade and its devices.
	{"BindMW believes the whole work request", "verbs/mw.go",
		"{{ID: wr.ID, Op: OpBindMW, Flags: wr.Flags, Bind: &bind}}", "{{ID: wr.ID, Op: OpBindMW, Flags: wr.Flags, Bind: &bind, SGList: wr.SGList, InlineData: wr.InlineData}}", "./verbs", "TestBindMWLooksAtIDAndFlags"},
	{"a UD QP binds windows", "verbs/mw.go",
		"	case sendOps[qp.typ]>>OpBindMW&1 == 0:\n", "	case false:\n", "./verbs", "TestBindMWByUD"},
	{"the receives that a QP with an SRQ does not have are bounded", "verbs/qp.go",
		"	if attr.SRQ != nil {\n		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0 // which", "	if false {\n		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0 // which", "./verbs", "TestCreateQPWithSRQ"},
	{"any migration state is taken", "verbs/qpattr.go",
		"a.PathMigState > MigArmed:", "false:", "./verbs", "TestModifyValues"},
	{"a device without path migration is armed", hca + "qp.go",
		"attr.PathMigState != verbs.MigMigrated {", "false {", "./verbs", "TestModifyValues"},
	{"a region that is zero based no more keeps address 0", mem + "mr.go",
		"keepMemory && zero == 0 && old", "keepMemory && zero != ^zero && old", "./internal/mem", "TestReregZeroBased"},
	{"a closed QP sends to its SRQ", hca + "qp.go",
		"		if q.isClosed() {\n			return 0, verbs.ErrClosed\n		}\n		return 0, verbs.Errorf(verbs.ErrInvalid, \"the QP takes", "		return 0, verbs.Errorf(verbs.ErrInvalid, \"the QP takes", "./verbs", "TestUseAfterClose"},

	// Congestion control.
	{"a step of DCQCN is more than a slow line has", transport + "dcqcn.go",
		"min(dcqcnAdditive, d.line/dcqcnPart)", "dcqcnAdditive", "./internal/transport", "TestDCQCNSlowLine"},

	// Connections and streams.
	{"two connections come from one port", "rdmacm/agent.go",
		"if a.from[at] == nil {", "if true {", "./rdmacm", "TestPortsFrom"},
	{"an address that does not answer takes all the time there is", "rsocket/dial.go",
		"max(time.Until(end)/time.Duration(n), minShare)", "time.Until(end)", "./rsocket", "TestDialShares"},
	{"a listener waits for one silent peer after the other", "rsocket/listen.go",
		"				ends.Go(func() { c.Close() })\n", "				c.Close()\n", "./rsocket", "TestListenerCloseSilent"},
	{"a listener of IPv6 takes IPv4", "rsocket/listen.go",
		"AFOnly: families[network] == 128,", "AFOnly: false,", "./rsocket", "TestListenBothVersions"},
	{"a local port without an address is forgotten", "rsocket/dial.go",
		"dialOne(part, fromAny(from, addr), addr, cfg)", "dialOne(part, from, addr, cfg)", "./rsocket", "TestLocalAddr"},
	{"SetKeepAlive knows nothing of Close", "rsocket/conn.go",
		"		err = net.ErrClosed\n	default:\n	}\n	return c.opError(\"set\", err)", "	default:\n	}\n	return c.opError(\"set\", err)", "./rsocket", "TestErrClosed"},
	{"memory of a closed connection is mapped", "rsocket/iomap.go",
		"	if err := c.writeErr(); err != nil { // memory", "	if err := c.writeErr(); false { // memory", "./rsocket", "TestErrClosed"},
	{"empty slices stay in place", "rsocket/write.go",
		"				consume(v, 0) // they", "				consume(new(net.Buffers), 0) // they", "./rsocket", "TestWriteBuffersEmpty"},
	{"a deadline with a cause is no timeout", "rsocket/dial.go",
		"errors.Is(err, context.Cause(ctx))", "errors.Is(err, context.DeadlineExceeded)", "./rsocket", "TestDialTimeoutCause"},
	{"this host has IPv6 alone", "rsocket/dial.go",
		"{netip.IPv6Unspecified(), netip.IPv4Unspecified()}", "{netip.IPv6Unspecified()}", "./rsocket", "TestDialEmptyHost"},
}
