package main

import (
	"strings"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/bench"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cmtime"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cmtools"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/demo"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/devinfo"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/explain"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/heir"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/inspect"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/lab"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/perftest"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/pingpong"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rdmademo"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/rping"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/run"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/see"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/streams"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/version"
	"github.com/adverb-rdma/adverb/internal/showpackets"
)

// commands are the tool's commands. Each family of commands has a package of its own: a new family is a new package,
// and a line here. A command names its classic names itself.
var commands = []*cli.Command{
	devinfo.Devices, devinfo.Devinfo, devinfo.GIDs, devinfo.Verify,
	pingpong.RC, pingpong.UC, pingpong.UD, pingpong.SRQ, pingpong.XSRQ,
	rping.Command,
	rdmademo.Server, rdmademo.Client,
	devinfo.Asyncwatch,
	cmtools.Cmatose, cmtools.Udaddy, cmtools.Mckey,
	cmtime.Command,
	inspect.Stat, inspect.Res, heir.Command,
	perftest.SendBW, perftest.SendLat, perftest.WriteBW, perftest.WriteLat,
	perftest.ReadBW, perftest.ReadLat, perftest.AtomicBW, perftest.AtomicLat,
	streams.Proxy, streams.Rcopy, streams.Rstream, streams.Riostream,
	demo.Command, lab.Command,
	explain.Command, diagnose.Command, see.Command,
	run.Command,
	bench.Command,
	version.Command,
}

func newTool() *cli.Tool {
	var classic []string
	for _, c := range commands {
		if len(c.Classic) > 0 {
			classic = append(classic, c.Classic[0])
		}
	}
	return &cli.Tool{
		Name:  "adverb",
		Short: "RDMA verbs with no card",
		Long: "adverb runs RDMA verbs programs with no card: its software devices speak RoCEv2 over plain UDP.\n" +
			"Through a symlink of a classic name it is that program: " + strings.Join(classic, ", ") + ".",
		Commands: commands,
		AtEnd:    showpackets.Flush,
	}
}
