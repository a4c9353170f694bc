package pingpong

import (
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// tool is the tool with the commands of this package.
var tool = tooltest.New(RC, UC, UD, SRQ, XSRQ)

func TestMain(m *testing.M) { tool.Main(m) }
