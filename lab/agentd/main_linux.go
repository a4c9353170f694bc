// Agentd is the first process of a guest in the lab, once the guest is set up. It runs commands for
// the host.
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/adverb-rdma/adverb/lab/agent"
)

func main() {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", agent.Port))
	if err == nil {
		fmt.Println(agent.Ready)
		err = agent.Serve(l)
	}
	fmt.Fprintln(os.Stderr, "agentd:", err)
	os.Exit(1)
}
