package demo

import "github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"

// tool is the tool with the commands of this package.
var tool = tooltest.New(Command)
