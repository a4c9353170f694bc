package perftest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/tooltest"
	"github.com/adverb-rdma/adverb/verbs"
)

// kindOf returns the kind of a command.
func kindOf(c *cli.Command) *kind {
	k := &kind{name: c.Name, latency: strings.HasSuffix(c.Name, "_lat")}
	for i, prefix := range []string{"send", "write", "read", "atomic"} {
		if strings.HasPrefix(c.Name, prefix) {
			k.verb = verb(i)
		}
	}
	return k
}

// The parameters of a command line's flags, as perftest 4.5-0.20 reads them.
func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		cmd  *cli.Command
		line string
		want func(p *params) bool
	}{
		{SendBW, "", func(p *params) bool {
			return p.size == 65536 && p.iters == 1000 && p.txDepth == 128 && p.rxDepth == 512 && p.cqMod == 1 && p.noPeak && !p.sender && p.inline == 0
		}},
		{SendBW, "host", func(p *params) bool { return p.host == "host" && p.sender && !p.noPeak }},
		{SendBW, "host --reversed", func(p *params) bool { return p.host == "host" && !p.sender }},
		{SendBW, "--reversed", func(p *params) bool { return p.sender }},
		{SendBW, "-s 2", func(p *params) bool { return p.cqMod == 100 }},
		{SendBW, "-s 2 -t 16", func(p *params) bool { return p.cqMod == 16 }},
		{SendBW, "-s 64K -Q 7", func(p *params) bool { return p.size == 65536 && p.cqMod == 7 }},
		{SendBW, "-s 8M", func(p *params) bool { return p.size == 8<<20 }},
		{SendBW, "-s 0x10", func(p *params) bool { return p.size == 16 }},
		{SendBW, "-e", func(p *params) bool { return p.events && p.cqMod == 100 }},
		{SendBW, "-n 5", func(p *params) bool { return p.txDepth == 5 && p.rxDepth == 5 }},
		{SendBW, "-c UD", func(p *params) bool { return p.qpType == verbs.QPTypeUD && p.rxDepth == 1000 && p.cqMod == 100 }},
		{SendBW, "-c UC -n 20000", func(p *params) bool { return p.rxDepth == 16000 }},
		{SendBW, "-c UD -r 7", func(p *params) bool { return p.rxDepth == 7 }},
		{SendBW, "-a", func(p *params) bool { return p.all && p.size == 8<<20 && p.cqMod == 100 }},
		{SendBW, "-l 10 host", func(p *params) bool { return p.postList == 10 && p.cqMod == 10 }},
		{SendBW, "-l 10 -Q 5 host", func(p *params) bool { return p.cqMod == 5 }},
		{SendBW, "-D 8 host", func(p *params) bool {
			return p.byTime && p.duration == 8*time.Second && p.margin == 2*time.Second && p.noPeak && p.txDepth == 128
		}},
		{SendBW, "-D 2", func(p *params) bool { return p.margin == 0 }},
		{SendBW, "-D 9 -f 1", func(p *params) bool { return p.margin == time.Second }},
		{SendBW, "-D 1 -f 250ms", func(p *params) bool { return p.duration == time.Second && p.margin == 250*time.Millisecond }},
		{SendBW, "-D 1500ms -f 0", func(p *params) bool { return p.duration == 1500*time.Millisecond && p.margin == 0 }},
		{SendLat, "-D 3 --margin 0.5s --wait_destroy 100ms", func(p *params) bool {
			return p.margin == 500*time.Millisecond && p.waitDestroy == 100*time.Millisecond
		}},
		{SendBW, "--run_infinitely", func(p *params) bool { return p.endless && p.byTime && p.duration == 5*time.Second }},
		{SendBW, "-n 20001 host", func(p *params) bool { return p.noPeak }},
		{SendBW, "-R", func(p *params) bool { return p.cmQP && p.cmExchange }},
		{SendBW, "-z", func(p *params) bool { return !p.cmQP && p.cmExchange }},
		{SendBW, "--use-srq -q 4", func(p *params) bool { return p.srq && p.qps == 4 }},
		{SendBW, "-c XRC -n 2000", func(p *params) bool { return p.xrc() && p.srq && p.rxDepth == 512 }},
		{WriteBW, "-c XRC -q 4", func(p *params) bool { return p.xrc() && p.srq && p.rxDepth == 1 }},
		{SendBW, "--source_ip=10.0.0.1 --ipv6 -x 3 -i 2 -p 7 -d dev", func(p *params) bool {
			return p.sourceIP == netip.MustParseAddr("10.0.0.1") && p.ipv6 && p.gidIndex == 3 && p.ibPort == 2 && p.port == 7 && p.device == "dev"
		}},
		{SendBW, "--bind_source_ip=10.0.0.1 --send_with_imm --cqe_poll=3", func(p *params) bool {
			return p.sourceIP == netip.MustParseAddr("10.0.0.1") && p.sendImm && p.pollBatch == 3
		}},
		{SendBW, "--flow_label=7", func(p *params) bool { return slices.Equal(p.flowLabels, []uint32{7}) }},
		{SendBW, "--flow_label=1,0x2,3", func(p *params) bool { return slices.Equal(p.flowLabels, []uint32{1, 2, 3}) }},
		{SendLat, "--report-histogrm", func(p *params) bool { return p.sorted }},
		{WriteBW, "host", func(p *params) bool { return p.iters == 5000 && p.rxDepth == 1 }},
		{WriteBW, "--rate_limit=2.5 --rate_units=M host", func(p *params) bool { return p.rate == 2.5 && p.rateUnits == "M" && p.burst == 128 }},
		{SendLat, "host", func(p *params) bool {
			return p.size == 2 && p.txDepth == 1 && p.cqMod == 1 && p.inline == -1 && p.noPeak
		}},
		{ReadLat, "host", func(p *params) bool { return p.inline == 0 && p.outs == 0 }},
		{ReadBW, "-o 4 -S 3 -u 20 -m 1024", func(p *params) bool { return p.outs == 4 && p.sl == 3 && p.timeout == 20 && p.mtu == 1024 }},
		{AtomicBW, "", func(p *params) bool { return p.size == 8 && !p.swap }},
		{AtomicBW, "-A CMP_AND_SWAP", func(p *params) bool { return p.swap }},
		{AtomicLat, "-s 8", func(p *params) bool { return p.size == 8 }},
	} {
		inv, _, stderr := tooltest.Invocation(t, tt.cmd, tt.line)
		if p, _, ok := parse(inv, kindOf(tt.cmd)); !ok || !tt.want(p) {
			t.Errorf("%s %s: got %+v, stderr %q, want the line's parameters", tt.cmd.Name, tt.line, p, stderr)
		}
	}
}

// Command lines that are refused, each with its reason.
func TestFlagsRefused(t *testing.T) {
	for _, tt := range []struct {
		cmd        *cli.Command
		line, text string
	}{
		{SendBW, "-n 4", "Iteration num should be between 5 and 100000000"},
		{SendBW, "-n x", "Iteration num argument x should be int"},
		{SendBW, "-s 0", "message size should be between 1"},
		{SendBW, "-s 3000M", "message size should be between 1"},
		{SendBW, "-c DC", "send_bw has RC, XRC, UC, UD"},
		{SendBW, "-c XRC -R", "XRC does not support RDMA_CM: without -R"},
		{SendBW, "-c XRC -q 9 -r 8", "each needs a receive"},
		{WriteBW, "-c UD", "write_bw has RC, XRC, UC"},
		{ReadBW, "-c UC", "read_bw has RC, XRC"},
		{SendBW, "-m 1000", "choose from {256,512,1024,2048,4096}"},
		{SendBW, "-D 4 -f 2", "The margins leave nothing of the duration"},
		{SendBW, "-D 1 -f 500ms", "The margins leave nothing of the duration"},
		{SendBW, "-D 4 -f -1ms", "Margin -1ms should be between 0s and 2147483647s"},
		{SendBW, "-D 4 -f 1h1", "Margin argument 1h1 should be int"},
		{SendBW, "-D 500ms", "Duration period 500ms should be between 1s and 2147483647s"},
		{SendBW, "-D 1 -a", "Duration mode doesn't support running on all sizes"},
		{SendBW, "-D 1 -e", "Duration mode doesn't work with events"},
		{SendLat, "-D 1 -U", "-H and -U print each result"},
		{SendBW, "-R -c UC", "UC is not supported in librdmacm"},
		{SendBW, "-T 3", "TOS only valid for rdma_cm based QP"},
		{SendBW, "-T 0", "TOS only valid for rdma_cm based QP"}, // which is not the same as none
		{SendBW, "-l 7", "Number of iterations must be a multiple of post list size"},
		{SendBW, "-n 20 --recv_post_list 3", "Number of iterations must be a multiple of receive post list size"},
		{SendBW, "-l 10 -Q 3", "Post list size must be a multiple of CQ moderation"},
		{SendBW, "-l 200", "the send queue has room for 128"},
		{SendBW, "--use-srq -q 9 -r 8", "each needs a receive"},
		{SendBW, "--use-srq -q 2 -r 8 -n 20 --recv_post_list 5", "each QP has 4 receives of the SRQ"},
		{SendBW, "--output=latency", "Output verbosity level can be: bandwidth, message_rate"},
		{SendLat, "--output=bandwidth", "Output verbosity level can be: latency"},
		{SendBW, "--burst_size=3", "rate limiter is off"},
		{AtomicBW, "--rate_limit=3", "SW Rate limiter can't be executed"},
		{SendBW, "--rate_limit=3 --rate_limit_type=HW", "HW and PP limits are a card's"},
		{AtomicBW, "-s 16", "Message size cannot be changed for Atomic tests"},
		{AtomicBW, "-A ADD", "please choose from {CMP_AND_SWAP,FETCH_AND_ADD}"},
		{SendBW, "--use_cuda=0", "memory of an accelerator"},
		{SendBW, "-g", "multicast is not offered"},
		{SendBW, "--flows 4", "raw Ethernet QPs are not offered"},
		{SendBW, "--flow_label=3,1048576", "flow label should be between 0 and 1048575"},
		{SendBW, "--flow_label=3,,4", "flow label argument  should be int"},
		{SendBW, "--cqe_poll=0", "CQEs to poll should be between"},
		{SendLat, "-C", "times come from the system's clock"},
		{SendBW, "-O", "software devices have one port"},
		{SendBW, "a b", "one server alone can be named"},
		{SendBW, "--run_infinitely -b", "not supported in SEND Bidirectional"},
		{SendBW, "--run_infinitely --json", "no end at which JSON"},
	} {
		inv, _, stderr := tooltest.Invocation(t, tt.cmd, tt.line)
		_, code, ok := parse(inv, kindOf(tt.cmd))
		if ok || code != 1 || !strings.HasPrefix(stderr.String(), " Parser function exited with Error\n") || !strings.Contains(stderr.String(), tt.text) {
			t.Errorf("%s %s: got %v, status %d, stderr %q, want status 1 and %q", tt.cmd.Name, tt.line, ok, code, stderr, tt.text)
		}
	}
	for cmd, line := range map[*cli.Command]string{SendLat: "-q 2", WriteBW: "-e", ReadBW: "-I 3", WriteLat: "-b", AtomicLat: "-a", SendBW: "-U"} {
		inv, _, stderr := tooltest.Invocation(t, cmd, line)
		if _, code, ok := parse(inv, kindOf(cmd)); ok || code != 1 || !strings.Contains(stderr.String(), "invalid option") {
			t.Errorf("%s %s: got %v, status %d, stderr %q, want an invalid option", cmd.Name, line, ok, code, stderr)
		}
	}
}

// flagsOfC are the long flags of perftest as of July 2026 (4.5 and later), those of raw_ethernet_bw included. A flag
// with = takes an argument.
const flagsOfC = `port= ib-dev= ib-port= mtu= size= iters= tx-depth= qp-timeout= sl= gid-index= all CPU-freq
connection= qp= events vector= inline_size= outs= mcg comm_rdma_cm rdma_cm tos= hop_limit= help MGID= rx-depth=
bidirectional cq-mod= noPeak version report-cycles report-histogrm report-unsorted atomic_type= dualport post_list=
duration= margin= source_mac= dest_mac= dest_ip= source_ip= dest_port= source_port= ethertype= limit_bw= limit_msgrate=
server client mac_fwd use_rss report-counters= force-link= remote_mac= local_mac= remote_ip= local_ip= remote_port=
local_port= run_infinitely report_gbits use-srq no_lock use-null-mr report-both reversed pkey_index= tcp burst_size=
typical_pkt_size= rate_limit= rate_limit_type= rate_units= output= cpu_util out_json out_json_file= latency_gap=
flow_label= retry_count= dont_xchg_versions payload_file_path= use_cuda= use_cuda_bus_id= use_cuda_dmabuf
use_cuda_pcie_mapping use_data_direct cuda_mem_type= use_musa= use_musa_bus_id= use_musa_dmabuf use_musa_pcie_mapping
use_rocm= use_rocm_dmabuf use_neuron= use_neuron_dmabuf use_hl= use_mlu= use_mlu_dmabuf use_opencl= opencl_platform_id=
use_ib_dm_dmabuf= gpu_touch= mmap= mmap-offset= ipv6 ipv6-addr raw_ipv6 report-per-port odp use_hugepages
use_old_post_send promiscuous sniffer raw_mcast mr_per_qp dlid= tclass= wait_destroy= flows= flows_burst= reply_every=
perform_warm_up vlan_en vlan_pcp= recv_post_list= aes_xts encrypt_on_tx sig_before aes_block_size= kek_path=
credentials_path= data_enc_keys_number= data_enc_key_app_path= log_dci_streams= log_active_dci_streams=
disable_pcie_relaxed use_ooo congest_type= bind_source_ip= write_with_imm send_with_imm no_enhanced_reorder
unsolicited_write connectionless cqe_poll= tph_mem= cpu_id= ph= disable_dynamic_polling sig_offload data_validation
data_validation_debug pin_cores= numa_node= disable_numa`

// Each flag of C is taken, or refused with its reason: none is unknown.
func TestFlagsOfC(t *testing.T) {
	commands := []*cli.Command{SendBW, SendLat, WriteBW, WriteLat, ReadBW, ReadLat, AtomicBW, AtomicLat}
	for _, name := range strings.Fields(flagsOfC) {
		name, takesArg := strings.CutSuffix(name, "=")
		i := slices.IndexFunc(flagTable, func(d flagDef) bool { return d.Long == name })
		if i < 0 || (flagTable[i].Arg != "") != takesArg {
			t.Errorf("--%s: got no such flag, or one with an argument where C has none, want it taken or refused", name)
			continue
		}
		d := &flagTable[i]
		if d.refused == "" {
			continue
		}
		line := "--" + name
		if takesArg {
			line += "=1"
		}
		for _, c := range commands {
			if d.has != nil && !d.has(kindOf(c)) {
				continue
			}
			inv, _, stderr := tooltest.Invocation(t, c, line)
			if _, code, ok := parse(inv, kindOf(c)); ok || code != 1 || !strings.Contains(stderr.String(), "--"+name+": "+d.refused) {
				t.Errorf("%s %s: got %v, status %d, stderr %q, want status 1 and %q", c.Name, line, ok, code, stderr, d.refused)
			}
		}
	}
}

// The QPs take the flow labels in turn.
func TestFlowLabels(t *testing.T) {
	ts := &tester{params: &params{flowLabels: []uint32{5, 7}}, lanes: make([]lane, 3)}
	for i, want := range []uint32{5, 7, 5} {
		if got := ts.path(i, &dest{}).FlowLabel; got != want {
			t.Errorf("QP %d: got flow label %d, want %d", i, got, want)
		}
	}
}
