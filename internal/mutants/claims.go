package main

// What the documents and the checks claim.
var claimMutants = []mutant{
	{"ADVERB_SPIN=0 spins", "provider/soft/soft.go",
		"	if !e.spins || ", "	if ", "./provider/soft", "TestSpinByEnvironment"},
	{"a bound that is beaten is called a limit", "internal/benchdata/benchdata.go",
		"r.Workload.Unit != Seconds && ratio.Median > 1", "false", "./internal/benchdata", "TestIsLimit"},
	{"of latencies the greater one beats a bound", "internal/benchdata/benchdata.go",
		"r.Workload.Unit == Seconds && ratio.Median < 1", "r.Workload.Unit == Seconds && ratio.Median > 1", "./internal/benchdata", "TestIsLimit"},
	{"memcpy walks all messages that are under way, and not the region", "cmd/adverb/internal/bench/memcpy.go",
		"	n := w.region()\n", "	n := w.outstanding * w.size\n", "./cmd/adverb/internal/bench", "TestMemcpyFootprint"},
	{"the probe bounces messages by one packet, whatever the MTU is", "cmd/adverb/internal/bench/probeend.go",
		"PathMTU: e.PathMTU, Region", "PathMTU: max(e.PathMTU, e.w.size), Region", "./cmd/adverb/internal/bench", "TestBench$"},
	{"the bench measures iWARP's SENDs without receives", "cmd/adverb/internal/bench/peer.go",
		"		case kindSend, kindList:\n			return &method{missing: \"left out: iWARP has nothing", "		case kindSend:\n			return &method{missing: \"left out: iWARP has nothing",
		"./cmd/adverb/internal/bench", "TestIWARPSends"},
	{"the CPU times of client and server are mixed up", "cmd/adverb/internal/bench/pair.go",
		"	if isServer {\n", "	if !isServer {\n", "./cmd/adverb/internal/bench", "TestCPU"},
	{"-f reads seconds alone", "cmd/adverb/internal/perftest/params.go",
		"	if err != nil || arg == \"0\" {\n", "	if err != nil || arg != \"\" {\n", "./cmd/adverb/internal/perftest", "TestFlags$"},
	{"the suite of verbs skips where nobody connects by hand", "verbs/verbstest/conn.go",
		"	if !e.has(ByHand) {\n", "	if e.mustHave(ByHand); false {\n", "./provider/soft", "TestConformanceIWARP"},
	{"an RNIC's region reaches a byte further", "internal/mem/region.go",
		"	if off > size || n > size-off {\n", "	if off > size || n > size-off+1 {\n", "./provider/soft", "TestConformanceIWARP"},
	{"an RNIC's window reaches a byte further", "internal/mem/window.go",
		"	case off > b.length || n > b.length-off:\n", "	case off > b.length || n > b.length-off+1:\n", "./provider/soft", "TestConformanceIWARP"},
}
