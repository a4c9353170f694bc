package main

// doorMutants are defects of what strangers may take: places, times and files.
var doorMutants = []mutant{
	{"all addresses of an IPv6 network count by themselves", crowd + "crowd.go",
		"const networkBits = 64", "const networkBits = 128", "./internal/cm", "TestREQsOfOneNetwork"},
	{"one host of an IPv6 network keeps its neighbors out", crowd + "crowd.go",
		"		return src.contest(host, c.lead)\n	case", "		return loser, false\n	case", "./internal/cm", "TestREQsOfOneNetwork"},
	{"a member that was heard from is as old as before", crowd + "crowd.go",
		"	s.of.remove(s)\n	s.of.append(s)\n", "	s.of.remove(s)\n	defer s.of.append(s)\n", "./internal/crowd", "TestCrowd"},
	{"members that come again take one another's place for ever", crowd + "crowd.go",
		"	c.lead = 2\n", "", "./internal/crowd", "TestCrowd"},

	// iWARP's listener.
	{"requests beyond the backlog are turned away", connector + "tcpport.go",
		"	if !ok || p.released {\n		return c\n", "	if !ok || p.released || p.unanswered.Len() > 0 {\n		return c\n", "./provider/soft", "TestIWARPBurst"},
	{"requests that wait come before their turn", connector + "tcpport.go",
		"	p.unanswered = crowd.NewReturning[*tcpConn](backlog, backlog)", "	p.unanswered = crowd.NewReturning[*tcpConn](8*backlog, 8*backlog)", "./internal/connector", "TestRequestsBeyondBacklog"},
	{"any number of requests wait", connector + "tcpport.go",
		"crowd.New[*tcpConn](waiting, waiting/2)", "crowd.New[*tcpConn](8*waiting, 8*waiting)", "./internal/connector", "TestTooManyWait"},
	{"a request that lost its place is gone", connector + "tcpport.go",
		"	p.requested(conn, c.request)\n}\n\n// leaveQueue", "	_ = conn.Close()\n}\n\n// leaveQueue", "./internal/connector", "TestBacklogIsShared"},
	{"a program does not hear that a request has lost its place", connector + "tcpconn.go",
		"		c.report(Event{Kind: Unreachable, Err: why})\n", "		_ = why\n", "./internal/connector", "TestBacklogIsShared"},
	{"a place that is free goes to nobody who waits", connector + "tcpport.go",
		"	p.c.dispatch(p.advance)\n", "", "./internal/connector", "TestRequestsBeyondBacklog"},
	{"a request that left while it waited keeps its place", connector + "tcpconn.go",
		"		c.port.leaveQueue(c)\n		c.report(", "		c.report(", "./internal/connector", "TestDepartedRequestLeavesBacklog"},
	{"bytes behind an MPA request are nobody's concern", connector + "tcpport.go",
		"	if err != nil || len(early) > 0 {", "	if err != nil {", "./internal/connector", "TestBytesBehindRequest"},
	{"requests that wait outlive their listener", connector + "tcpport.go",
		"	for _, c := range waiting {\n		c.Close()\n	}\n", "	_ = waiting\n", "./internal/connector", "TestReleaseRefusesWaiting"},
	{"a silent connection gives way to none of its own host", connector + "tcpport.go",
		"		loser, _ = p.silent.Oldest(from)\n", "", "./internal/connector", "TestSilentConnectionsOfOneHost"},
	{"an iWARP peer that closes the connection has said no", connector + "tcpconn.go",
		"uint16(wire.RejConsumerDefined), Err: errUnanswered})", "uint16(wire.RejConsumerDefined)})", "./internal/connector", "TestTCPReset"},

	// The ends of iWARP connections.
	{"the linger timer closes nothing", rnic + "stream.go",
		"			s.tell(nil)\n			s.release()\n		})", "			s.tell(nil)\n		})", "./internal/rnic", "TestPeerStays"},
	{"a stream that is discarded is not closed at its end", rnic + "stream.go",
		"			s.quiet = true\n			s.tell(nil)\n			s.release()\n			return false", "			s.quiet = true\n			s.tell(nil)\n			return false", "./internal/rnic", "TestDiscardByTurns"},

	// Listeners of rsockets.
	{"a peer may take any time to complete its connection", "rsocket/listen.go",
		"context.WithTimeout(ctx, l.handshakeTime)", "context.WithCancel(ctx)", "./rsocket", "TestHandshakeTime"},
	{"the time of a handshake is always the default", "rsocket/listen.go",
		"cmp.Or(lc.HandshakeTime, DefaultHandshakeTime)", "DefaultHandshakeTime", "./rsocket", "TestHandshakeTime"},
}
