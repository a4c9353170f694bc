//go:build linux && (amd64 || arm64)

package ibv

// The structures of C, as libibverbs of rdma-core 33 to 65 has them on LP64. Their fields have the names of C's, and the
// test compares their offsets with the headers. Structures that the library makes end here before the first field that
// nobody needs; those are marked as prefixes in the test. Pointers to memory that Go does not look at are uintptr.
type (
	// Device is struct ibv_device.
	Device struct {
		_             [2]uintptr
		NodeType      int32
		TransportType int32
		Name          [64]byte
		DevName       [64]byte
		DevPath       [256]byte
		IbdevPath     [256]byte
	}

	// contextOps is struct ibv_context_ops: functions that are no symbols of the library.
	contextOps struct {
		_           [7]uintptr
		AllocMW     uintptr
		BindMW      uintptr
		DeallocMW   uintptr
		_           uintptr
		PollCQ      uintptr
		ReqNotifyCQ uintptr
		_           [7]uintptr
		PostSRQRecv uintptr
		_           [4]uintptr
		PostSend    uintptr
		PostRecv    uintptr
		_           [5]uintptr
	}

	// Context is struct ibv_context.
	Context struct {
		_              Ref[Device]
		ops            contextOps
		CmdFD          int32
		AsyncFD        int32
		NumCompVectors int32
		_              int32
		_              [mutexSize / 8]uint64
		abiCompat      uintptr
	}

	// PD is struct ibv_pd.
	PD struct {
		context Ref[Context]
		Handle  uint32
		_       uint32
	}

	// MR is struct ibv_mr.
	MR struct {
		_      Ref[Context]
		_      Ref[PD]
		Addr   uintptr
		Length uintptr
		Handle uint32
		LKey   uint32
		RKey   uint32
		_      uint32
	}

	// MW is struct ibv_mw.
	MW struct {
		context Ref[Context]
		_       Ref[PD]
		RKey    uint32
		Handle  uint32
		Type    int32
		_       int32
	}

	// AH is struct ibv_ah.
	AH struct {
		_      Ref[Context]
		_      Ref[PD]
		Handle uint32
		_      uint32
	}

	// CompChannel is struct ibv_comp_channel.
	CompChannel struct {
		_  Ref[Context]
		FD int32
		_  int32
	}

	// CQ is struct ibv_cq, up to its mutex.
	CQ struct {
		context Ref[Context]
		_       Ref[CompChannel]
		_       uintptr
		Handle  uint32
		CQE     int32
	}

	// cqEx is struct ibv_cq_ex, which begins as struct ibv_cq does: a completion of it is read by functions.
	cqEx struct {
		_                  CQ
		_                  [mutexSize]byte
		_                  [condSize]byte
		_                  [2]uint32
		_                  uint32
		status             uint32
		wrID               uint64
		startPoll          uintptr
		nextPoll           uintptr
		endPoll            uintptr
		readOpcode         uintptr
		readVendorErr      uintptr
		readByteLen        uintptr
		readImmData        uintptr
		readQPNum          uintptr
		readSrcQP          uintptr
		readWCFlags        uintptr
		readSLID           uintptr
		readSL             uintptr
		readDLIDPathBits   uintptr
		readCompletionTS   uintptr
		_                  [3]uintptr
		readCompletionWall uintptr
	}

	// cqInitAttrEx is struct ibv_cq_init_attr_ex.
	cqInitAttrEx struct {
		cqe        uint32
		_          uint32
		_          uintptr
		channel    Ref[CompChannel]
		compVector uint32
		_          uint32
		wcFlags    uint64
		_          [2]uint32
		_          uintptr
	}

	// pollCQAttr is struct ibv_poll_cq_attr.
	pollCQAttr struct{ compMask uint32 }

	// valuesEx is struct ibv_values_ex.
	valuesEx struct {
		compMask uint32
		_        uint32
		sec      int64
		nsec     int64
	}

	// SRQ is struct ibv_srq, up to its mutex.
	SRQ struct {
		context Ref[Context]
		_       uintptr
		_       Ref[PD]
		Handle  uint32
		_       uint32
	}

	// QP is struct ibv_qp, up to its mutex.
	QP struct {
		context Ref[Context]
		_       uintptr
		_       Ref[PD]
		_       Ref[CQ]
		_       Ref[CQ]
		_       Ref[SRQ]
		Handle  uint32
		QPNum   uint32
		State   uint32
		QPType  uint32
	}

	// qpExBase is struct ibv_qp_ex as rdma-core 33 has it. It begins as struct ibv_qp does: work requests are made by functions of
	// the QP.
	qpExBase struct {
		_          QP
		_          [mutexSize]byte
		_          [condSize]byte
		_          [2]uint32
		_          uint64
		wrID       uint64
		wrFlags    uint32
		_          uint32
		_          [17]uintptr
		wrStart    uintptr
		wrComplete uintptr
		_          uintptr
	}

	// qpEx is struct ibv_qp_ex of the newest rdma-core. A library that is older has other fields where these are: they count if
	// the QP was made with the operation.
	qpEx struct {
		qpExBase
		wrAtomicWrite uintptr // since 44
		wrFlush       uintptr // since 45
	}

	// qpInitAttrEx is struct ibv_qp_init_attr_ex.
	qpInitAttrEx struct {
		_            uintptr
		sendCQ       Ref[CQ]
		recvCQ       Ref[CQ]
		srq          Ref[SRQ]
		cap          QPCap
		qpType       uint32
		sqSigAll     int32
		compMask     uint32
		pd           Ref[PD]
		xrcd         Ref[XRCD]
		_            [2]uint32
		_            uintptr
		_            [3]uint64
		_            uint32
		_            uint32
		sendOpsFlags uint64
	}

	// qpOpenAttr is struct ibv_qp_open_attr.
	qpOpenAttr struct {
		compMask uint32
		qpNum    uint32
		xrcd     Ref[XRCD]
		_        uintptr
		qpType   uint32
		_        uint32
	}

	// XRCD is struct ibv_xrcd.
	XRCD struct{ context Ref[Context] }

	// xrcdInitAttr is struct ibv_xrcd_init_attr.
	xrcdInitAttr struct {
		compMask   uint32
		fd, oflags int32
	}

	// QPCap is struct ibv_qp_cap.
	QPCap struct{ MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInlineData uint32 }

	// QPInitAttr is struct ibv_qp_init_attr.
	QPInitAttr struct {
		_        uintptr
		SendCQ   Ref[CQ]
		RecvCQ   Ref[CQ]
		SRQ      Ref[SRQ]
		Cap      QPCap
		QPType   uint32
		SQSigAll int32
		_        uint32
	}

	// AHAttr is struct ibv_ah_attr, with its struct ibv_global_route.
	AHAttr struct {
		DGID         [16]byte
		FlowLabel    uint32
		SGIDIndex    uint8
		HopLimit     uint8
		TrafficClass uint8
		_            uint8
		DLID         uint16
		SL           uint8
		SrcPathBits  uint8
		StaticRate   uint8
		IsGlobal     uint8
		PortNum      uint8
		_            uint8
	}

	// QPAttr is struct ibv_qp_attr.
	QPAttr struct {
		QPState, CurQPState, PathMTU, PathMigState uint32
		QKey, RQPSN, SQPSN, DestQPNum              uint32
		QPAccessFlags                              uint32
		Cap                                        QPCap
		AHAttr, AltAHAttr                          AHAttr
		PKeyIndex, AltPKeyIndex                    uint16
		EnSQDAsyncNotify, SQDraining               uint8
		MaxRDAtomic, MaxDestRDAtomic               uint8
		MinRNRTimer, PortNum, Timeout, RetryCnt    uint8
		RNRRetry, AltPortNum, AltTimeout           uint8
		_                                          uint8
		RateLimit                                  uint32
		_                                          uint32 // C's GIDs are aligned by 8
	}

	// SRQAttr is struct ibv_srq_attr.
	SRQAttr struct{ MaxWR, MaxSGE, SRQLimit uint32 }

	// srqInitAttr is struct ibv_srq_init_attr.
	srqInitAttr struct {
		_    uintptr
		attr SRQAttr
		_    uint32
	}

	// srqInitAttrEx is struct ibv_srq_init_attr_ex.
	srqInitAttrEx struct {
		_        uintptr
		attr     SRQAttr
		compMask uint32
		srqType  uint32
		_        uint32
		pd       Ref[PD]
		xrcd     Ref[XRCD]
		cq       Ref[CQ]
		_        [2]uint32
	}

	// SGE is struct ibv_sge.
	SGE struct {
		Addr         uint64
		Length, LKey uint32
	}

	// SendWR is struct ibv_send_wr. The union wr is told apart by the operation: RemoteAddr is that of RDMA and atomics;
	// Key is rdma.rkey, atomic.compare_add or, of a datagram, remote_qpn and above it remote_qkey.
	SendWR struct {
		WRID       uint64
		next       Ref[SendWR]
		sgList     Ref[SGE]
		numSGE     int32
		Opcode     uint32
		SendFlags  uint32
		Imm        uint32 // imm_data, big endian, or invalidate_rkey
		RemoteAddr uint64
		Key        uint64
		Swap       uint64
		AtomicRKey uint32
		_          uint32
		RemoteSRQN uint32 // of XRC
		_          uint32
		BindMW     SendBindMW
	}

	// SendBindMW is bind_mw of struct ibv_send_wr.
	SendBindMW struct {
		MW       Ref[MW]
		RKey     uint32
		_        uint32
		BindInfo MWBindInfo
	}

	// MWBindInfo is struct ibv_mw_bind_info.
	MWBindInfo struct {
		MR            Ref[MR]
		Addr, Length  uint64
		MWAccessFlags uint32
		_             uint32
	}

	// MWBind is struct ibv_mw_bind.
	MWBind struct {
		WRID      uint64
		SendFlags uint32
		_         uint32
		BindInfo  MWBindInfo
	}

	// RecvWR is struct ibv_recv_wr.
	RecvWR struct {
		WRID   uint64
		next   Ref[RecvWR]
		sgList Ref[SGE]
		numSGE int32
		_      int32
	}

	// WC is struct ibv_wc.
	WC struct {
		WRID                      uint64
		Status, Opcode, VendorErr uint32
		ByteLen                   uint32
		Imm                       uint32 // imm_data, big endian, or invalidated_rkey
		QPNum, SrcQP, WCFlags     uint32
		PKeyIndex, SLID           uint16
		SL, DLIDPathBits          uint8
		_                         [2]byte
	}

	// DeviceAttr is struct ibv_device_attr.
	DeviceAttr struct {
		FWVer                                                    [64]byte
		NodeGUID, SysImageGUID                                   [8]byte
		MaxMRSize, PageSizeCap                                   uint64
		VendorID, VendorPartID, HWVer                            uint32
		MaxQP, MaxQPWR                                           int32
		DeviceCapFlags                                           uint32
		MaxSGE, MaxSGERd, MaxCQ, MaxCQE, MaxMR, MaxPD            int32
		MaxQPRdAtom, MaxEERdAtom, MaxResRdAtom                   int32
		MaxQPInitRdAtom, MaxEEInitRdAtom                         int32
		AtomicCap                                                uint32
		MaxEE, MaxRDD, MaxMW, MaxRawIPv6QP, MaxRawEthyQP         int32
		MaxMcastGrp, MaxMcastQPAttach, MaxTotalMcastQPAttach     int32
		MaxAH, MaxFMR, MaxMapPerFMR, MaxSRQ, MaxSRQWR, MaxSRQSGE int32
		MaxPKeys                                                 uint16
		LocalCAAckDelay, PhysPortCnt                             uint8
		_                                                        uint32
	}

	// DeviceAttrEx is struct ibv_device_attr_ex.
	DeviceAttrEx struct {
		DeviceAttr
		_                                          [2]uint32
		ODPGeneralCaps                             uint64
		RCODPCaps, UCODPCaps, UDODPCaps            uint32
		_                                          uint32
		TimestampMask, HCACoreClock, DeviceCapsExt uint64
		_                                          [104]byte
		XRCODPCaps                                 uint32
		_                                          uint32
	}

	// PortAttr is struct ibv_port_attr. ActiveSpeedEx came later than 44, so it is 0 where the library is older.
	PortAttr struct {
		State, MaxMTU, ActiveMTU                uint32
		GIDTblLen                               int32
		PortCapFlags, MaxMsgSz                  uint32
		BadPKeyCntr, QKeyViolCntr               uint32
		PKeyTblLen, LID, SMLID                  uint16
		LMC, MaxVLNum, SMSL, SubnetTimeout      uint8
		InitTypeReply, ActiveWidth, ActiveSpeed uint8
		PhysState, LinkLayer, Flags             uint8
		PortCapFlags2                           uint16
		_                                       uint16
		ActiveSpeedEx                           uint32
	}

	// GIDEntry is struct ibv_gid_entry.
	GIDEntry struct {
		GID                                     [16]byte
		GIDIndex, PortNum, GIDType, NDevIfindex uint32
	}

	// asyncEvent is struct ibv_async_event.
	asyncEvent struct {
		element   uint64 // the object's address, or in its first 4 bytes the port's number
		eventType uint32
		_         uint32
	}
)
