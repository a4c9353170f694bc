package streams

import (
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// tool is the tool with the commands of this package.
var tool = tooltest.New(Proxy, Rcopy, Rstream, Riostream)

func TestMain(m *testing.M) { tool.Main(m) }
