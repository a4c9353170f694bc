package main

// What leaves a program by other ways than packets: captures, counters; and what leaves the project: releases.
var releaseMutants = []mutant{
	{"a checksum of zero says that there is none", "internal/link/pcap/header.go",
		"	if c == 0 { //", "	if false { //", "./internal/link/pcap", "TestChecksums"},
	{"an odd last byte is not in the checksum", "internal/link/pcap/header.go",
		"	if len(b) > 0 {\n		s +=", "	if false {\n		s +=", "./internal/link/pcap", "TestChecksums"},
	{"all packets of a capture came in", "internal/link/pcap/pcap.go",
		"		way = outbound\n", "", "./internal/link/pcap", "TestDirections"},
	{"two samples of the same labels", "internal/promtext/promtext.go",
		"	if _, ok := f.values[labels]; !ok {\n", "	if true {\n", "./internal/promtext", "TestSameLabels"},
	{"a program's name ends a label", "internal/promtext/promtext.go",
		"escapes.Replace(value)", "value", "./internal/promtext", "TestWrite"},
	{"a program's answer has no bound", "internal/promtext/promtext.go",
		"	if s.left--; s.left >= 0 {", "	if true {", "./internal/promtext", "TestBound"},
	{"an exporter without a host is at every address", "cmd/adverb/internal/inspect/export.go",
		"		host = \"127.0.0.1\"\n", "", "./cmd/adverb/internal/inspect", "TestExport"},
	{"any number of requests wait for their turn", "cmd/adverb/internal/inspect/export.go",
		"waiting: make(chan struct{}, maxTurns)", "waiting: make(chan struct{}, 2*maxTurns)", "./cmd/adverb/internal/inspect", "TestExportTurns"},

	// The lab.
	{"a page of any name may ask the lab", "cmd/adverb/internal/lab/serve.go",
		"host != \"127.0.0.1\" && host != \"localhost\" {", "host == \"\" {", "./cmd/adverb/internal/lab", "TestHosts"},
	{"the lab is at every address", "cmd/adverb/internal/lab/lab.go",
		"net.JoinHostPort(\"127.0.0.1\", strconv.Itoa(port))", "net.JoinHostPort(\"\", strconv.Itoa(port))", "./cmd/adverb/internal/lab", "TestServe"},
	{"time that passes at the end of a play is no step", "internal/stage/stage.go",
		"	s.note(Entry{Kind: \"over\"})", "	s.play.Steps--\n	s.note(Entry{Kind: \"over\"})", "./internal/stage", "TestReplay"},
	{"a link that is cut carries packets", "internal/stage/network.go",
		"	if lost || s.cut ||", "	if lost ||", "./internal/stage", "TestLessons"},
	{"a packet that is dropped arrives", "internal/stage/decision.go",
		"		p.Fate, p.Ended = Dropped, s.now\n", "", "./internal/stage", "TestDropped"},
	{"fields of a header are shown at other bits", "internal/stage/fields.go",
		"			bit += f.Bits\n", "			bit += f.Bits &^ 1\n", "./internal/stage", "TestFields"},

	// Releases.
	{"a release keeps the exceptions of the one before", "internal/publish/tree.go",
		"write(apiExcept, head(strings.SplitAfter(text[apiExcept], \"\\n\")))", "write(apiExcept, text[apiExcept])", "./internal/publish", "TestPrepare"},
	{"notes run into those of the release before", "internal/publish/tree.go",
		"	text, _, _ = strings.Cut(text, \"\\n## \")\n", "", "./internal/publish", "TestPrepare"},
	{"a bill of materials without Go's library", "internal/publish/sbom.go",
		"[]component{module(\"std\", strings.TrimPrefix(info.GoVersion, \"go\"), \"\")}", "[]component{}", "./internal/publish", "TestSBOM"},
	{"what breaks the API is not told", "api_test.go",
		"for _, l := range missing(gone, except) {", "for _, l := range missing(nil, except) {", ".", "TestAPIBreaks"},
}
