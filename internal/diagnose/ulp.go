package diagnose

import (
	"encoding/binary"

	"github.com/adverb-rdma/adverb/internal/meaning"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Ports by which programs are known that use RDMA.
const (
	portNVMe      = 4420
	portDiscovery = 8009
)

var ulpPorts = map[uint16]string{
	portNVMe: "NVMe over Fabrics", portDiscovery: "NVMe discovery", 445: "SMB Direct", 5445: "SMB Direct",
	2049: "NFS over RDMA", 20049: "NFS over RDMA", 3260: "iSER", 18515: "perftest or a pingpong", 7174: "rping",
}

// ulpOf names the program of a service ID, as far as its port tells.
func ulpOf(service uint64) string {
	if _, port, ok := wire.SplitRDMAServiceID(service); ok {
		return ulpPorts[port]
	}
	return ""
}

// nvmeStatus reads the private data by which an NVMe target rejects a connection.
func nvmeStatus(private []byte) string {
	if len(private) < 4 {
		return ""
	}
	status := binary.LittleEndian.Uint16(private[2:])
	text := meaning.NVMeStatus(int(status))
	if text == "" {
		return words(" As NVMe: status %d.", status)
	}
	return words(" As NVMe: status %d, %s.", status, text)
}
