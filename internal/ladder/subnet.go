package ladder

import (
	"fmt"
	"strings"

	"github.com/adverb-rdma/adverb/internal/wire"
)

// managementMethods and subnetAttributes are names of InfiniBand's management datagrams.
var (
	managementMethods = map[uint8]string{
		wire.MADMethodGet: "Get", wire.MADMethodSet: "Set", wire.MADMethodTrap: "Trap", wire.MADMethodGetTable: "GetTable", wire.MADMethodDelete: "Delete",
		wire.MADMethodGetResp: "GetResp", wire.MADMethodGetTable | wire.MADMethodResponse: "GetTableResp", wire.MADMethodDelete | wire.MADMethodResponse: "DeleteResp",
	}
	subnetAttributes = map[uint16]string{
		wire.AttrClassPort: "ClassPortInfo", wire.AttrNotice: "Notice", wire.AttrNodeDesc: "NodeDescription", wire.AttrNodeInfo: "NodeInfo", wire.AttrSwitch: "SwitchInfo",
		wire.AttrPortInfo: "PortInfo", wire.AttrPKeyTable: "P_KeyTable", wire.AttrLFT: "LinearForwardingTable", wire.AttrMFT: "MulticastForwardingTable", wire.AttrSMInfo: "SMInfo",
		wire.AttrPathRecord: "PathRecord", wire.AttrMCMemberRecord: "MCMemberRecord",
	}
)

// prefixes begin the fields of management datagrams, which need no further words.
var prefixes = []string{"CM ", "SMP ", "SA "}

func isManagement(fields string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(fields, p) {
			return true
		}
	}
	return false
}

// subnetManagement describes a datagram of the subnet manager, or of subnet administration. It returns "" for others.
func subnetManagement(qpn uint32, mad []byte) string {
	h, err := wire.DecodeMADHeader(mad)
	if err != nil {
		return ""
	}
	class, more := "", ""
	switch {
	case qpn == 0 && h.MgmtClass == wire.MADClassSM:
		class = "SMP"
	case qpn == 0 && h.MgmtClass == wire.MADClassSMDirect:
		class, more = "SMP", ", by a directed route"
	case qpn == wire.GSIQPN && h.MgmtClass == wire.MADClassSA:
		class = "SA"
	default:
		return ""
	}
	method, ok := managementMethods[h.Method]
	if !ok {
		method = fmt.Sprintf("method 0x%02x", h.Method)
	}
	attribute, ok := subnetAttributes[h.AttrID]
	if !ok {
		attribute = fmt.Sprintf("attribute 0x%04x", h.AttrID)
	}
	words := class + " " + method + " " + attribute + more
	if h.Method&wire.MADMethodResponse != 0 && h.Status != 0 {
		words += fmt.Sprintf(", status 0x%04x", h.Status)
	}
	return words
}
