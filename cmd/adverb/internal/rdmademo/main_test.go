package rdmademo

import (
	"testing"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
)

// tool is the tool with the commands of this package.
var tool = tooltest.New(Server, Client)

func TestMain(m *testing.M) { tool.Main(m) }

// The devices of these tests, on addresses that no other test has.
const (
	serverAddr   = "127.0.88.41"
	serverDevice = "soft_lo@127.0.88.41"
	clientDevice = "soft_lo@127.0.88.42"
)

// testPort is another port in each process, so that two runs of the tests do not meet.
var testPort = tooltest.FreeCMPort()
