package main

// rpcMutants are of credits that are given back, of numbers that a peer names, and of counters that go on.
var rpcMutants = []mutant{
	{"the slot of a call that was given up is free before its cancel is posted", "rdmaio/client.go",
		"	_ = c.send(context.Background(), &message{kind: kindCancel, slot: s.i, number: s.number}, true) // or the connection has ended\n	<-s.answer\n",
		"	go c.send(context.Background(), &message{kind: kindCancel, slot: s.i, number: s.number}, true)\n	<-s.answer\n", "./rdmaio", "TestSlotOfCallGivenUp"},
	{"the slot of a call that was given up is free before its answer has come", "rdmaio/client.go",
		"	<-s.answer\n	lent.release()\n	c.free <- s\n", "	c.free <- s\n	<-s.answer\n	lent.release()\n", "./rdmaio", "TestSlotOfCallGivenUp"},
	{"who writes and never waits posts no receives", "rsocket/write.go",
		"	if c.bulk || c.target.length == 0 {\n		c.progress()", "	if c.bulk {\n		c.progress()", "./rsocket", "TestWriterHasReceives"},
	{"a slot beyond all is one", "rdmaio/wire.go",
		"	if slot >= maxSlots {\n", "	if slot > maxSlots {\n", "./rdmaio", "TestMessageSlot"},
	{"a peer has as many targets as it says", "rsocket/wire.go",
		"h.sgl.length < 2 || h.sgl.length > maxSGL {", "h.sgl.length < 2 {", "./rsocket", "TestHelloRefused"},
	{"a peer grants more messages than it has receives for", "rdmamsg/progress.go",
		"	case uint64(h.credits) > uint64(c.depth-c.credits):\n", "	case h.credits > 1<<20:\n", "./rdmamsg", "TestForeignPeer"},
	{"what a device has counted is lost when it closes", "verbs/registry.go",
		"	past, t = totalsFor(past, d.Name())\n	t.add(d)\n", "	past, t = totalsFor(past, d.Name())\n	_ = t\n", "./provider/soft", "TestTotals"},
	{"what a connection manager has counted is lost when it ends", "verbs/resource.go",
		"		d.managed = d.managed.plus((*old).Counters().withoutGauges())\n", "		_ = old\n", "./rdmacm", "TestNarrowPath"},
}
