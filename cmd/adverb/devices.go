package main

import (
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/verbs"
)

var devicesCmd = &command{
	name:    "devices",
	classic: "ibv_devices",
	short:   "List RDMA devices",
	options: []option{jsonOption},
	usage:   func(w io.Writer, _ *command, prog string) { fmt.Fprintf(w, "Usage: %s\n", prog) },
	run:     runDevices,
}

type deviceJSON struct {
	Name      string `json:"name"`
	NodeGUID  string `json:"node_guid"`
	NodeType  string `json:"node_type"`
	Transport string `json:"transport"`
	Provider  string `json:"provider"`
	Netdev    string `json:"netdev"`
}

func newDeviceJSON(d verbs.DeviceInfo) deviceJSON {
	return deviceJSON{d.Name, d.NodeGUID.String(), d.NodeType, transportName(d.Transport), d.Provider, d.Netdev}
}

func runDevices(inv *invocation) int {
	asJSON := false
	// The classic program looks at no argument, so only ours are looked for.
	for _, a := range inv.args {
		switch {
		case a == "--json":
			asJSON = true
		case a == "--help", a == "-h" && !inv.isName:
			inv.printHelp()
			return exitOK
		}
	}
	list, err := verbs.Devices()
	if err != nil && len(list) == 0 {
		return inv.fail(err, "Failed to get IB devices list: %v\n", errno(err))
	}
	inv.explain(err) // one provider failed, another has devices
	if asJSON {
		out := []deviceJSON{}
		for _, d := range list {
			out = append(out, newDeviceJSON(d))
		}
		return inv.printJSON(out)
	}
	printDevices(inv.stdout, list)
	return exitOK
}

func printDevices(w io.Writer, list []verbs.DeviceInfo) {
	fmt.Fprintf(w, "    %-16s\t   node GUID\n", "device")
	fmt.Fprintf(w, "    %-16s\t----------------\n", "------")
	for _, d := range list {
		fmt.Fprintf(w, "    %-16s\t%x\n", d.Name, d.NodeGUID[:])
	}
}
