package uapi

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// layouts are the structures, by their names in the headers.
var layouts = map[string]any{
	"ib_uverbs_cmd_hdr":    Header{},
	"ib_uverbs_ex_cmd_hdr": ExHeader{},
	"ib_uverbs_ioctl_hdr":  IoctlHeader{},
	"ib_uverbs_attr":       Attr{},

	"ib_uverbs_async_event_desc":         AsyncEventDesc{},
	"ib_uverbs_comp_event_desc":          CompEventDesc{},
	"ib_uverbs_get_context":              GetContext{},
	"ib_uverbs_get_context_resp":         GetContextResp{},
	"ib_uverbs_query_device":             QueryDevice{},
	"ib_uverbs_query_device_resp":        QueryDeviceResp{},
	"ib_uverbs_ex_query_device":          ExQueryDevice{},
	"ib_uverbs_odp_caps":                 ODPCaps{},
	"ib_uverbs_rss_caps":                 RSSCaps{},
	"ib_uverbs_tm_caps":                  TMCaps{},
	"ib_uverbs_cq_moderation_caps":       CQModerationCaps{},
	"ib_uverbs_ex_query_device_resp":     ExQueryDeviceResp{},
	"ib_uverbs_query_port":               QueryPort{},
	"ib_uverbs_query_port_resp":          QueryPortResp{},
	"ib_uverbs_alloc_pd":                 AllocPD{},
	"ib_uverbs_alloc_pd_resp":            AllocPDResp{},
	"ib_uverbs_dealloc_pd":               DeallocPD{},
	"ib_uverbs_reg_mr":                   RegMR{},
	"ib_uverbs_reg_mr_resp":              RegMRResp{},
	"ib_uverbs_rereg_mr":                 ReregMR{},
	"ib_uverbs_rereg_mr_resp":            ReregMRResp{},
	"ib_uverbs_dereg_mr":                 DeregMR{},
	"ib_uverbs_alloc_mw":                 AllocMW{},
	"ib_uverbs_alloc_mw_resp":            AllocMWResp{},
	"ib_uverbs_dealloc_mw":               DeallocMW{},
	"ib_uverbs_create_comp_channel":      CreateCompChannel{},
	"ib_uverbs_create_comp_channel_resp": CreateCompChannelResp{},
	"ib_uverbs_create_cq":                CreateCQ{},
	"ib_uverbs_ex_create_cq":             ExCreateCQ{},
	"ib_uverbs_create_cq_resp":           CreateCQResp{},
	"ib_uverbs_ex_create_cq_resp":        ExCreateCQResp{},
	"ib_uverbs_resize_cq":                ResizeCQ{},
	"ib_uverbs_resize_cq_resp":           ResizeCQResp{},
	"ib_uverbs_ex_modify_cq":             ExModifyCQ{},
	"ib_uverbs_req_notify_cq":            ReqNotifyCQ{},
	"ib_uverbs_destroy_cq":               DestroyCQ{},
	"ib_uverbs_destroy_cq_resp":          DestroyCQResp{},
	"ib_uverbs_global_route":             GlobalRoute{},
	"ib_uverbs_ah_attr":                  AHAttr{},
	"ib_uverbs_qp_attr":                  QPAttr{},
	"ib_uverbs_create_qp":                CreateQP{},
	"ib_uverbs_ex_create_qp":             ExCreateQP{},
	"ib_uverbs_create_qp_resp":           CreateQPResp{},
	"ib_uverbs_ex_create_qp_resp":        ExCreateQPResp{},
	"ib_uverbs_qp_dest":                  QPDest{},
	"ib_uverbs_query_qp":                 QueryQP{},
	"ib_uverbs_query_qp_resp":            QueryQPResp{},
	"ib_uverbs_modify_qp":                ModifyQP{},
	"ib_uverbs_ex_modify_qp":             ExModifyQP{},
	"ib_uverbs_ex_modify_qp_resp":        ExModifyQPResp{},
	"ib_uverbs_destroy_qp":               DestroyQP{},
	"ib_uverbs_destroy_qp_resp":          DestroyQPResp{},
	"ib_uverbs_post_send":                PostSend{},
	"ib_uverbs_create_ah":                CreateAH{},
	"ib_uverbs_create_ah_resp":           CreateAHResp{},
	"ib_uverbs_destroy_ah":               DestroyAH{},
	"ib_uverbs_attach_mcast":             AttachMcast{},
	"ib_uverbs_detach_mcast":             AttachMcast{},
	"ib_uverbs_create_srq":               CreateSRQ{},
	"ib_uverbs_create_xsrq":              CreateXSRQ{},
	"ib_uverbs_create_srq_resp":          CreateSRQResp{},
	"ib_uverbs_modify_srq":               ModifySRQ{},
	"ib_uverbs_query_srq":                QuerySRQ{},
	"ib_uverbs_query_srq_resp":           QuerySRQResp{},
	"ib_uverbs_destroy_srq":              DestroySRQ{},
	"ib_uverbs_destroy_srq_resp":         DestroySRQResp{},
	"ib_uverbs_wc":                       WC{},

	"mminfo":              MMInfo{},
	"rxe_create_ah_resp":  RxeCreateAHResp{},
	"rxe_create_cq_resp":  RxeCreateCQResp{},
	"rxe_resize_cq_resp":  RxeCreateCQResp{},
	"rxe_create_qp_resp":  RxeCreateQPResp{},
	"rxe_create_srq_resp": RxeCreateSRQResp{},
	"rxe_modify_srq_cmd":  RxeModifySRQCmd{},
	"rxe_queue_buf":       QueueBuf{},
	"rxe_sge":             SGE{},

	"rdma_ucm_cmd_hdr":          CMHeader{},
	"rdma_ucm_create_id":        CMCreate{},
	"rdma_ucm_create_id_resp":   CMCreateResp{},
	"rdma_ucm_destroy_id":       CMDestroy{},
	"rdma_ucm_destroy_id_resp":  CMDestroyResp{},
	"rdma_ucm_bind_ip":          CMBindIPArg{},
	"rdma_ucm_bind":             CMBindArg{},
	"rdma_ucm_resolve_ip":       CMResolveIPArg{},
	"rdma_ucm_resolve_addr":     CMResolveAddrArg{},
	"rdma_ucm_resolve_route":    CMResolveRouteArg{},
	"rdma_ucm_query":            CMQueryArg{},
	"ib_user_path_rec":          UserPathRec{},
	"rdma_ucm_query_route_resp": CMQueryRouteResp{},
	"rdma_ucm_query_addr_resp":  CMQueryAddrResp{},
	"rdma_ucm_query_path_resp":  CMQueryPathResp{},
	"ib_path_rec_data":          PathRecData{},
	"rdma_ucm_conn_param":       CMConnParam{},
	"rdma_ucm_ud_param":         CMUDParam{},
	"rdma_ucm_ece":              CMECE{},
	"rdma_ucm_connect":          CMConnectArg{},
	"rdma_ucm_listen":           CMListenArg{},
	"rdma_ucm_accept":           CMAcceptArg{},
	"rdma_ucm_reject":           CMRejectArg{},
	"rdma_ucm_disconnect":       CMDisconnectArg{},
	"rdma_ucm_init_qp_attr":     CMInitQPAttrArg{},
	"rdma_ucm_notify":           CMNotifyArg{},
	"rdma_ucm_join_ip_mcast":    CMJoinIPMcastArg{},
	"rdma_ucm_join_mcast":       CMJoinMcastArg{},
	"rdma_ucm_get_event":        CMGetEventArg{},
	"rdma_ucm_event_resp":       CMEventResp{},
	"rdma_ucm_set_option":       CMSetOptionArg{},
	"rdma_ucm_migrate_id":       CMMigrate{},
	"rdma_ucm_migrate_resp":     CMDestroyResp{},
}

// constants are values of the headers, and ours.
var constants = map[string]int64{
	"IB_USER_VERBS_ABI_VERSION": ABIVersion, "IB_USER_VERBS_CMD_FLAG_EXTENDED": int64(Extended),
	"IB_USER_VERBS_CMD_OPEN_QP": int64(CmdOpenQP), "IB_USER_VERBS_CMD_CREATE_SRQ": int64(CmdCreateSRQ),
	"IB_USER_VERBS_CMD_POST_SEND": int64(CmdPostSend), "IB_USER_VERBS_CMD_CREATE_CQ": int64(CmdCreateCQ),
	"IB_USER_VERBS_EX_CMD_MODIFY_CQ": int64(CmdExModifyCQ &^ Extended), "IB_USER_VERBS_EX_CMD_CREATE_FLOW": int64(CmdExCreateFlow &^ Extended),
	"RDMA_VERBS_IOCTL": IoctlVerbs, "UVERBS_ATTR_UHW_IN": AttrUHWIn, "UVERBS_ATTR_UHW_OUT": AttrUHWOut,
	"UVERBS_ATTR_CORE_IN": AttrCoreIn, "UVERBS_ATTR_CORE_OUT": AttrCoreOut, "UVERBS_ATTR_WRITE_CMD": AttrWriteCmd,
	"UVERBS_OBJECT_DEVICE": ObjectDevice, "UVERBS_METHOD_QUERY_GID_ENTRY": MethodQueryGIDEntry, "UVERBS_METHOD_GET_CONTEXT": MethodGetContext,
	"UVERBS_OBJECT_MR": ObjectMR, "UVERBS_METHOD_ADVISE_MR": MethodAdviseMR, "UVERBS_ATTR_ADVISE_MR_PD_HANDLE": AttrAdvisePD,
	"UVERBS_ATTR_ADVISE_MR_ADVICE": AttrAdviseAdvice, "UVERBS_ATTR_ADVISE_MR_FLAGS": AttrAdviseFlags, "UVERBS_ATTR_ADVISE_MR_SGE_LIST": AttrAdviseSGEs,
	"IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH": AdvisePrefetch, "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE": AdvisePrefetchWrite,
	"IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT": AdvisePrefetchNoFault, "IB_UVERBS_ADVISE_MR_FLAG_FLUSH": AdviseFlush,
	"RDMA_DRIVER_RXE": RxeDriverID,

	"RDMA_USER_CM_ABI_VERSION": CMABIVersion, "RDMA_USER_CM_CMD_JOIN_MCAST": CMJoinMcast, "RDMA_USER_CM_CMD_GET_EVENT": CMGetEvent,
	"RDMA_USER_CM_CMD_MIGRATE_ID": CMMigrateID, "RDMA_USER_CM_QUERY_GID": CMQueryGID,
	"RDMA_PS_IPOIB": PSIPoIB, "RDMA_PS_IB": PSIB, "RDMA_PS_TCP": PSTCP, "RDMA_PS_UDP": PSUDP,
	"RDMA_OPTION_IB": OptionIB, "RDMA_OPTION_ID_ACK_TIMEOUT": OptionIDACKTimeout, "RDMA_OPTION_ID_AFONLY": OptionIDAFOnly, "RDMA_OPTION_IB_PATH": OptionIBPath,

	"sizeof(struct ib_uverbs_cmd_hdr)": HeaderSize, "sizeof(struct ib_uverbs_ex_cmd_hdr)": ExHeaderSize,
	"sizeof(struct ib_uverbs_ioctl_hdr)": IoctlHeaderSize, "sizeof(struct ib_uverbs_attr)": AttrSize,
	"sizeof(struct rdma_ucm_cmd_hdr)":                                       CMHeaderSize,
	"sizeof(struct ib_uverbs_cmd_hdr) + sizeof(struct ib_uverbs_post_send)": PostSendSize,
	"offsetof(struct ib_uverbs_ex_create_qp, comp_mask)":                    ExCreateQPLeast - 4,
	"offsetof(struct rdma_ucm_connect, ece)":                                CMConnectLeast,
	"offsetof(struct rdma_ucm_accept, ece)":                                 CMAcceptLeast,
	"offsetof(struct rdma_ucm_event_resp, reserved)":                        CMEventRespLeast,
	"sizeof(((struct rdma_ucm_event_resp *)0)->param)":                      304,
	"offsetof(struct rxe_queue_buf, log2_elem_size)":                        QueueElemSize,
	"offsetof(struct rxe_queue_buf, index_mask)":                            QueueMask,
	"offsetof(struct rxe_queue_buf, producer_index)":                        QueueProducer,
	"offsetof(struct rxe_queue_buf, consumer_index)":                        QueueConsumer,
	"offsetof(struct rxe_queue_buf, data)":                                  QueueData,
	"sizeof(struct rxe_sge)":                                                SGESize,
	"offsetof(struct rxe_send_wqe, dma.sge)":                                SendWQESize,
	"offsetof(struct rxe_recv_wqe, dma.sge)":                                RecvWQESize,
	"sizeof(struct ib_uverbs_wc)":                                           WCSize,
	"IB_UVERBS_WR_LOCAL_INV":                                                WRLocalInv,
	"IB_UVERBS_WR_BIND_MW":                                                  WRBindMW,
	"IB_UVERBS_WR_SEND_WITH_INV":                                            WRSendWithInv,
}

// TestLayouts compares structures and constants with the headers that are installed, by a C compiler.
func TestLayouts(t *testing.T) {
	var c strings.Builder
	fmt.Fprintln(&c, "#include <stddef.h>\n#include <linux/types.h>\n#include <linux/socket.h>\n#include <netinet/in.h>")
	for _, h := range []string{"ib_user_verbs.h", "ib_user_ioctl_cmds.h", "ib_user_ioctl_verbs.h", "rdma_user_ioctl_cmds.h", "rdma_user_cm.h", "rdma_user_rxe.h"} {
		fmt.Fprintf(&c, "#include <rdma/%s>\n", h)
	}
	same := func(expr string, want int64) {
		fmt.Fprintf(&c, "_Static_assert((%s) == %dLL, \"%s is not %d\");\n", expr, want, strings.ReplaceAll(expr, `"`, ``), want)
	}
	for name, v := range layouts {
		same("sizeof(struct "+name+")", int64(binary.Size(v)))
		at := 0
		for f := range reflect.TypeOf(v).Fields() {
			c := f.Tag.Get("c")
			if c == "" {
				c = snake(f.Name)
			}
			size := binary.Size(reflect.Zero(f.Type).Interface())
			same(fmt.Sprintf("offsetof(struct %s, %s)", name, c), int64(at))
			same(fmt.Sprintf("sizeof(((struct %s *)0)->%s)", name, c), int64(size))
			at += size
		}
	}
	for expr, v := range constants {
		same(expr, v)
	}
	for field, at := range sendFields {
		same("offsetof(struct rxe_send_wqe, "+field+")", int64(at))
	}
	same("offsetof(struct rxe_recv_wqe, dma.num_sge)", 28)
	compile(t, c.String())
}

// compile checks a C source. It needs a compiler with Linux's headers.
func compile(t *testing.T, source string) {
	t.Helper()
	probe := exec.Command("gcc", "-x", "c", "-fsyntax-only", "-")
	probe.Stdin = strings.NewReader("#include <stddef.h>\n#include <rdma/rdma_user_rxe.h>\n")
	if out, err := probe.CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no C compiler with Linux's headers, and CI must not go without: %v\n%s", err, out)
		}
		t.Skipf("no C compiler with Linux's headers (on Debian: apt install gcc libc6-dev): %v", err)
	}
	cmd := exec.Command("gcc", "-x", "c", "-fsyntax-only", "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the headers differ: %v\n%.4000s", err, out)
	}
}

// snake returns the name of a field in C, as most are: MaxSendWR is max_send_wr.
func snake(name string) string {
	r := []rune(name)
	var b strings.Builder
	for i, c := range r {
		if i > 0 && unicode.IsUpper(c) && (!unicode.IsUpper(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// sendFields are the fields of rxe_send_wqe that SendWQE.Decode reads, and their places.
var sendFields = map[string]int{
	"wr.wr_id": 0, "wr.opcode": 12, "wr.send_flags": 16, "wr.ex": 20,
	"wr.wr.rdma.remote_addr": 24, "wr.wr.rdma.rkey": 32,
	"wr.wr.atomic.remote_addr": 24, "wr.wr.atomic.compare_add": 32, "wr.wr.atomic.swap": 40, "wr.wr.atomic.rkey": 48,
	"wr.wr.ud.remote_qpn": 24, "wr.wr.ud.remote_qkey": 28, "wr.wr.ud.ah_num": 36,
	"wr.wr.mw.addr": 24, "wr.wr.mw.length": 32, "wr.wr.mw.mr_lkey": 40, "wr.wr.mw.mw_rkey": 44, "wr.wr.mw.rkey": 48, "wr.wr.mw.access": 52,
	"dma.length": 184, "dma.num_sge": 196,
}
