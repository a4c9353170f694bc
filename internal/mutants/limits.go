package main

const (
	soft    = "provider/soft/"
	rdmaCM  = "rdmacm/"
	rSocket = "rsocket/"
)

// limitMutants are of what the host has little of: memory, descriptors, options of sockets.
var limitMutants = []mutant{
	// What the host has left.
	{"the host is asked for its limits for each region", mem + "answer_linux.go",
		"if m.answer.at.IsZero() || time.Since(m.answer.at) > answerAge {", "if true {", "./internal/mem", "TestAnswer$"},
	{"an answer of the host serves for ever", mem + "answer_linux.go",
		" || time.Since(m.answer.at) > answerAge {", " {", "./internal/mem", "TestAnswer$"},
	{"what was allocated since the answer is not taken off", mem + "answer_linux.go",
		"func (a *answer) takes(n uint64) { a.allocated += min(n, math.MaxUint64-a.allocated) }", "func (a *answer) takes(n uint64) { _ = uint64(math.MaxUint64) }", "./internal/mem", "TestAnswer$"},
	{"what is given back stays taken off", mem + "answer_linux.go",
		"func (a *answer) gives(n uint64) { a.allocated -= min(n, a.allocated) }", "func (a *answer) gives(uint64) {}", "./internal/mem", "TestAnswer$"},
	{"a small region needs as much as its slab", mem + "alloc_linux.go",
		"own, err := m.mapMemory(slabSize, size)", "own, err := m.mapMemory(slabSize, slabSize)", "./internal/mem", "TestSlabShort"},
	{"files that the kernel keeps in memory count as used", mem + "host_linux.go",
		"	used -= min(used, inactive+active/2)\n", "	_ = active\n	used -= min(used, inactive)\n", "./internal/mem", "TestMemoryLimits"},

	// Rings that grow.
	{"a CQ never grows", queue + "cq.go",
		"c.count == len(c.ring) && !c.grow() {", "c.count == len(c.ring) {", "./internal/queue", "TestCQGrows"},
	{"a CQ that grows loses what lies behind its ring's end", queue + "cq.go",
		"	copy(ring[k:], c.ring[:c.count-k])\n", "	_ = k\n", "./internal/queue", "TestCQGrows"},
	{"a CQ grows beyond what was asked for", queue + "cq.go",
		"	n := min(2*len(c.ring), c.entries)\n", "	n := 2 * len(c.ring)\n", "./internal/queue", "TestCQGrows"},
	{"rings have all of their places from the beginning", queue + "room.go",
		"	return min(most, firstPlaces)\n", "	return max(most, firstPlaces)\n", "./rsocket", "TestIdleHeap"},
	{"rings grow where the heap may not", queue + "room.go",
		"	if mem.HeapIsBounded() {\n", "	if false {\n", "./internal/queue", "TestBoundedHeap"},
	{"a send queue grows beyond the granted size", transport + "sendqueue.go",
		"	if len(sq.wqes) < int(sq.most) {\n", "	if len(sq.wqes) <= int(sq.most) {\n", "./internal/transport", "TestSendQueueGrows"},
	{"a send queue that grows puts work requests into other places", transport + "sendqueue.go",
		"		*sq.at(place) = *old.at(place)\n", "		sq.wqes[place-sq.freed.Load()] = *old.at(place)\n", "./internal/transport", "TestSendQueueGrows"},
	{"a send queue of iWARP that grows forgets what is in it", iwarp + "sendqueue.go",
		"		*sq.at(place) = *old.at(place)\n", "", "./internal/iwarp", "TestSendQueueGrows"},

	// Options of sockets that a sandbox refuses.
	{"a link needs every option of its sockets", udp + "options_linux.go",
		"	for _, o := range options {\n		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)\n", "	for _, o := range options {\n		if unix.SetsockoptInt(fd, o.level, o.name, o.value) != nil {\n			unix.Shutdown(fd, unix.SHUT_RDWR)\n			unix.Close(fd)\n		}\n", "./internal/link/udp", "TestRefusedOption"},
	{"a refused option of multicast means no link", udp + "link_linux.go",
		"err != nil && !refused(err) {\n			return fail(err)\n", "err != nil {\n			return fail(err)\n", "./internal/link/udp", "TestRefusedOption"},
	{"it is not said which options are refused", soft + "soft.go",
		", Refused: udp.Refused(),", ",", "./provider/soft", "TestSandboxOptions"},
	{"a process without SO_REUSEPORT shares its address all the same", host + "netdev_linux.go",
		"	if err := udp.Sharing(); err != nil {\n", "	if err := udp.Sharing(); false {\n", "./provider/soft", "TestSandboxOptions"},
	{"a process without SO_PASSCRED has mailboxes all the same", host + "netdev_linux.go",
		"	if err == nil {\n		unix.Close(fd)\n	}\n	return err\n}\n", "	if err == nil {\n		unix.Close(fd)\n	}\n	return nil\n}\n", "./provider/soft", "TestSandboxOptions"},

	// Descriptors of lanes.
	{"each block of a receiver has a lane of its own", lanes + "lanes_linux.go",
		"	if o := s.made[r]; o != nil && !o.Broken() {\n", "	if o := s.made[r]; false {\n", "./internal/lanes", "TestLaneOfBlocks"},
	{"a lane that is broken is found by its receiver's name", lanes + "lanes_linux.go",
		"	if o := s.made[r]; o != nil && !o.Broken() {\n", "	if o := s.made[r]; o != nil {\n", "./internal/lanes", "TestLanesMade"},
	{"lanes take all descriptors", handover + "handover_linux.go",
		"spares = uint64(fd)+PerConn <= limit.Cur-limit.Cur/SparePart })", "spares = true })", "./internal/lanes", "TestLaneLeavesDescriptors"},
	{"a lane that is given up is found by other blocks", lanes + "lanes_linux.go",
		"	maps.DeleteFunc(s.outs, func(_ route, other *shm.Out) bool { return other == o })\n", "", "./internal/lanes", "TestLanesMade"},
	{"messages to other processes take all descriptors", host + "owners_linux.go",
		"	return int32(max(1, min(maxOutlets, limit.Cur/outletPart)))\n", "	return maxOutlets\n", "./internal/host", "TestOutletsFew"},

	// Listeners that cannot take a connection.
	{"a peer is told that the program has said no where a limit is in the way", rdmaCM + "id.go",
		"	if id.state == stateRequested && id.lacks {\n", "	if false {\n", "./rdmacm", "TestNoResources$"},
	{"an errno of a limit is none", rdmaCM + "lack.go",
		"return errors.Is(err, verbs.ErrLimit) || slices", "return errors.Is(err, verbs.ErrLimit) && slices", "./rdmacm", "TestNoResources$"},
	{"a QP for which there is no room is no reason to refuse", rdmaCM + "qp.go",
		"	id.lacks = isLimit(err)\n", "", "./rdmacm", "TestNoResourcesForQP"},
	{"an iWARP peer cannot tell a limit from a program's no", connector + "tcpconn.go",
		"	if reason != wire.RejNoResources {\n", "	if true {\n", "./rdmacm", "TestNoResources$"},
	{"Accept says nothing of connections that there is no room for", rSocket + "listen.go",
		"			case l.short <- err:\n", "			case make(chan error) <- err:\n", "./rsocket", "TestShortage$"},
	{"the error of Accept for want of resources does not pass", rSocket + "errors.go",
		"func (e *shortageError) Temporary() bool { return true }", "func (e *shortageError) Temporary() bool { return false }", "./rsocket", "TestShortage$"},
}
