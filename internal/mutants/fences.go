package main

// fenceMutants are the defects of code that takes no lock, or too short a one: stores that others see late.
var fenceMutants = []mutant{
	{"a QP's state changes while receives are being posted", queue + "recvqueue.go",
		"	q.mu.Lock()\n	defer q.mu.Unlock()\n	q.state = state\n", "	q.state = state\n", "./internal/queue", "TestLitmusPostVersusError"},
	{"a receive that is posted beside RESET stays", queue + "recvqueue.go",
		"	if state = q.state; state != verbs.QPStateReset {\n", "	if state = q.state; true {\n", "./internal/queue", "TestLitmusPostVersusReset"},
	{"receives that are posted in ERR are flushed by nobody", hca + "qp.go",
		"		if q.t.State() == verbs.QPStateErr { // and not RESET by now\n", "		if false {\n", "./internal/hca", "TestLitmusPostRecvVersusError"},
	{"receives that are posted to a failed connection are flushed by nobody", rnic + "qp.go",
		"		if q.t.State() == verbs.QPStateErr { // and not RESET by now\n", "		if false {\n", "./internal/rnic", "TestLitmusPostRecvVersusError"},
	{"completions are seen once the queue is no longer locked", queue + "cq.go",
		"	c.show(uint64(c.count - before))\n	if notify {\n		c.arm = notArmed\n	}\n	c.mu.Unlock()\n",
		"	shown := uint64(c.count - before)\n	if notify {\n		c.arm = notArmed\n	}\n	c.mu.Unlock()\n	c.show(shown)\n",
		"./internal/queue", "TestLitmusPushVersusArm"},
	{"a sender looks whether the receiver sleeps before its record is seen", shm + "out.go",
		"	o.tail.Store(o.pos) // and", "	release.Store(o.tail, o.pos) // and", "./internal/shm", "TestLitmusPublishVersusSleep"},
	{"a receiver looks whether the sender waits before its room is seen", shm + "in.go",
		"	i.head.Store(i.pos) // and", "	release.Store(i.head, i.pos) // and", "./internal/shm", "TestLitmusReleaseVersusRoom"},
	{"a sender looks at a grant before it is seen to be at work", shm + "access.go",
		"	a.busy.Store(off>>placeUnit<<placeShift | a.n<<1&(1<<placeShift-1) | 1)\n",
		"	release.Store(a.busy, off>>placeUnit<<placeShift|a.n<<1&(1<<placeShift-1)|1)\n", "./internal/shm", "TestLitmusBeginVersusRevoke"},
	{"a payload that is recalled counts as taken", shm + "lend.go",
		"return l.state.CompareAndSwap(lent, taken)", "return l.state.Swap(taken) != taken", "./internal/shm", "TestLitmusTakenVersusRecall"},
	{"a region that closes waits for no Keeper's lock", mem + "keeper.go",
		"	k.lock.Lock()\n	defer k.lock.Unlock()\n", "", "./internal/mem", "TestLitmusKeeperVersusClose"},
}
