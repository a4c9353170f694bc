package main

const (
	native = "provider/native/"
	ibv    = "internal/ibv/"
)

// cardMutants are the defects of the code that drives cards.
var cardMutants = []mutant{
	{"an SGE of no bytes is handed to C", native + "post.go",
		"s.Length > 0 { // 0 is 2^31 to some", "true { // 0 is 2^31 to some", "./provider/native", "TestListOfMany"},
	{"a receive's SGE of no bytes is handed to C", native + "post.go",
		"s.Length > 0 { // 0 is 2^31 to some", "true { // 0 is 2^31 to some", "./provider/native", "TestEmptySGEs"},
	{"the completions of a QP go with it", native + "cq.go",
		"	for !c.closed {\n		got", "	for false {\n		got", "./provider/native", "TestCompletionsOutlive"},
	{"completions that were kept come last", native + "cq.go",
		"	if len(c.kept) > 0 {\n", "	if len(c.kept) > 0 && len(wcs) > 7 {\n", "./provider/native", "TestCompletionsOutlive"},
	{"a failed completion does not say that its QP failed", native + "cq.go",
		"		q.failed(c, wc)\n", "", "./provider/native", "TestConformanceFake"},
	{"receives of connected QPs have a GRH", native + "cq.go",
		"		wc.Flags &^= verbs.WCFlagGRH //", "		//", "./provider/native", "TestConformanceFake"},
	{"inline data is taken from behind its region", native + "mr.go",
		"off > n || uint64(s.Length) > n-off", "off > n", "./provider/native", "TestInline"},
	{"another memory brings access flags, which libibverbs refuses", native + "mr.go",
		"	if flags&verbs.ReregAccess != 0 {\n		access", "	if flags != 0 {\n		access", "./provider/native", "TestConformanceFake"},
	{"the memory of a closed region stays pinned", native + "mr.go",
		"	m.pin.Unpin()\n	pinned.Delete(m)\n", "	m.pin.Unpin()\n", "./provider/native", "TestAgeing"},
	{"a region's addresses are used again at once", native + "mapping.go",
		"	for len(resting.maps) > maxResting ||", "	for len(resting.maps) > 0 ||", "./provider/native", "TestAllocMR"},
	{"events of an SRQ that is closed stay", native + "srq.go",
		"return e.SRQ == s.user })", "return false })", "./provider/native", "TestNoEventOfClosed"},
	{"who asked for the first message hears of each", native + "qp.go",
		"			go f()\n			return true\n", "			go f()\n			go f()\n			return true\n", "./provider/native", "TestCommEst"},
	{"errno of a call is not read", ibv + "call.go",
		"*f = frame{fn: fn.at, errnoAt: errnoLocation}", "*f = frame{fn: fn.at}", "./provider/native", "TestErrors"},
	{"a list is posted with what an earlier one had behind its end", ibv + "queue.go",
		"	last.next = Ref[SendWR]{}\n", "", "./provider/native", "TestListOfMany"},
	{"blocks of a call are not given back", ibv + "call.go",
		"	defer s.give()\n", "", "./provider/native", "TestAgeing"},
	{"an answer to a datagram goes by RoCE v1", "verbs/ah.go",
		"		if fit > 0 && e.Type == typ {\n", "		if fit > 9 && e.Type == typ {\n", "./verbs", "TestAHAttrFromWC"},
	{"a provider of which nothing is wanted is asked", "verbs/choose.go",
		"	return len(c) == 0 || slices", "	return len(c) < 9 || slices", "./verbs/bare", "TestChoice"},
}
