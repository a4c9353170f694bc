// Package devinfo has the commands that print devices, their attributes, their GIDs and their asynchronous events.
package devinfo

import (
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/device"
	"github.com/adverb-rdma/adverb/verbs"
)

// Devices is the command devices.
var Devices = &cli.Command{
	Name:    "devices",
	Classic: []string{"ibv_devices"},
	Short:   "List RDMA devices",
	Flags:   []cli.Flag{cli.JSONFlag},
	Forms:   []cli.Form{{}},
	Usage:   cli.UsageLine,
	Run:     runDevices,
}

type deviceJSON struct {
	Name      string `json:"name"`
	NodeGUID  string `json:"node_guid"`
	NodeType  string `json:"node_type"`
	Transport string `json:"transport"`
	Provider  string `json:"provider"`
	Netdev    string `json:"netdev"`

	KernelName    string   `json:"kernel_name,omitempty"`
	SharesUDPPort []string `json:"shares_udp_port,omitempty"`
}

func newDeviceJSON(d verbs.DeviceInfo) deviceJSON {
	return deviceJSON{d.Name, d.NodeGUID.String(), d.NodeType, transportName(d.Transport), d.Provider, d.Netdev, d.KernelName, d.SharesUDPPort}
}

func runDevices(inv *cli.Invocation) int {
	asJSON := false
	// The C program ignores all arguments, so this one ignores all but its own.
	for _, a := range inv.Args {
		switch {
		case a == "--json":
			asJSON = true
		case a == "--help", a == "-h" && !inv.ByClassicName:
			inv.PrintHelp()
			return cli.ExitOK
		}
	}
	list, ok := device.List(inv)
	if !ok {
		return cli.ExitError
	}
	if asJSON {
		out := []deviceJSON{}
		for _, d := range list {
			out = append(out, newDeviceJSON(d))
		}
		return inv.PrintJSON(out)
	}
	printDevices(inv.Stdout, list)
	return cli.ExitOK
}

func printDevices(w io.Writer, list []verbs.DeviceInfo) {
	fmt.Fprintf(w, "    %-16s\t   node GUID\n", "device")
	fmt.Fprintf(w, "    %-16s\t----------------\n", "------")
	for _, d := range list {
		fmt.Fprintf(w, "    %-16s\t%x\n", d.Name, d.NodeGUID[:])
	}
}
