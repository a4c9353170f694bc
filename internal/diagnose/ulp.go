package diagnose

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

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

// A carried protocol is what shows that connections carry it.
type carried struct {
	reqs  int    // to its port
	port  uint16 // of the latest
	begun int    // queue pairs that begin with a message of it
}

// ulpSeen returns the record of a protocol.
func (a *Analyzer) ulpSeen(name string) *carried {
	c := a.ulps[name]
	if c == nil {
		c = new(carried)
		a.ulps[name] = c
	}
	return c
}

// ulpOfREQ looks at the port that a REQ asks for.
func (a *Analyzer) ulpOfREQ(service uint64) {
	_, port, ok := wire.SplitRDMAServiceID(service)
	if name := ulpPorts[port]; ok && name != "" {
		c := a.ulpSeen(name)
		c.reqs++
		c.port = port
	}
}

// firstSends is the requests of a queue pair among which the first message is looked for.
const firstSends = 4

// ulpOfSend looks at the first messages of a queue pair.
func (a *Analyzer) ulpOfSend(f *flow, w *wire.Packet) {
	if f.ulpKnown || f.requests > firstSends || !w.Opcode.IsSend() || !w.Opcode.StartsMessage() {
		return
	}
	name := ""
	switch b := w.Payload; {
	case isNVMeConnect(b):
		name = ulpPorts[portNVMe]
	case isSMBNegotiate(b):
		name = "SMB Direct"
	case isRPC(b):
		name = "NFS over RDMA"
	default:
		return
	}
	f.ulpKnown = true
	a.ulpSeen(name).begun++
}

// isNVMeConnect reports whether a message is the Connect command of NVMe over Fabrics.
func isNVMeConnect(b []byte) bool {
	const command, fabrics, byOffset, connect = 64, 0x7f, 0x40, 1
	return len(b) >= command && b[0] == fabrics && b[1] == byOffset && b[4] == connect
}

// isSMBNegotiate reports whether a message is the negotiate request of SMB Direct, version 1.0.
func isSMBNegotiate(b []byte) bool {
	const size, version = 20, 0x0100
	le := binary.LittleEndian
	return len(b) == size && le.Uint16(b) == version && le.Uint16(b[2:]) == version && le.Uint16(b[4:]) == 0 && le.Uint16(b[6:]) > 0
}

// isRPC reports whether a message is a call of RPC over RDMA, version 1, without chunks.
func isRPC(b []byte) bool {
	const header, version, call, rpcVersion = 28, 1, 0, 2
	be := binary.BigEndian
	if len(b) < header+12 || be.Uint32(b[4:]) != version {
		return false
	}
	for i := 12; i < header; i += 4 { // the type of the message, and three lists that are empty
		if be.Uint32(b[i:]) != 0 {
			return false
		}
	}
	return be.Uint32(b) == be.Uint32(b[header:]) && be.Uint32(b[header+4:]) == call && be.Uint32(b[header+8:]) == rpcVersion
}

// carries tells what the connections carry.
func (a *Analyzer) carries() {
	for _, name := range slices.Sorted(maps.Keys(a.ulps)) {
		x, c := a.found.add(ulp, ""), a.ulps[name]
		if x == nil {
			continue
		}
		x.Count = max(c.reqs, c.begun)
		var parts []string
		if c.reqs > 0 {
			parts = append(parts, words("%s to its port %d", counted(c.reqs, "connection request"), c.port))
		}
		if c.begun > 0 {
			parts = append(parts, words("%s with a message of its own at the beginning", counted(c.begun, "queue pair")))
			x.Certainty, x.WrongIf = Likely, ""
		}
		x.Words = name + ": " + strings.Join(parts, ", and ") + "."
	}
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
