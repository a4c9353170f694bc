package meaning

import "github.com/adverb-rdma/adverb/internal/wire"

// rejects are the reasons of a REJ.
var rejects = []struct {
	reason wire.RejReason
	name   string // C's, without IB_CM_REJ_
	phrase string // by which Linux prints it
	brief  string
	info   string // the contents of the additional information (ARI)
	causes []string
	checks []string
	see    []string
}{
	{wire.RejNoQP, "NO_QP", "no QP", "the peer could not make a QP for the connection", "", []string{"the peer's device or its program has reached a limit of QPs"}, []string{"the peer's log", "rdma resource show, or adverb res, at the peer"}, nil},
	{wire.RejNoEEC, "NO_EEC", "no EEC", "of the RD service, which no device has", "", nil, nil, nil},
	{wire.RejNoResources, "NO_RESOURCES", "no resources", "the peer lacks memory, descriptors, QPs or room in its backlog", "",
		[]string{"the listener's backlog is full: its program accepts too slowly", "a limit of the process or of the device"}, []string{"the peer's log", "the backlog of rdma_listen"}, nil},
	{wire.RejTimeout, "TIMEOUT", "timeout", "the peer has given up waiting for the next message of the handshake", "the GUID of the peer's channel adapter",
		[]string{"the program took longer between CONNECT_REQUEST and rdma_accept, or after the REP, than the other end waits", "messages of the CM were lost"}, []string{"the time that the program takes before it calls rdma_accept", "loss on the way: the counters cm_tx_retries_req and cm_tx_retries_rep"}, nil},
	{wire.RejUnsupported, "UNSUPPORTED", "unsupported", "the peer does not know the message", "", nil, nil, nil},
	{wire.RejInvalidCommID, "INVALID_COMM_ID", "invalid comm ID", "the peer knows no connection by this ID", "",
		[]string{"the peer has restarted, or has closed the connection already", "a late message of an ended connection"}, nil, nil},
	{wire.RejInvalidCommInstance, "INVALID_COMM_INSTANCE", "invalid comm instance", "the IDs and the QPN do not belong to one connection", "", []string{"a late message of an ended connection"}, nil, nil},
	{wire.RejInvalidServiceID, "INVALID_SERVICE_ID", "invalid service ID", "nobody listens on the port", "",
		[]string{"the server is not up yet, has ended, or listens on another port", "the server listens on another address or another device than the one that the request came to", "the port space differs: RDMA_PS_TCP and RDMA_PS_IB, RDMA_PS_UDP are apart", "NVMe over fabrics: the subsystem has no listener of trtype rdma at this traddr and trsvcid"},
		[]string{"at the server: rdma resource show cm_id, or adverb res cm_id: state LISTEN, address and port", "address and port that the client was given"}, nil},
	{wire.RejInvalidTransportType, "INVALID_TRANSPORT_TYPE", "invalid transport type", "the peer's listener does not take QPs of this type", "", []string{"one end wants UC or XRC, the other RC"}, nil, nil},
	{wire.RejStaleConn, "STALE_CONN", "stale conn", "the peer takes this QP for part of an older connection that it has not ended", "",
		[]string{"this end has died and restarted, and was given the same QPN, while the peer still held the old connection", "a QP was used again too early, before its time wait was over"},
		[]string{"try again with a new QP: the peer has ended the old connection now"}, nil},
	{wire.RejRDCNotExist, "RDC_NOT_EXIST", "RDC not exist", "of the RD service, which no device has", "", nil, nil, nil},
	{wire.RejInvalidGID, "INVALID_GID", "invalid GID", "the peer does not have the GID that the request names as its own", "a GID that the peer would accept",
		[]string{"the peer's address has moved or is on another port", "RoCE v1 at one end, and RoCE v2 at the other"}, []string{"show_gids at both ends; cma_roce_mode chooses the version for librdmacm"}, []string{"gid 2"}},
	{wire.RejInvalidLID, "INVALID_LID", "invalid LID", "the peer does not have the LID that the request names", "a LID that the peer would accept", []string{"a stale path record, after the subnet manager has moved LIDs"}, nil, nil},
	{wire.RejInvalidSL, "INVALID_SL", "invalid SL", "the peer does not accept the service level", "a service level that the peer would accept", nil, nil, nil},
	{wire.RejInvalidTrafficClass, "INVALID_TRAFFIC_CLASS", "invalid traffic class", "the peer does not accept the traffic class", "a traffic class that the peer would accept", nil, nil, nil},
	{wire.RejInvalidHopLimit, "INVALID_HOP_LIMIT", "invalid hop limit", "the peer does not accept the hop limit", "a hop limit that the peer would accept", nil, nil, nil},
	{wire.RejInvalidPacketRate, "INVALID_PACKET_RATE", "invalid packet rate", "the peer does not accept the packet rate", "a rate that the peer would accept", nil, nil, nil},
	{wire.RejInvalidAltGID, "INVALID_ALT_GID", "invalid alt GID", "of the alternate path: the GID is not the peer's", "a GID that the peer would accept", nil, nil, []string{"reject 12"}},
	{wire.RejInvalidAltLID, "INVALID_ALT_LID", "invalid alt LID", "of the alternate path: the LID is not the peer's", "a LID that the peer would accept", nil, nil, []string{"reject 13"}},
	{wire.RejInvalidAltSL, "INVALID_ALT_SL", "invalid alt SL", "of the alternate path: the peer does not accept the service level", "a service level that the peer would accept", nil, nil, nil},
	{wire.RejInvalidAltTrafficClass, "INVALID_ALT_TRAFFIC_CLASS", "invalid alt traffic class", "of the alternate path: the peer does not accept the traffic class", "a traffic class that the peer would accept", nil, nil, nil},
	{wire.RejInvalidAltHopLimit, "INVALID_ALT_HOP_LIMIT", "invalid alt hop limit", "of the alternate path: the peer does not accept the hop limit", "a hop limit that the peer would accept", nil, nil, nil},
	{wire.RejInvalidAltPacketRate, "INVALID_ALT_PACKET_RATE", "invalid alt packet rate", "of the alternate path: the peer does not accept the packet rate", "a rate that the peer would accept", nil, nil, nil},
	{wire.RejPortCMRedirect, "PORT_CM_REDIRECT", "port CM redirect", "another connection manager serves this: ask that one", "the ClassPortInfo of that connection manager: its GID, LID, QPN, Q_Key and P_Key", nil, nil, nil},
	{wire.RejPortRedirect, "PORT_REDIRECT", "port redirect", "connect to another port of the peer", "the GID of that port", nil, nil, nil},
	{wire.RejInvalidMTU, "INVALID_MTU", "invalid MTU", "the path MTU is above the peer's", "the code of the greatest path MTU that the peer would accept",
		[]string{"the network interfaces of the two ends have different MTUs"}, []string{"ip link at both ends; active_mtu of ibv_devinfo"}, []string{"path_mtu", "mtu 5"}},
	{wire.RejInsufficientRespResources, "INSUFFICIENT_RESP_RESOURCES", "insufficient resp resources", "the peer cannot answer so many READs and atomics at a time", "",
		[]string{"initiator_depth of rdma_conn_param is above what the peer's program or device has"}, []string{"max_qp_rd_atom of the peer's device; a smaller initiator_depth"}, []string{"max_rd_atomic"}},
	{wire.RejConsumerDefined, "CONSUMER_DEFINED", "consumer defined", "the peer's program has said no", "the program's, if anything; with librdmacm the program's reason is in the private data",
		[]string{"the program behind the port refuses: wrong version, wrong credentials, full, shutting down", "the program behind the port is another one than was meant", "the program has ended or failed before it called rdma_accept: its kernel refuses for it", "NVMe over fabrics: the private data has NVMe's own status, such as an unknown host or queue size"},
		[]string{"the log of the peer's program: it alone knows", "the private data of the event"}, nil},
	{wire.RejInvalidRNRRetry, "INVALID_RNR_RETRY", "invalid RNR retry", "the peer does not accept the RNR retry count", "", nil, nil, []string{"rnr_retry"}},
	{wire.RejDuplicateLocalCommID, "DUPLICATE_LOCAL_COMM_ID", "duplicate local comm ID", "the peer has a connection with this ID already", "", []string{"this end has restarted, and the peer still holds a connection from before"}, []string{"try again"}, nil},
	{wire.RejInvalidClassVersion, "INVALID_CLASS_VERSION", "invalid class version", "the peer speaks another version of the CM's protocol", "the version that the peer would accept", nil, nil, nil},
	{wire.RejInvalidFlowLabel, "INVALID_FLOW_LABEL", "invalid flow label", "the peer does not accept the flow label", "a flow label that the peer would accept", nil, nil, nil},
	{wire.RejInvalidAltFlowLabel, "INVALID_ALT_FLOW_LABEL", "invalid alt flow label", "of the alternate path: the peer does not accept the flow label", "a flow label that the peer would accept", nil, nil, nil},
	{wire.RejVendorOptionNotSupported, "VENDOR_OPTION_NOT_SUPPORTED", "vendor option is not supported", "the peer does not support an option of a vendor", "", []string{"enhanced connection establishment (ECE) between cards of different vendors"}, nil, nil},
}

// RejectBrief returns the meaning of a reason of a REJ, in one line. It returns "" for a reason that is not known.
func RejectBrief(reason uint16) string {
	for i := range rejects {
		if uint16(rejects[i].reason) == reason {
			return rejects[i].brief
		}
	}
	return ""
}

func rejectEntries() (list []Entry) {
	for _, r := range rejects {
		e := Entry{
			Number: int(r.reason), Name: "IB_CM_REJ_" + r.name, Also: []string{r.phrase, r.reason.String()}, Brief: r.brief,
			Causes: r.causes, Checks: r.checks, See: r.see,
			More: "The additional information (ARI) of the REJ holds nothing for this reason.",
		}
		if len(r.causes) > 0 {
			e.Tools = []string{"ADVERB_TRACE=1 prints REJ with its reason", "adverb stat -v: cm_rx_msgs_rej, cm_tx_msgs_rej"}
		}
		if r.reason == wire.RejInvalidServiceID {
			e.Also = append(e.Also, "no listener")
		}
		if r.info != "" {
			e.More = "The additional information (ARI) of the REJ holds " + r.info + "."
		}
		list = append(list, e)
	}
	return list
}

func sidrEntries() []Entry {
	list := []Entry{
		{Number: int(wire.SIDRSuccess), Brief: "the service has a UD QP, whose QPN and Q_Key the answer has"},
		{Number: int(wire.SIDRUnsupported), Brief: "nobody listens on the port", See: []string{"reject 8"},
			Causes: []string{"the server is not up, or listens on another address, port or port space"}},
		{Number: int(wire.SIDRRejected), Brief: "the peer's program has said no", See: []string{"reject 28"}},
		{Number: int(wire.SIDRNoQP), Brief: "the peer has no QP for it"},
		{Number: int(wire.SIDRRedirect), Brief: "another connection manager serves this: ask that one", See: []string{"reject 24"}},
		{Number: int(wire.SIDRUnsupportedVersion), Brief: "the peer speaks another version of the CM's protocol"},
	}
	for i := range list {
		list[i].Name = wire.SIDRStatus(list[i].Number).String()
		list[i].More = "librdmacm tells it of an ID of RDMA_PS_UDP as the status of RDMA_CM_EVENT_UNREACHABLE."
	}
	return list
}
