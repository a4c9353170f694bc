//go:build linux && (amd64 || arm64)

package ibv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

// layouts are the fields in Go and in C whose offsets are compared. The size is too, but for prefixes: the structure in Go
// ends before the one in C does.
var layouts = []struct {
	c      string
	v      any
	prefix bool
	fields string
}{
	{"ibv_device", Device{}, false, "NodeType=node_type TransportType=transport_type Name=name DevName=dev_name DevPath=dev_path IbdevPath=ibdev_path"},
	{"ibv_context_ops", contextOps{}, false, "AllocMW=alloc_mw BindMW=bind_mw DeallocMW=dealloc_mw PollCQ=poll_cq ReqNotifyCQ=req_notify_cq PostSRQRecv=post_srq_recv PostSend=post_send PostRecv=post_recv"},
	{"ibv_context", Context{}, false, "ops=ops CmdFD=cmd_fd AsyncFD=async_fd NumCompVectors=num_comp_vectors abiCompat=abi_compat"},
	{"ibv_pd", PD{}, false, "context=context Handle=handle"},
	{"ibv_mr", MR{}, false, "Addr=addr Length=length Handle=handle LKey=lkey RKey=rkey"},
	{"ibv_mw", MW{}, false, "context=context RKey=rkey Handle=handle Type=type"},
	{"ibv_ah", AH{}, false, "Handle=handle"},
	{"ibv_comp_channel", CompChannel{}, false, "FD=fd"},
	{"ibv_cq", CQ{}, true, "context=context Handle=handle CQE=cqe"},
	{"ibv_cq_ex", cqEx{}, false, "status=status wrID=wr_id startPoll=start_poll nextPoll=next_poll endPoll=end_poll readOpcode=read_opcode readVendorErr=read_vendor_err readByteLen=read_byte_len readImmData=read_imm_data readQPNum=read_qp_num readSrcQP=read_src_qp readWCFlags=read_wc_flags readSLID=read_slid readSL=read_sl readDLIDPathBits=read_dlid_path_bits readCompletionTS=read_completion_ts readCompletionWall=read_completion_wallclock_ns"},
	{"ibv_cq_init_attr_ex", cqInitAttrEx{}, false, "cqe=cqe channel=channel compVector=comp_vector wcFlags=wc_flags"},
	{"ibv_poll_cq_attr", pollCQAttr{}, false, "compMask=comp_mask"},
	{"ibv_values_ex", valuesEx{}, false, "compMask=comp_mask sec=raw_clock.tv_sec nsec=raw_clock.tv_nsec"},
	{"ibv_srq", SRQ{}, true, "context=context Handle=handle"},
	{"ibv_qp", QP{}, true, "context=context Handle=handle QPNum=qp_num State=state QPType=qp_type"},
	{"ibv_qp_cap", QPCap{}, false, "MaxSendWR=max_send_wr MaxRecvWR=max_recv_wr MaxSendSGE=max_send_sge MaxRecvSGE=max_recv_sge MaxInlineData=max_inline_data"},
	{"ibv_qp_init_attr", QPInitAttr{}, false, "SendCQ=send_cq RecvCQ=recv_cq SRQ=srq Cap=cap QPType=qp_type SQSigAll=sq_sig_all"},
	{"ibv_ah_attr", AHAttr{}, false, "DGID=grh.dgid FlowLabel=grh.flow_label SGIDIndex=grh.sgid_index HopLimit=grh.hop_limit TrafficClass=grh.traffic_class DLID=dlid SL=sl SrcPathBits=src_path_bits StaticRate=static_rate IsGlobal=is_global PortNum=port_num"},
	{"ibv_qp_attr", QPAttr{}, false, "QPState=qp_state CurQPState=cur_qp_state PathMTU=path_mtu PathMigState=path_mig_state QKey=qkey RQPSN=rq_psn SQPSN=sq_psn DestQPNum=dest_qp_num QPAccessFlags=qp_access_flags Cap=cap AHAttr=ah_attr AltAHAttr=alt_ah_attr PKeyIndex=pkey_index AltPKeyIndex=alt_pkey_index EnSQDAsyncNotify=en_sqd_async_notify SQDraining=sq_draining MaxRDAtomic=max_rd_atomic MaxDestRDAtomic=max_dest_rd_atomic MinRNRTimer=min_rnr_timer PortNum=port_num Timeout=timeout RetryCnt=retry_cnt RNRRetry=rnr_retry AltPortNum=alt_port_num AltTimeout=alt_timeout RateLimit=rate_limit"},
	{"ibv_qp_ex", qpExBase{}, true, "wrID=wr_id wrFlags=wr_flags wrStart=wr_start wrComplete=wr_complete"},
	{"ibv_qp_init_attr_ex", qpInitAttrEx{}, false, "sendCQ=send_cq recvCQ=recv_cq srq=srq cap=cap qpType=qp_type sqSigAll=sq_sig_all compMask=comp_mask pd=pd xrcd=xrcd sendOpsFlags=send_ops_flags"},
	{"ibv_qp_open_attr", qpOpenAttr{}, false, "compMask=comp_mask qpNum=qp_num xrcd=xrcd qpType=qp_type"},
	{"ibv_xrcd", XRCD{}, false, "context=context"},
	{"ibv_xrcd_init_attr", xrcdInitAttr{}, false, "compMask=comp_mask fd=fd oflags=oflags"},
	{"ibv_srq_init_attr_ex", srqInitAttrEx{}, false, "attr=attr compMask=comp_mask srqType=srq_type pd=pd xrcd=xrcd cq=cq"},
	{"ibv_srq_attr", SRQAttr{}, false, "MaxWR=max_wr MaxSGE=max_sge SRQLimit=srq_limit"},
	{"ibv_srq_init_attr", srqInitAttr{}, false, "attr=attr"},
	{"ibv_sge", SGE{}, false, "Addr=addr Length=length LKey=lkey"},
	{"ibv_send_wr", SendWR{}, false, "WRID=wr_id next=next sgList=sg_list numSGE=num_sge Opcode=opcode SendFlags=send_flags Imm=imm_data Imm=invalidate_rkey RemoteAddr=wr.rdma.remote_addr RemoteAddr=wr.atomic.remote_addr RemoteAddr=wr.ud.ah Key=wr.rdma.rkey Key=wr.atomic.compare_add Key=wr.ud.remote_qpn Swap=wr.atomic.swap AtomicRKey=wr.atomic.rkey RemoteSRQN=qp_type.xrc.remote_srqn BindMW=bind_mw"},
	{"ibv_mw_bind_info", MWBindInfo{}, false, "MR=mr Addr=addr Length=length MWAccessFlags=mw_access_flags"},
	{"ibv_mw_bind", MWBind{}, false, "WRID=wr_id SendFlags=send_flags BindInfo=bind_info"},
	{"ibv_recv_wr", RecvWR{}, false, "WRID=wr_id next=next sgList=sg_list numSGE=num_sge"},
	{"ibv_wc", WC{}, false, "WRID=wr_id Status=status Opcode=opcode VendorErr=vendor_err ByteLen=byte_len Imm=imm_data Imm=invalidated_rkey QPNum=qp_num SrcQP=src_qp WCFlags=wc_flags PKeyIndex=pkey_index SLID=slid SL=sl DLIDPathBits=dlid_path_bits"},
	{"ibv_device_attr", DeviceAttr{}, false, "FWVer=fw_ver NodeGUID=node_guid SysImageGUID=sys_image_guid MaxMRSize=max_mr_size PageSizeCap=page_size_cap VendorID=vendor_id VendorPartID=vendor_part_id HWVer=hw_ver MaxQP=max_qp MaxQPWR=max_qp_wr DeviceCapFlags=device_cap_flags MaxSGE=max_sge MaxSGERd=max_sge_rd MaxCQ=max_cq MaxCQE=max_cqe MaxMR=max_mr MaxPD=max_pd MaxQPRdAtom=max_qp_rd_atom MaxResRdAtom=max_res_rd_atom MaxQPInitRdAtom=max_qp_init_rd_atom AtomicCap=atomic_cap MaxEE=max_ee MaxMW=max_mw MaxMcastGrp=max_mcast_grp MaxMcastQPAttach=max_mcast_qp_attach MaxTotalMcastQPAttach=max_total_mcast_qp_attach MaxAH=max_ah MaxSRQ=max_srq MaxSRQWR=max_srq_wr MaxSRQSGE=max_srq_sge MaxPKeys=max_pkeys LocalCAAckDelay=local_ca_ack_delay PhysPortCnt=phys_port_cnt"},
	{"ibv_device_attr_ex", DeviceAttrEx{}, false, "FWVer=orig_attr ODPGeneralCaps=odp_caps.general_caps RCODPCaps=odp_caps.per_transport_caps.rc_odp_caps UCODPCaps=odp_caps.per_transport_caps.uc_odp_caps UDODPCaps=odp_caps.per_transport_caps.ud_odp_caps TimestampMask=completion_timestamp_mask HCACoreClock=hca_core_clock DeviceCapsExt=device_cap_flags_ex XRCODPCaps=xrc_odp_caps"},
	{"ibv_port_attr", PortAttr{}, true, "State=state MaxMTU=max_mtu ActiveMTU=active_mtu GIDTblLen=gid_tbl_len PortCapFlags=port_cap_flags MaxMsgSz=max_msg_sz BadPKeyCntr=bad_pkey_cntr QKeyViolCntr=qkey_viol_cntr PKeyTblLen=pkey_tbl_len LID=lid SMLID=sm_lid LMC=lmc MaxVLNum=max_vl_num SMSL=sm_sl SubnetTimeout=subnet_timeout InitTypeReply=init_type_reply ActiveWidth=active_width ActiveSpeed=active_speed PhysState=phys_state LinkLayer=link_layer Flags=flags PortCapFlags2=port_cap_flags2"},
	{"ibv_gid_entry", GIDEntry{}, false, "GID=gid GIDIndex=gid_index PortNum=port_num GIDType=gid_type NDevIfindex=ndev_ifindex"},
	{"ibv_async_event", asyncEvent{}, false, "element=element.cq element=element.port_num eventType=event_type"},
}

// newer are fields of structures that have grown since rdma-core 33, each with the version that has it first.
var newer = []struct {
	since    int
	c, field string
	in       uintptr
}{
	{44, "ibv_qp_ex", "wr_atomic_write", unsafe.Offsetof(qpEx{}.wrAtomicWrite)},
	{45, "ibv_qp_ex", "wr_flush", unsafe.Offsetof(qpEx{}.wrFlush)},
}

// distances are how far before the context the fields of verbs_context lie.
var distances = []struct {
	field string
	in    uint64
}{
	{"sz", toSize}, {"query_device_ex", toQueryDeviceEx}, {"create_cq_ex", toCreateCQEx}, {"query_rt_values", toQueryRTValues}, {"query_port", toQueryPort},
	{"open_xrcd", toOpenXRCD}, {"close_xrcd", toCloseXRCD}, {"create_srq_ex", toCreateSRQEx}, {"get_srq_num", toGetSRQNum}, {"create_qp_ex", toCreateQPEx},
	{"open_qp", toOpenQP},
}

// compiler returns the C compiler, or skips the test.
func compiler(t *testing.T) string {
	t.Helper()
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missingProgram(t, "a C compiler (on Debian: gcc and libc6-dev)")
	}
	return path
}

// missingProgram skips the test for want of something that CI must not be without.
func missingProgram(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("this needs %s", what)
	}
	t.Skipf("this needs %s", what)
}

// assertions is a C file that compiles where C has the layouts of Go. lacks reports whether C lacks a field of newer.
func assertions(t *testing.T, include string, lacks func(structure, field string) bool) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "#include <stddef.h>\n#include %s\n", include)
	assert := func(what string, format string, args ...any) {
		fmt.Fprintf(&b, "_Static_assert(%s, %q);\n", fmt.Sprintf(format, args...), what)
	}
	for _, l := range layouts {
		typ := reflect.TypeOf(l.v)
		if l.prefix {
			assert("sizeof "+l.c, "sizeof(struct %s) + 8 >= %d", l.c, typ.Size())
		} else {
			assert("sizeof "+l.c, "sizeof(struct %s) == %d", l.c, typ.Size())
		}
		for _, f := range strings.Fields(l.fields) {
			g, c, _ := strings.Cut(f, "=")
			sf, ok := typ.FieldByName(g)
			if !ok {
				t.Fatalf("%s has no field %s", l.c, g)
			}
			assert(l.c+"."+c, "offsetof(struct %s, %s) == %d", l.c, c, sf.Offset)
		}
	}
	for _, f := range newer {
		if !lacks(f.c, f.field) {
			assert(f.c+"."+f.field, "offsetof(struct %s, %s) == %d", f.c, f.field, f.in)
		}
	}
	for _, f := range distances {
		assert("verbs_context."+f.field, "offsetof(struct verbs_context, context) - offsetof(struct verbs_context, %s) == %d", f.field, f.in)
	}
	return b.String()
}

// compile has a C file looked at by the compiler, which runs nothing.
func compile(t *testing.T, cc, text string, flags ...string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cc, append(flags, "-fsyntax-only", file)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// TestLayouts compares the structures with rdma-core's headers, and with those of the fake library. Headers elsewhere than
// in the compiler's directories, such as those of another version, are found by CPATH.
func TestLayouts(t *testing.T) {
	cc := compiler(t)
	t.Run("headers", func(t *testing.T) {
		if compile(t, cc, "#include <infiniband/verbs.h>\n") != nil {
			missingProgram(t, "rdma-core's headers (on Debian: libibverbs-dev)")
		}
		lacks := func(structure, field string) bool {
			return compile(t, cc, fmt.Sprintf("#include <stddef.h>\n#include <infiniband/verbs.h>\nsize_t at = offsetof(struct %s, %s);\n", structure, field)) != nil
		}
		if err := compile(t, cc, assertions(t, "<infiniband/verbs.h>", lacks)); err != nil {
			t.Error(err)
		}
	})
	t.Run("fake", func(t *testing.T) {
		dir, err := filepath.Abs(filepath.Join("..", "..", "provider", "native", "testdata"))
		if err != nil {
			t.Fatal(err)
		}
		if err := compile(t, cc, assertions(t, `"abi.h"`, func(string, string) bool { return false }), "-I", dir); err != nil {
			t.Error(err)
		}
	})
	t.Run("wrong", func(t *testing.T) { // the assertions are looked at
		if compile(t, cc, "_Static_assert(1 == 2, \"x\");\n") == nil {
			t.Error("the compiler does not look at assertions")
		}
	})
}

// TestFrame: the assembly knows these offsets.
func TestFrame(t *testing.T) {
	var f frame
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"fn", unsafe.Offsetof(f.fn), 0}, {"args", unsafe.Offsetof(f.args), 8}, {"ret", unsafe.Offsetof(f.ret), 56},
		{"errnoAt", unsafe.Offsetof(f.errnoAt), 64}, {"errno", unsafe.Offsetof(f.errno), 72}, {"next", unsafe.Offsetof(f.next), 80},
	} {
		if c.got != c.want {
			t.Errorf("%s lies at %d on %s, and the assembly looks at %d", c.name, c.got, runtime.GOARCH, c.want)
		}
	}
}
