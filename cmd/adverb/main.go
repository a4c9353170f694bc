// Command adverb is the tool of the module: the classic verbs programs, under their classic
// names too, and a demonstration that shows every packet. See "adverb --help".
package main

import (
	"context"
	"os"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/run"
	"github.com/adverb-rdma/adverb/internal/hca"
	"github.com/adverb-rdma/adverb/internal/supervisor"
)

func main() {
	supervisor.Stage(run.Serve) // does not return in the processes of adverb run
	ctx, stop := cli.Signals(context.Background())
	code := newTool().Run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	hca.DepartAll() // the connection manager's devices stay open until here
	os.Exit(code)
}
