package run

import (
	"os"
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/internal/supervisor"
)

// tool is the tool with the commands of this package.
var tool = tooltest.New(Command)

func TestMain(m *testing.M) {
	supervisor.Stage(Serve)
	if len(os.Args) >= 3 && os.Args[1] == asTarget {
		os.Exit(target(os.Args[2], os.Args[3:]...))
	}
	tool.Main(m)
}

// asTarget is the argument by which this binary is a program that runs under adverb run.
const asTarget = "target"
