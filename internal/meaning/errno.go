package meaning

// errnoNames are the errnos of Linux that calls of RDMA return, with the texts of strerror.
var errnoNames = []struct {
	number int
	name   string
	text   string
}{
	{1, "EPERM", "Operation not permitted"}, {2, "ENOENT", "No such file or directory"}, {4, "EINTR", "Interrupted system call"}, {5, "EIO", "Input/output error"},
	{9, "EBADF", "Bad file descriptor"}, {11, "EAGAIN", "Resource temporarily unavailable"}, {12, "ENOMEM", "Cannot allocate memory"}, {13, "EACCES", "Permission denied"},
	{14, "EFAULT", "Bad address"}, {16, "EBUSY", "Device or resource busy"}, {19, "ENODEV", "No such device"}, {22, "EINVAL", "Invalid argument"},
	{24, "EMFILE", "Too many open files"}, {28, "ENOSPC", "No space left on device"}, {34, "ERANGE", "Numerical result out of range"}, {38, "ENOSYS", "Function not implemented"}, {61, "ENODATA", "No data available"},
	{71, "EPROTO", "Protocol error"}, {74, "EBADMSG", "Bad message"}, {93, "EPROTONOSUPPORT", "Protocol not supported"},
	{95, "EOPNOTSUPP", "Operation not supported"}, {97, "EAFNOSUPPORT", "Address family not supported by protocol"}, {98, "EADDRINUSE", "Address already in use"},
	{99, "EADDRNOTAVAIL", "Cannot assign requested address"}, {100, "ENETDOWN", "Network is down"}, {101, "ENETUNREACH", "Network is unreachable"},
	{103, "ECONNABORTED", "Software caused connection abort"}, {104, "ECONNRESET", "Connection reset by peer"}, {110, "ETIMEDOUT", "Connection timed out"},
	{111, "ECONNREFUSED", "Connection refused"}, {113, "EHOSTUNREACH", "No route to host"}, {107, "ENOTCONN", "Transport endpoint is not connected"}, {121, "EREMOTEIO", "Remote I/O error"}, {125, "ECANCELED", "Operation canceled"}, {524, "ENOTSUPP", "Unknown error 524"},
}

// callErrno is the meaning of an errno as the result of one call.
type callErrno struct {
	number int
	brief  string
	causes []string
	checks []string
	see    []string
}

// calls are the calls with their errnos, the likeliest first. An empty state is any.
var calls = []struct {
	call, state string
	errnos      []callErrno
}{
	{"ibv_modify_qp", "INIT", []callErrno{
		{22, "an attribute of INIT is missing or not possible", []string{"port_num is 0 or above the device's ports", "pkey_index names no entry", "qp_access_flags asks for what the device lacks, often atomics", "the QP is not in RESET"},
			[]string{"INIT of RC needs PKEY_INDEX, PORT and ACCESS_FLAGS, and no others", "ibv_devinfo -v: ports, pkey_tbl_len, atomic_cap"}, []string{"qp-state 1"}},
		{19, "the device or its port has gone", []string{"the driver was reset or unloaded", "a device of another network namespace"}, []string{"the kernel's log; rdma system show netns"}, nil},
	}},
	{"ibv_modify_qp", "RTR", []callErrno{
		{110, "nobody answered when the kernel asked for the MAC address of the peer's GID",
			[]string{
				"a wrong GID index here or at the peer: its address is of another subnet, VLAN or rail, or is link-local",
				"the rails of a cluster are not connected with each other: NCCL_CROSS_NIC=0 keeps to one rail",
				"the peer's interface is down, or ARP or neighbour discovery is filtered on the way",
				"several interfaces in one subnet: replies leave by another interface (arp_ignore, arp_announce, rp_filter, routing tables for each interface)",
			},
			[]string{
				"ping -I INTERFACE from the address behind the local GID to the address behind the peer's GID; ip neigh then has its MAC address",
				"show_gids or adverb gids: take the entry of RoCE v2 with an IPv4 address, at both ends, and set NCCL_IB_GID_INDEX, UCX_IB_GID_INDEX or MC_GID_INDEX to its index",
			},
			[]string{"sgid_index", "gid 2"}},
		{22, "an attribute of RTR is missing or not possible",
			[]string{
				"path_mtu is above the port's active MTU: 4096 on an Ethernet of 1500, which carries 1024",
				"the GID index names an empty entry, or is_global is 0: RoCE always needs a GRH, with sgid_index, dgid and hop_limit",
				"the peer's GID is of another type or family than the entry of sgid_index: an IPv4 address there and a link-local one here",
				"the QP is not in INIT, or an attribute is missing: RTR of RC needs AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER",
				"max_dest_rd_atomic is above the device's max_qp_rd_atom",
				"the two ends have different link layers, or the exchange of LID, GID and QPN has mixed up its bytes",
			},
			[]string{"ibv_devinfo -v: active_mtu, GID table with types, max_qp_rd_atom", "print all attributes at the call, and compare them with the peer's"},
			[]string{"path_mtu", "sgid_index", "max_dest_rd_atomic"}},
		{113, "the neighbour cannot be reached: address resolution has failed",
			[]string{"those of ETIMEDOUT: the kernel remembers that nobody answers"}, []string{"ip neigh: the entry is FAILED; ip neigh flush, and try again"}, []string{"ibv_modify_qp RTR ETIMEDOUT"}},
		{101, "there is no route from the address behind the local GID to the address behind the peer's",
			[]string{"the GIDs are of different subnets, and there is no gateway for that source address", "one GID is link-local (fe80::) and the other is not: a wrong GID index at one end", "the route is in another table or namespace (VRF, container) than the device's interface"},
			[]string{"ip route get PEER from LOCAL oif INTERFACE", "show_gids at both ends"}, []string{"sgid_index"}},
		{19, "the interface behind the GID index has gone, or cannot be used from here",
			[]string{"the entry's interface is of another network namespace: a container without its interface", "the interface was removed, or is a bond's member"},
			[]string{"show_gids: the entry's DEV; ip link in the same container"}, []string{"sgid_index"}},
		{61, "the GID table has no entry at the index", []string{"the index is of another host's table, or the address has gone"}, []string{"show_gids"}, []string{"sgid_index"}},
	}},
	{"ibv_modify_qp", "RTS", []callErrno{
		{22, "an attribute of RTS is missing or not possible",
			[]string{"the QP is not in RTR: the step before has failed, and the program went on", "max_rd_atomic is above the device's max_qp_init_rd_atom", "timeout is above 31, or retry_cnt or rnr_retry above 7", "an iWARP-like device (erdma, irdma) takes other steps: it needs librdmacm"},
			[]string{"RTS of RC needs TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN and MAX_QP_RD_ATOMIC", "ibv_query_qp just before"}, []string{"max_rd_atomic", "qp-state 3"}},
	}},
	{"ibv_modify_qp", "", []callErrno{
		{22, "the state cannot be reached from this one, or an attribute is missing, not possible or one too many",
			[]string{"the QP is in another state than the program believes: an earlier step failed, or the QP went to ERR", "an attribute that the change does not take", "those of the changes to INIT, RTR and RTS"},
			[]string{"ibv_query_qp just before", "which of the three changes it was: they have entries of their own"}, []string{"ibv_modify_qp RTR EINVAL", "ibv_modify_qp RTS EINVAL", "ibv_modify_qp INIT EINVAL"}},
		{110, "the change to RTR: nobody answered when the kernel asked for the MAC address of the peer's GID",
			[]string{"those of the change to RTR: above all a wrong GID index, or rails that are not connected"}, []string{"ping -I INTERFACE between the addresses behind the two GIDs"}, []string{"ibv_modify_qp RTR ETIMEDOUT"}},
		{113, "the change to RTR: address resolution for the peer's GID has failed", []string{"those of ETIMEDOUT"}, nil, []string{"ibv_modify_qp RTR EHOSTUNREACH"}},
		{101, "the change to RTR: there is no route from the local GID's address to the peer's", []string{"GIDs of different subnets or families: a wrong GID index"}, nil, []string{"ibv_modify_qp RTR ENETUNREACH"}},
		{19, "the device, or the interface behind the GID index, has gone or is of another namespace", nil, nil, []string{"ibv_modify_qp RTR ENODEV"}},
		{5, "the device's firmware has refused the command", []string{"a firmware failure: the device resets"}, []string{"the kernel's log"}, nil},
		{121, "the device's firmware has refused the command; the kernel's log has its syndrome", nil, []string{"the kernel's log: bad parameter, syndrome"}, nil},
	}},
	{"ibv_reg_mr", "", []callErrno{
		{12, "the memory could not be pinned: the limit of locked memory is too low",
			[]string{"ulimit -l is small (64 KiB, 8 MiB) for this process: a login shell's limit is not that of a service, of a batch job or of a container", "more memory than the host has free, or the device's limit of regions is met (max_mr)"},
			[]string{"grep 'Max locked' /proc/PID/limits of the very process", "limits.conf: memlock unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK; then log in anew or restart the daemon"}, []string{"memlock"}},
		{14, "the range is not mapped, cannot be pinned, or is not the host's memory",
			[]string{"GPU memory, and no driver for peer memory: nvidia-peermem or amdgpu's is not loaded, or the GPU model has none; or memory of the GPU's virtual memory calls, that needs dma-buf", "address or length are wrong, or the range reaches beyond a mapping", "read-only memory with a write access flag, or a file mapping of DAX"},
			[]string{"lsmod | grep peermem; modprobe nvidia-peermem, and load it behind the RDMA driver", "the same call with memory of malloc"}, nil},
		{1, "the process may not do this", []string{"ON_DEMAND or physical memory without the right to it", "a security module or a container profile forbids it", "locked memory without a limit for this user: some kernels say EPERM in place of ENOMEM"}, []string{"the limit of locked memory; capabilities (IPC_LOCK) of the container"}, []string{"memlock"}},
		{22, "the access flags do not go together, or the length is 0",
			[]string{"REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE", "ON_DEMAND, HUGETLB or RELAXED_ORDERING that the device lacks", "an IOVA that is not congruent with the address"}, []string{"the flags; ibv_devinfo -v: device_cap_flags, odp_caps"}, nil},
		{95, "the device or the kernel does not support it", []string{"dma-buf: ibv_reg_dmabuf_mr needs support of the driver", "on-demand paging on a device that has none"}, nil, nil},
		{13, "the memory may not be written", []string{"a read-only mapping, and a flag that asks for writing"}, nil, nil},
		{34, "the driver cannot describe the region", []string{"it is larger than the device takes (max_mr_size), or has more pages than its tables: huge pages need fewer", "memory of an accelerator whose driver hands out ranges of its own"}, []string{"ibv_devinfo -v: max_mr_size, page_size_cap", "a smaller region; the kernel's log"}, nil},
	}},
	{"ibv_create_qp", "", []callErrno{
		{22, "a capability is above the device's, or the objects do not fit together",
			[]string{"max_inline_data is too large: devices take from 0 to some 900 bytes, and often fewer with more SGEs; perftest's -I 0 sets it to 0", "max_send_wr, max_recv_wr or max_send_sge above max_qp_wr and max_sge of the device", "the QP type is one that the device lacks: XRC, DC, raw packets", "send_cq, recv_cq, srq and pd are of different contexts", "max_recv_wr is not 0 with an SRQ, on some providers"},
			[]string{"ibv_devinfo -v: max_qp_wr, max_sge", "try max_inline_data 0, then with one SGE"}, []string{"max_inline_data"}},
		{12, "no memory for the queues: host memory that may be locked, or a resource of the device",
			[]string{"max_send_wr with max_inline_data or many SGEs is too large for one queue: mlx5 counts units of 64 bytes", "the limit of locked memory: ulimit -l", "the device's QPs are used up: leaked by programs, or counted by a cgroup (rdma.max)"},
			[]string{"grep 'Max locked' /proc/PID/limits", "rdma resource show; halve max_send_wr"}, []string{"memlock", "max_inline_data"}},
		{28, "the device's QPs are used up", []string{"QPs that are leaked, or a small limit of a virtual function"}, []string{"rdma resource show"}, nil},
		{95, "the device does not support the type of QP or a flag", nil, []string{"ibv_devinfo -v"}, nil},
		{38, "the provider does not have the call: ibv_create_qp_ex on an old provider", nil, nil, nil},
		{1, "raw packet QPs need CAP_NET_RAW", nil, nil, nil},
	}},
	{"ibv_create_cq", "", []callErrno{
		{12, "no memory for the queue: mostly the limit of locked memory", []string{"ulimit -l is small", "the device's CQs are used up"}, []string{"grep 'Max locked' /proc/PID/limits", "rdma resource show"}, []string{"memlock"}},
		{22, "cqe is 0 or above the device's max_cqe, or comp_vector is too large", []string{"comp_vector counts from 0 to num_comp_vectors - 1", "a depth that was computed from the number of peers"}, []string{"ibv_devinfo -v: max_cqe, num_comp_vectors"}, nil},
		{14, "a buffer of the queue is not memory of the host", []string{"GPU memory was handed in for the queue"}, nil, nil},
	}},
	{"ibv_create_srq", "", []callErrno{
		{22, "max_wr or max_sge is above the device's", nil, []string{"ibv_devinfo -v: max_srq_wr, max_srq_sge"}, nil},
		{12, "no memory for the queue", []string{"ulimit -l is small"}, nil, []string{"memlock"}},
		{95, "the device has no SRQs", nil, nil, nil},
	}},
	{"ibv_alloc_pd", "", []callErrno{
		{12, "no memory, or the device's PDs are used up", nil, []string{"rdma resource show"}, nil},
	}},
	{"ibv_open_device", "", []callErrno{
		{13, "the process may not open /dev/infiniband/uverbsN", []string{"the file belongs to root or to a group", "a container without the device"}, []string{"ls -l /dev/infiniband; docker run --device=/dev/infiniband/uverbs0 …"}, nil},
		{2, "there is no /dev/infiniband/uverbsN", []string{"ib_uverbs is not loaded, or udev did not make the file: often in containers"}, []string{"modprobe ib_uverbs; ls /dev/infiniband"}, nil},
		{38, "no provider of libibverbs fits the driver", []string{"rdma-core is older than the kernel's driver, or a package of providers is missing (ibverbs-providers)", "a container whose rdma-core is another than the host's"}, []string{"ibv_devices warns; IBV_SHOW_WARNINGS=1"}, nil},
		{19, "the device has gone", []string{"the driver was unloaded or reset"}, []string{"rdma link"}, nil},
		{12, "no memory", []string{"ulimit -l is small: pages for doorbells are locked too"}, nil, []string{"memlock"}},
		{24, "the process has too many open files", nil, []string{"ulimit -n"}, nil},
	}},
	{"ibv_query_gid", "", []callErrno{
		{61, "the GID table has no entry at the index", []string{"entries past the last address are empty: that is no failure of the device", "the interface has no address yet, or is down"}, []string{"show_gids or adverb gids; ip addr"}, []string{"sgid_index"}},
		{22, "the index is beyond the table, or the port does not exist", []string{"a configured index of another host or device"}, []string{"show_gids; gid_tbl_len"}, []string{"sgid_index"}},
	}},
	{"ibv_create_ah", "", []callErrno{
		{110, "nobody answered when the kernel asked for the MAC address of the GID", []string{"those of ibv_modify_qp to RTR"}, nil, []string{"ibv_modify_qp RTR ETIMEDOUT"}},
		{22, "the address is not complete", []string{"is_global is 0 on RoCE, or sgid_index names an empty entry"}, nil, []string{"sgid_index"}},
		{113, "address resolution has failed", nil, []string{"ip neigh"}, nil},
	}},
	{"ibv_post_send", "", []callErrno{
		{12, "the send queue is full: poll completions first", []string{"completions are not polled, or work requests without IBV_SEND_SIGNALED fill the queue: one in a queue's length must be signaled"}, []string{"max_send_wr against the work requests outstanding"}, nil},
		{22, "the QP's state, the opcode or the number of SGEs is not possible", []string{"the QP is not in RTS", "more SGEs or more inline bytes than the QP has"}, nil, []string{"max_inline_data"}},
		{14, "an address in the work request is wrong", nil, nil, nil},
	}},
	{"ibv_post_recv", "", []callErrno{
		{12, "the receive queue is full", nil, []string{"max_recv_wr against the receives that wait"}, nil},
		{22, "the QP's state or the number of SGEs is not possible", []string{"the QP is in RESET", "the QP has an SRQ: use ibv_post_srq_recv"}, nil, nil},
	}},
	{"ibv_get_device_list", "", []callErrno{
		{38, "the kernel has no RDMA, or libibverbs does not see it", []string{"no driver is loaded: modprobe mlx5_ib, or rdma link add for rxe and siw", "a container without /sys/class/infiniband_verbs"}, []string{"rdma link; ibv_devices; lspci"}, []string{"ibv_open_device ENOSYS"}},
		{1, "the process may not look", []string{"a container profile"}, nil, nil},
	}},
	{"rdma_create_event_channel", "", []callErrno{
		{19, "the host has no RDMA device, or rdma_ucm is not loaded", []string{"no driver is loaded", "a container without /dev/infiniband/rdma_cm"}, []string{"modprobe rdma_ucm; ls /dev/infiniband; ibv_devices"}, nil},
		{2, "there is no /dev/infiniband/rdma_cm", []string{"rdma_ucm is not loaded, or a container without the device"}, []string{"modprobe rdma_ucm; docker run --device=/dev/infiniband/rdma_cm"}, nil},
		{13, "the process may not open /dev/infiniband/rdma_cm", nil, []string{"ls -l /dev/infiniband"}, nil},
	}},
	{"rdma_create_id", "", []callErrno{
		{19, "the host has no RDMA device, or rdma_ucm is not loaded", []string{"no driver is loaded", "a container without /dev/infiniband/rdma_cm"}, []string{"modprobe rdma_ucm; ls /dev/infiniband; ibv_devices"}, nil},
		{93, "the kernel does not have the port space", nil, nil, nil},
	}},
	{"rdma_getaddrinfo", "", []callErrno{
		{19, "no device has the address", nil, []string{"ibv_devices; rdma link"}, []string{"rdma_resolve_addr ENODEV"}},
	}},
	{"rdma_resolve_addr", "", []callErrno{
		{19, "the interface towards the address has no RDMA device",
			[]string{"the route to the address leaves by another interface than the card's: a management network, a bridge, a VPN", "the address is one of this host, and its interface has no RDMA device (lo)", "the device has no GID for the interface's address: cma_roce_mode asks for RoCE v1 or v2, and the table has only the other", "a container's interface (veth, macvlan) in place of the card's"},
			[]string{"ip route get ADDRESS: dev and src", "rdma link: which device has that netdev", "bind to the card's address: rping -I, rdma_bind_addr"}, []string{"RDMA_CM_EVENT_ADDR_ERROR"}},
		{110, "nobody answers ARP or neighbour discovery for the address, or for its gateway",
			[]string{"the peer is down, or has another address", "another VLAN or subnet", "timeout_ms is small"}, []string{"ping ADDRESS; ip neigh"}, []string{"RDMA_CM_EVENT_ADDR_ERROR"}},
		{113, "the host has no route to the address, or its neighbour has failed", []string{"those of ETIMEDOUT"}, []string{"ip neigh; ip route get ADDRESS"}, nil},
		{101, "the host has no route to the address", []string{"a missing route or gateway", "IPv6: a link-local address without its interface"}, []string{"ip route get ADDRESS"}, nil},
		{99, "the source address is none of this host's", nil, []string{"ip addr"}, nil},
		{97, "the address family is not possible, or source and destination differ in it", nil, nil, nil},
		{22, "the ID is in another state, or the address is not complete", []string{"rdma_resolve_addr was called twice", "the addresses of source and destination are of different families"}, nil, nil},
		{61, "InfiniBand over IP: the interface has no path", nil, nil, nil},
	}},
	{"rdma_resolve_route", "", []callErrno{
		{110, "InfiniBand: the subnet manager does not answer", []string{"no subnet manager runs, or timeout_ms is small for a busy one"}, []string{"sminfo; saquery"}, []string{"RDMA_CM_EVENT_ROUTE_ERROR"}},
		{22, "the subnet manager knows no such path, or the ID has no address yet", []string{"different partitions or subnets", "ADDR_RESOLVED had not come yet"}, nil, nil},
		{19, "the interface has gone", nil, nil, nil},
		{113, "there is no path to the peer", nil, nil, nil},
	}},
	{"rdma_bind_addr", "", []callErrno{
		{19, "no RDMA device has the address", []string{"the address is of an interface without a device: a loopback, a bridge, the management network", "the device is of another network namespace"}, []string{"ip addr; rdma link"}, nil},
		{99, "the address is none of this host's", []string{"a typing error, or an address that has moved", "IPv6: the address is still tentative"}, []string{"ip addr"}, nil},
		{98, "another ID has the port", []string{"the server runs already, or a program that has died is not cleaned up yet", "port spaces: RDMA_PS_TCP is apart from TCP, so ss does not show it"}, []string{"rdma resource show cm_id, or adverb res cm_id"}, nil},
		{13, "a port below 1024 needs the right to it", nil, []string{"CAP_NET_BIND_SERVICE, or a higher port"}, nil},
		{97, "the address family is not possible", nil, nil, nil},
		{22, "the ID is bound already, or the address is not complete", []string{"an IPv6 link-local address without its interface"}, nil, nil},
	}},
	{"rdma_listen", "", []callErrno{
		{98, "another ID listens on the port", nil, []string{"rdma resource show cm_id, or adverb res cm_id"}, []string{"rdma_bind_addr EADDRINUSE"}},
		{22, "the ID is not bound, or is connected", nil, nil, nil},
	}},
	{"rdma_connect", "", []callErrno{
		{110, "the peer's connection manager does not answer", []string{"those of RDMA_CM_EVENT_UNREACHABLE: a filter on UDP port 4791, RoCE v1 against v2, no RDMA at the peer"}, nil, []string{"RDMA_CM_EVENT_UNREACHABLE"}},
		{111, "the peer has refused", []string{"nobody listens, or the program there has said no"}, nil, []string{"reject 8", "reject 28"}},
		{104, "the peer has ended the connection while it was being made", []string{"the peer's program failed between request and acceptance"}, nil, []string{"reject 4"}},
		{22, "the ID has no route or no QP, or a parameter is not possible", []string{"ROUTE_RESOLVED had not come yet", "responder_resources or initiator_depth above the device's", "private data longer than 56 bytes (RDMA_PS_TCP)"}, []string{"max_qp_rd_atom, max_qp_init_rd_atom"}, []string{"max_rd_atomic"}},
		{12, "no memory", nil, nil, nil},
	}},
	{"rdma_accept", "", []callErrno{
		{22, "a parameter is not possible, or the connection has gone meanwhile", []string{"responder_resources or initiator_depth above what the request offers or the device has", "private data longer than 196 bytes", "the peer has given up already"}, []string{"the parameters of the event CONNECT_REQUEST"}, []string{"max_rd_atomic"}},
		{110, "the QP could not be moved to RTR: nobody answered for the peer's MAC address", nil, nil, []string{"ibv_modify_qp RTR ETIMEDOUT"}},
	}},
	{"rdma_create_qp", "", []callErrno{
		{22, "a capability is above the device's, or the PD is of another device than the ID's", []string{"those of ibv_create_qp", "a PD, CQ or SRQ of another context of the same device: librdmacm opens its own"}, nil, []string{"ibv_create_qp EINVAL"}},
		{12, "no memory for the queues", []string{"those of ibv_create_qp"}, nil, []string{"ibv_create_qp ENOMEM", "memlock"}},
		{19, "the ID has no device: its address is not resolved", nil, nil, nil},
	}},
	{"rdma_join_multicast", "", []callErrno{
		{22, "the address is no multicast address, or the ID has no device", nil, nil, nil},
		{19, "the interface has gone", nil, nil, nil},
	}},
	{"rdma_disconnect", "", []callErrno{
		{22, "the ID is not connected, or no more", []string{"the peer or a removed device has ended the connection before: then it is no failure of its own", "rdma_disconnect was called twice"}, []string{"what the log says before"}, nil},
	}},
	{"ibv_query_port", "", []callErrno{
		{22, "the device has no such port", []string{"ports count from 1"}, []string{"ibv_devinfo: phys_port_cnt"}, nil},
		{38, "neither the driver nor the provider has the call", []string{"rdma-core is older than the kernel's driver, or a container's is another than the host's"}, []string{"IBV_SHOW_WARNINGS=1 ibv_devices"}, nil},
		{19, "the device has gone", nil, []string{"rdma link"}, nil},
		{5, "the device has failed, or does not answer", nil, []string{"the kernel's log"}, nil},
	}},
	{"umad_send", "", []callErrno{
		{110, "InfiniBand: a node or the subnet manager did not answer a management datagram",
			[]string{"the node or a link on the way is down: the directed route in the text (0,1,10,19) names the ports", "a busy subnet manager or switch: its answers come late", "no subnet manager runs"},
			[]string{"sminfo; ibnetdiscover; smpquery -D nodeinfo ROUTE", "the error counters on the way: ibqueryerrors"}, []string{"port 2"}},
		{13, "the process may not open /dev/infiniband/umadN", nil, []string{"ls -l /dev/infiniband; run it as root"}, nil},
	}},
	{"fi_cq_readerr", "", []callErrno{
		{5, "libfabric hands on that a work request failed: EIO stands for any status but one that was cancelled",
			[]string{"any failure of a completion"}, []string{"prov_errno of the same line is the status (enum ibv_wc_status), if it is above 0", "the line before: mlx5 prints the error CQE"}, []string{"status 10", "status 12"}},
		{125, "libfabric hands on that a work request was flushed: a consequence", nil, []string{"what the log says before: the first error is the cause"}, []string{"status 5"}},
	}},
	{"fi_getinfo", "", []callErrno{
		{61, "no provider of libfabric fits what the program asks for",
			[]string{
				"FI_PROVIDER names a provider that is not built in, or that has no device here",
				"no RDMA device is active, or its interface has no IP address: the provider verbs wants one, on InfiniBand too",
				"the program asks for reliable datagrams (FI_EP_RDM), which verbs has by ofi_rxm alone: verbs;ofi_rxm",
				"a capability, a mode of memory registration or an address format that the provider lacks",
				"a line for each provider of fi_getinfo is no failure yet: one that fits is enough",
			},
			[]string{"fi_info -l: what is built in; fi_info -p verbs: what verbs finds", "FI_LOG_LEVEL=info: each provider says what it lacks", "the same program with FI_PROVIDER=tcp"}, []string{"memlock", "port 1"}},
		{38, "the provider does not have what was asked for", nil, []string{"fi_info -l"}, nil},
	}},
	{"rdma_create_ep", "", []callErrno{
		{19, "no RDMA device has the address, or the interface towards it", []string{"those of rdma_resolve_addr, and at a server those of rdma_bind_addr"}, []string{"ip route get ADDRESS; rdma link"}, []string{"rdma_resolve_addr ENODEV", "rdma_bind_addr ENODEV"}},
		{61, "the address or the path to it could not be resolved",
			[]string{"the name or address given to rdma_getaddrinfo leads to no RDMA device: another interface, a loopback", "InfiniBand: no path is known for it: no IPoIB interface, or ibacm does not run (AF_IB)"},
			[]string{"ip route get ADDRESS; rdma link", "the same address with rping -c -a ADDRESS: it names the step that fails"}, []string{"rdma_resolve_addr ENODEV"}},
		{110, "a step did not end in time: the address or the path could not be resolved", nil, []string{"ping ADDRESS; ip neigh"}, []string{"rdma_resolve_addr ETIMEDOUT"}},
		{98, "another ID has the port", nil, []string{"rdma resource show cm_id, or adverb res cm_id"}, []string{"rdma_bind_addr EADDRINUSE"}},
		{22, "a capability is above the device's, or the address is not complete", []string{"those of rdma_create_qp"}, nil, []string{"rdma_create_qp EINVAL"}},
	}},
	{"ib_cache_gid_add", "", []callErrno{
		{28, "the port's GID table is full: the address has no GID, so that nothing can be sent from it",
			[]string{"more addresses on the interface and its VLANs and macvlans than the table has room for: each takes an entry for RoCE v1 and one for RoCE v2", "many containers or virtual machines whose interfaces stand on the card's", "IPv6 addresses that change all the time (privacy extensions)"},
			[]string{"show_gids, and gid_tbl_len of ibv_devinfo -v", "remove addresses that nobody needs; the entry comes when the address is set anew"}, []string{"sgid_index"}},
		{22, "the address cannot be a GID", nil, []string{"ip addr"}, nil},
	}},
	{"connect", "", []callErrno{
		{111, "nobody listens on the TCP port: the programs exchange their addresses over TCP first, and RDMA was not tried yet",
			[]string{"the server is not started yet, has failed, or serves one client and has ended", "it listens on another port or address (-p)"}, []string{"start the server first, and look at its output; at the server: ss -ltn"}, nil},
		{110, "nobody answers over TCP: the programs could not exchange their addresses, and RDMA was not tried yet",
			[]string{"the server is not reachable: firewall, wrong address, host down"}, []string{"ping, and nc -zv HOST PORT; perftest uses TCP port 18515"}, nil},
		{113, "the host has no route to the server: RDMA was not tried yet", []string{"a firewall that says so, or a wrong subnet"}, []string{"ip route get ADDRESS"}, nil},
		{101, "the host has no route to the server: RDMA was not tried yet", nil, []string{"ip route get ADDRESS"}, nil},
		{104, "the program at the other end has ended while the two exchanged their addresses over TCP: its output has the cause",
			[]string{"it could not create its QP, or move it to RTR", "the two are of different versions, or were started with different flags"}, []string{"the output of the other end: its first error"}, nil},
	}},
	{"", "", []callErrno{
		{110, "something did not answer in time: which thing depends on the call", []string{"ibv_modify_qp to RTR: no answer for the peer's MAC address", "rdma_resolve_addr: the same", "rdma_connect: no answer of the peer's connection manager", "connect: no answer over TCP"}, []string{"which call it was: adverb explain CALL ETIMEDOUT"}, []string{"ibv_modify_qp RTR ETIMEDOUT", "rdma_resolve_addr ETIMEDOUT", "rdma_connect ETIMEDOUT"}},
		{12, "memory could not be had: mostly the limit of locked memory", []string{"ulimit -l is small for the process", "queues that are too large for the device"}, []string{"grep 'Max locked' /proc/PID/limits"}, []string{"memlock", "ibv_reg_mr ENOMEM", "ibv_create_qp ENOMEM"}},
		{22, "an argument is not possible: which one depends on the call", nil, []string{"which call it was: adverb explain CALL EINVAL"}, []string{"ibv_modify_qp RTR EINVAL", "ibv_create_qp EINVAL"}},
		{19, "there is no such RDMA device, or it has gone", nil, []string{"ibv_devices; rdma link"}, []string{"rdma_resolve_addr ENODEV", "rdma_bind_addr ENODEV"}},
		{14, "an address is not mapped, or is not the host's memory", nil, nil, []string{"ibv_reg_mr EFAULT"}},
		{1, "the process may not do this", nil, nil, []string{"ibv_reg_mr EPERM"}},
		{13, "the process may not do this", nil, []string{"ls -l /dev/infiniband"}, []string{"ibv_open_device EACCES"}},
		{2, "a file is missing: of a device, or of the kernel's description of it", nil, []string{"ls /dev/infiniband /sys/class/infiniband"}, []string{"ibv_open_device ENOENT"}},
		{16, "objects that depend on it are still open", []string{"a PD with regions or QPs, a CQ with QPs, a region with a bound window"}, []string{"rdma resource show, or adverb res"}, nil},
		{61, "there is no such entry: mostly of a GID table", nil, nil, []string{"ibv_query_gid ENODATA"}},
		{95, "the device or the kernel does not support it", nil, []string{"ibv_devinfo -v"}, nil},
		{98, "another program has the port", nil, nil, []string{"rdma_bind_addr EADDRINUSE"}},
		{99, "the address is none of this host's", nil, nil, []string{"rdma_bind_addr EADDRNOTAVAIL"}},
		{101, "the host has no route to the address", nil, []string{"ip route get ADDRESS"}, []string{"ibv_modify_qp RTR ENETUNREACH"}},
		{103, "the connection was given up: mostly this end has closed it, after a failure of its own", nil, []string{"what the log says before"}, nil},
		{104, "the peer has ended the connection", nil, []string{"the peer's log"}, nil},
		{111, "nobody listens, or the program there has refused", nil, nil, []string{"reject 8", "reject 28"}},
		{113, "the host has no route to the address, or address resolution has failed", nil, []string{"ip neigh; ip route get ADDRESS"}, []string{"ibv_modify_qp RTR EHOSTUNREACH"}},
		{121, "the device's firmware has refused a command", nil, []string{"the kernel's log: bad parameter, syndrome"}, nil},
		{5, "the device has failed, or does not answer", nil, []string{"the kernel's log"}, nil},
		{34, "a number is beyond what the device takes", nil, []string{"ibv_devinfo -v"}, []string{"ibv_reg_mr ERANGE"}},
		{38, "neither the driver nor the provider has the call", []string{"rdma-core is older than the kernel's driver, or a container's is another than the host's"}, []string{"IBV_SHOW_WARNINGS=1 ibv_devices"}, []string{"ibv_open_device ENOSYS"}},
		{74, "something else came than what was waited for: in SPDK an event of the connection manager", nil, []string{"the line before: it names the event, and its status is often a reason of a REJ"}, []string{"reject 8", "reject 28"}},
		{28, "no room is left: a table of the device or of the kernel is full", nil, []string{"rdma resource show; show_gids"}, []string{"ib_cache_gid_add ENOSPC"}},
		{11, "not now: try again", []string{"a queue that is full for a moment, or a resource of the device that is used up"}, nil, nil},
		{24, "the process has too many open files", []string{"each completion channel, event channel and context is one"}, []string{"ulimit -n"}, nil},
		{4, "a signal came while the call waited: call it again", nil, nil, nil},
		{9, "the file is closed: the channel or the context is gone", []string{"another thread has closed it"}, nil, nil},
		{71, "the other end has broken the rules of the protocol", nil, []string{"versions of both ends"}, nil},
		{93, "the kernel does not have this protocol or port space", nil, nil, nil},
		{97, "the address family is not possible here", nil, nil, nil},
		{100, "the interface is down", nil, []string{"ip link"}, []string{"port 1"}},
		{524, "the kernel's driver does not have this", nil, nil, nil},
		{107, "the connection is not there yet, or no more", nil, []string{"what the log says before"}, nil},
		{125, "work was given up, since the connection has ended: a consequence", nil, []string{"what the log says before: the first error is the cause"}, []string{"status 5"}},
	}},
}

// errnoName returns an errno's name and text.
func errnoName(n int) (name, text string) {
	for _, e := range errnoNames {
		if e.number == n {
			return e.name, e.text
		}
	}
	return "", ""
}

// toolsOf are the commands that show the objects of a call.
var toolsOf = map[string][]string{
	"ibv_modify_qp": {"adverb gids lists a device's GIDs with their types and interfaces", "adverb explains a refused change in words: \"modify qp 0x000011: INIT->RTR: missing PATH_MTU\""},
	"ibv_reg_mr":    {"adverb res mr"}, "ibv_create_qp": {"adverb res qp; adverb devinfo -v"}, "ibv_create_cq": {"adverb res cq; adverb devinfo -v"},
	"ibv_open_device": {"adverb devices"}, "ibv_query_gid": {"adverb gids"},
	"rdma_resolve_addr": {"adverb rping -c -a ADDRESS; adverb devices, adverb gids"}, "rdma_bind_addr": {"adverb res cm_id"},
	"rdma_connect": {"ADVERB_TRACE=1 adverb rping -c -a ADDRESS"},
}

func errnoEntries() (list []Entry) {
	for _, c := range calls {
		for _, n := range c.errnos {
			name, text := errnoName(n.number)
			list = append(list, Entry{
				Number: n.number, Name: name, Also: []string{text}, Call: c.call, State: c.state,
				Brief: n.brief, Causes: n.causes, Checks: n.checks, See: n.see, Tools: toolsOf[c.call],
			})
		}
	}
	return list
}
