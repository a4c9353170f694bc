package perftest

import (
	"encoding/json"
	"os"
)

// jsonReport is the output of --json.
type jsonReport struct {
	Test           string    `json:"test"`
	Device         string    `json:"device"`
	QPType         string    `json:"qp_type"`
	AtomicType     string    `json:"atomic_type,omitempty"`
	NumQP          int       `json:"qps"`
	MTU            int       `json:"mtu"`
	TxDepth        int       `json:"tx_depth"`
	RxDepth        int       `json:"rx_depth,omitempty"`
	PostList       int       `json:"post_list"`
	CQModeration   int       `json:"cq_moderation,omitempty"`
	MaxInline      int       `json:"max_inline"`
	Outstanding    int       `json:"outstanding_reads,omitempty"`
	SRQ            bool      `json:"srq"`
	Events         bool      `json:"events"`
	RDMACM         bool      `json:"rdma_cm"`
	Bidirectional  bool      `json:"bidirectional"`
	BandwidthUnit  string    `json:"bandwidth_unit,omitempty"`
	Bandwidth      []jsonBW  `json:"bandwidth,omitempty"`
	LatencyMeaning string    `json:"latency_meaning,omitempty"`
	Latency        []jsonLat `json:"latency,omitempty"`
}

// jsonBW is a row of the table of bandwidths.
type jsonBW struct {
	Bytes      int     `json:"bytes"`
	Iterations int64   `json:"iterations"`
	Peak       float64 `json:"peak"`
	Average    float64 `json:"average"`
	MsgRate    float64 `json:"messages_per_second"`
}

// jsonLat is a row of the table of latencies. Times are in microseconds.
type jsonLat struct {
	Bytes      int     `json:"bytes"`
	Iterations int64   `json:"iterations"`
	Min        float64 `json:"min_us"`
	Max        float64 `json:"max_us"`
	Typical    float64 `json:"typical_us"`
	Average    float64 `json:"average_us"`
	StdDev     float64 `json:"stdev_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p99_9_us"`
	PerSecond  float64 `json:"per_second,omitempty"`
}

func (t *tester) jsonReport() *jsonReport {
	r := &jsonReport{Test: t.kind.name, Device: t.dev.Name(), QPType: typeName(t.qpType), NumQP: t.numQP(), MTU: t.pathMTU.Bytes(),
		TxDepth: t.txDepth, PostList: t.postList, MaxInline: t.inline, SRQ: t.srq, Events: t.events, RDMACM: t.cmQP, Bidirectional: t.bidi}
	if t.receives() {
		r.RxDepth = t.rxDepth
	}
	if t.kind.verb == verbAtomic {
		r.AtomicType = t.atomicType()
	}
	if t.kind.verb.oneSidedRead() {
		r.Outstanding = t.outs
	}
	if t.kind.latency {
		r.LatencyMeaning = "one way"
		if t.kind.verb.oneSidedRead() {
			r.LatencyMeaning = "round trip"
		}
	} else {
		r.CQModeration, r.BandwidthUnit = t.cqMod, "MiB/s"
		if t.gbits {
			r.BandwidthUnit = "Gb/s"
		}
	}
	for _, b := range t.out.bw {
		r.Bandwidth = append(r.Bandwidth, jsonBW{b.size, b.iters, b.peak, b.average, b.rate * 1e6})
	}
	for i := range t.out.lat {
		l := &t.out.lat[i]
		row := jsonLat{l.size, l.iters, l.micros(float64(l.histogram.Min())), l.micros(float64(l.histogram.Max())), l.quantile(50),
			l.average(), l.micros(l.histogram.StdDev()), l.quantile(99), l.quantile(99.9), 0}
		if l.byTime {
			row.PerSecond = l.perSecond()
		}
		r.Latency = append(r.Latency, row)
	}
	return r
}

// testInfo is the first part of --out_json, with the keys of the C programs.
type testInfo struct {
	Test       string `json:"test"`
	DualPort   string `json:"Dual_port"`
	Device     string `json:"Device"`
	NumQP      int    `json:"Number_of_qps"`
	Transport  string `json:"Transport_type"`
	Connection string `json:"Connection_type"`
	SRQ        string `json:"Using_SRQ"`
	RelaxOrder string `json:"PCIe_relax_order"`
	WRAPI      string `json:"ibv_wr_API"`
	TxDepth    int    `json:"TX_depth,omitempty"`
	PostList   int    `json:"Post_List,omitempty"`
	RecvList   int    `json:"Recv_Post_List,omitempty"`
	RxDepth    int    `json:"RX_depth,omitempty"`
	CQMod      int    `json:"CQ_Moderation,omitempty"`
	MTU        int    `json:"Mtu"`
	LinkType   string `json:"Link_type"`
	GIDIndex   *int   `json:"GID_index,omitempty"`
	Inline     *int   `json:"Max_inline_data,omitempty"`
	Outs       int    `json:"Outstand_reads,omitempty"`
	CMQPs      string `json:"rdma_cm_QPs"`
	Exchange   string `json:"Data_ex_method"`
}

// The second part of --out_json.
type (
	bwResult struct {
		Size    int     `json:"MsgSize"`
		Iters   int64   `json:"n_iterations"`
		Peak    float64 `json:"BW_peak"`
		Average float64 `json:"BW_average"`
		Rate    float64 `json:"MsgRate"`
	}
	latResult struct {
		Size    int     `json:"MsgSize"`
		Iters   int64   `json:"n_iterations"`
		Min     float64 `json:"t_min"`
		Max     float64 `json:"t_max"`
		Typical float64 `json:"t_typical"`
		Average float64 `json:"t_avg"`
		StdDev  float64 `json:"t_stdev"`
		P99     float64 `json:"percentile_99"`
		P999    float64 `json:"percentile_99.9"`
	}
	latTimeResult struct {
		Size    int     `json:"MsgSize"`
		Iters   int64   `json:"n_iterations"`
		Average float64 `json:"t_avg"`
		TPS     float64 `json:"tps_average"`
	}
)

func (t *tester) testInfo() *testInfo {
	info := &testInfo{Test: t.title("_"), DualPort: "OFF", Device: t.dev.Name(), NumQP: t.numQP(), Transport: t.transportName(),
		Connection: typeName(t.qpType), SRQ: onOff(t.srq), RelaxOrder: "Unsupported", WRAPI: "OFF", MTU: t.pathMTU.Bytes(),
		LinkType: linkType(t.port.LinkLayer), CMQPs: onOff(t.cmQP), Exchange: t.exchangeName()}
	if t.sender || t.bidi {
		info.TxDepth = t.txDepth
	}
	if t.postList > 1 {
		info.PostList = t.postList
	}
	if t.recvList > 1 {
		info.RecvList = t.recvList
	}
	if t.kind.verb == verbSend && (!t.sender || t.bidi) {
		info.RxDepth = t.rxDepth
	}
	if !t.kind.latency {
		info.CQMod = t.cqMod
	}
	if t.withGID {
		info.GIDIndex = &t.sgid.Index
	}
	if t.kind.verb.oneSidedRead() {
		info.Outs = t.outs
	} else {
		info.Inline = &t.inline
	}
	return info
}

// writeJSONFile writes the last result, as the C programs do.
func (t *tester) writeJSONFile() error {
	report := struct {
		Info    *testInfo `json:"test_info"`
		Results any       `json:"results"`
	}{Info: t.testInfo()}
	switch {
	case len(t.out.bw) > 0:
		b := t.out.bw[len(t.out.bw)-1]
		report.Results = bwResult{b.size, b.iters, b.peak, b.average, b.rate}
	case len(t.out.lat) > 0:
		l := &t.out.lat[len(t.out.lat)-1]
		if l.byTime {
			report.Results = latTimeResult{l.size, l.iters, l.average(), l.perSecond()}
			break
		}
		report.Results = latResult{l.size, l.iters, l.micros(float64(l.histogram.Min())), l.micros(float64(l.histogram.Max())), l.quantile(50),
			l.average(), l.micros(l.histogram.StdDev()), l.quantile(99), l.quantile(99.9)}
	default:
		return nil // the passive end has no results
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err == nil {
		err = os.WriteFile(t.outJSONFile, append(text, '\n'), 0o644)
	}
	if err != nil {
		return fail(err, "failed to write %s", t.outJSONFile)
	}
	return nil
}
