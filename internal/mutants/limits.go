package main

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
}
