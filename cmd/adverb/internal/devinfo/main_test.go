package devinfo

import "github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"

// tool is the tool with the commands of this package.
var tool = tooltest.New(Devices, Devinfo, GIDs, Asyncwatch, Verify)

// The devices of these tests, on addresses that no other test has.
const (
	serverDevice = "soft_lo@127.0.88.31"
)
