package cmtime

import "github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"

// tool is the tool with the commands of this package.
var tool = tooltest.New(Command)

// The devices of these tests, on addresses that no other test has.
const (
	serverAddr   = "127.0.88.51"
	serverDevice = "soft_lo@127.0.88.51"
	clientDevice = "soft_lo@127.0.88.52"
)
