package perftest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/adverb-rdma/adverb/verbs"
)

const (
	resultLine = "---------------------------------------------------------------------------------------\n"

	bwHeading      = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
	bwHeadingGbits = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
	latHeading     = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n"
	latTimeHeading = " #bytes        #iterations       t_avg[usec]    tps average\n"

	bwRow      = " %-7d    %-10d       %-7.2f            %-7.2f\t\t   %-7.6f\n"
	bwSmallRow = " %-7d    %d           %-7.6f            %-7.6f            %-7.6f\n"
	latRow     = " %-7d %d          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f\n"
	latTimeRow = " %-7d       %d            %-7.2f        %-7.2f\n"

	smallGbits = 0.1 // averages below it have more digits
)

// bwReport is a result of a bandwidth test (struct bw_report_data).
type bwReport struct {
	size    int
	iters   int64
	peak    float64 // MiB or Gbit per second
	average float64 // MiB or Gbit per second
	rate    float64 // million messages per second
}

// unit is how many bytes per second a bandwidth of 1 is.
func unit(gbits bool) float64 {
	if gbits {
		return 1e9 / 8
	}
	return 1 << 20
}

func makeReport(size int, count, ns int64, gbits bool) bwReport {
	r := bwReport{size: size, iters: count}
	if ns > 0 {
		perSecond := float64(count) / (float64(ns) / 1e9)
		r.average, r.rate = perSecond*float64(size)/unit(gbits), perSecond/1e6
	}
	return r
}

// latReport is a result of a latency test.
type latReport struct {
	size      int
	iters     int64
	histogram *hdrhistogram.Histogram // nanoseconds from one message to the next
	all       []int64                 // the same, all of them, with -H and -U
	oneWay    bool                    // half of the times is the result

	byTime  bool
	elapsed int64 // nanoseconds
}

// micros is a time in the table, in microseconds.
func (r *latReport) micros(ns float64) float64 {
	if r.oneWay {
		ns /= 2
	}
	return ns / 1000
}

// quantile is the time below which that part of the results is, in microseconds.
func (r *latReport) quantile(percent float64) float64 {
	return r.micros(float64(r.histogram.ValueAtQuantile(percent)))
}

// average is the mean time in microseconds.
func (r *latReport) average() float64 {
	if r.byTime {
		return r.micros(float64(r.elapsed) / float64(r.iters))
	}
	return r.micros(r.histogram.Mean())
}

// perSecond is the number of messages in a second.
func (r *latReport) perSecond() float64 { return float64(r.iters) / (float64(r.elapsed) / 1e9) }

// results are the values that a run has reported.
type results struct {
	bw  []bwReport
	lat []latReport
}

// verdict says whether the results are as good as -w and -y ask for. The programs look at the best.
func (r *results) verdict(p *params) error {
	if p.limitBW == 0 && p.limitRate == 0 || len(r.bw) == 0 {
		return nil
	}
	if !slices.ContainsFunc(r.bw, func(b bwReport) bool { return b.average >= p.limitBW }) {
		return errors.New("Error: BW result is below bw limit")
	}
	if !slices.ContainsFunc(r.bw, func(b bwReport) bool { return b.rate >= p.limitRate }) {
		return errors.New("Error: Msg rate  is below msg_rate limit")
	}
	return nil
}

// title is the programs' name for the measurement, with sep between the words.
func (t *tester) title(sep string) string {
	s := t.kind.verb.title() + sep
	if t.kind.verb == verbAtomic {
		s += t.atomicType() + sep
	}
	if t.kind.latency {
		return s + "Latency" + sep + "Test"
	}
	if t.bidi {
		s += "Bidirectional" + sep
	}
	if t.postList > 1 {
		s += "Post" + sep + "List" + sep
	}
	return s + "BW" + sep + "Test"
}

func (t *tester) atomicType() string {
	if t.swap {
		return "CMP_AND_SWAP"
	}
	return "FETCH_AND_ADD"
}

func onOff(b bool) string {
	if b {
		return "ON"
	}
	return "OFF"
}

// linkType is the programs' name for a link layer.
func linkType(l verbs.LinkLayer) string {
	switch l {
	case verbs.LinkLayerEthernet:
		return "Ethernet"
	case verbs.LinkLayerInfiniBand:
		return "IB"
	}
	return "Unknown"
}

// transportName is the programs' name for a transport.
func (t *tester) transportName() string {
	if t.isIWARP() {
		return "IW"
	}
	return "IB"
}

// exchangeName says how the ends find each other.
func (t *tester) exchangeName() string {
	if t.cmExchange {
		return "rdma_cm"
	}
	return "Ethernet"
}

// printTestInfo prints the parameters of the measurement.
func (t *tester) printTestInfo() {
	if !t.classicOutput() {
		return
	}
	p := t.inv.Printf
	p(resultLine)
	p("                    %s\n", t.title(" "))
	if t.events {
		p(" Test with events. Using %s_comp0\n", t.dev.Name())
	}
	p(" Dual-port       : OFF\t\tDevice         : %s\n", t.dev.Name())
	p(" Number of qps   : %d\t\tTransport type : %s\n", t.numQP(), t.transportName())
	p(" Connection type : %s\t\tUsing SRQ      : %s\n", typeName(t.qpType), onOff(t.srq))
	p(" PCIe relax order: Unsupported\n")
	p(" ibv_wr* API     : OFF\n")
	if t.sender || t.bidi {
		p(" TX depth        : %d\n", t.txDepth)
	}
	if t.postList > 1 {
		p(" Post List       : %d\n", t.postList)
	}
	if t.recvList > 1 {
		p(" Recv Post List  : %d\n", t.recvList)
	}
	if t.kind.verb == verbSend && (!t.sender || t.bidi) {
		p(" RX depth        : %d\n", t.rxDepth)
	}
	if !t.kind.latency {
		p(" CQ Moderation   : %d\n", t.cqMod)
	}
	p(" Mtu             : %d[B]\n", t.pathMTU.Bytes())
	p(" Link type       : %s\n", linkType(t.port.LinkLayer))
	if t.withGID {
		p(" GID index       : %d\n", t.sgid.Index)
	}
	if t.kind.verb.oneSidedRead() {
		p(" Outstand reads  : %d\n", t.outs)
	} else {
		p(" Max inline data : %d[B]\n", t.inline)
	}
	p(" rdma_cm QPs\t : %s\n", onOff(t.cmQP))
	p(" Data ex. method : %s", t.exchangeName())
	if t.cmQP && t.tos >= 0 {
		p(" \tTOS    : %d", t.tos)
	}
	if t.cmQP && !t.sender {
		p("\n" + resultLine + " Waiting for client rdma_cm QP to connect\n Please run the same command with the IB/RoCE interface IP")
	}
	p("\n" + resultLine)
}

// printDest prints one end of a QP.
func (t *tester) printDest(side string, d *dest) {
	if !t.classicOutput() {
		return
	}
	p := t.inv.Printf
	p(" %s address: LID %s QPN %s PSN %s", side, hash(d.lid, 4), hash(d.qpn, 6), hash(d.psn, 6))
	// With rdma_cm the C programs take their exchange for a test of SENDs here.
	if t.kind.verb == verbRead && !t.cmExchange {
		p(" OUT %s", hash(d.outs, 4))
	}
	if (t.kind.verb == verbRead || t.kind.verb == verbWrite) && !t.cmExchange {
		p(" RKey %s VAddr %s", hash(d.rkey, 8), hash(d.vaddr, 16))
	}
	if t.xrc() {
		p(" SRQn %s", hash(d.srqn, 8))
	}
	p("\n")
	if !t.withGID {
		return
	}
	p(" GID: ")
	for i, b := range d.gid {
		if i > 0 {
			p(":")
		}
		p("%02d", b)
	}
	p("\n")
}

// hash is C's %#0<width>x: the width counts the prefix 0x, which 0 does not have.
func hash[T ~uint16 | ~uint32 | ~uint64](v T, width int) string {
	if v == 0 {
		return fmt.Sprintf("%0*d", width, 0)
	}
	return fmt.Sprintf("0x%0*x", width-2, uint64(v))
}

// printHeading prints the heading of the table.
func (t *tester) printHeading() {
	if !t.classicOutput() || t.kind.latency && t.kind.verb.oneSidedRead() && !t.sender {
		return
	}
	t.inv.Printf(resultLine)
	t.printColumns()
}

func (t *tester) printColumns() {
	p := t.inv.Printf
	switch {
	case t.kind.latency && t.byTime:
		p(latTimeHeading)
	case t.kind.latency:
		p("%s", latHeading)
	case t.gbits:
		p(bwHeadingGbits)
	default:
		p(bwHeading)
	}
}

// reportBandwidth prints a result, together with the peer's if both have measured.
func (t *tester) reportBandwidth(own *bwReport, withPeer bool) error {
	if t.endless {
		return nil
	}
	if !withPeer {
		return t.addRow(own)
	}
	theirs, err := t.talk.swapReport(own)
	if err != nil {
		return err
	}
	sum := *own
	sum.peak += theirs.peak
	sum.average += theirs.average
	sum.rate += theirs.rate
	if err := t.addRow(&sum); err != nil || !t.reportBoth || !t.classicOutput() {
		return err
	}
	for _, r := range []struct {
		name string
		bw   *bwReport
	}{{"Local", own}, {"Remote", &theirs}} {
		t.inv.Printf(resultLine+"\n %s results: \n"+resultLine, r.name)
		t.printColumns()
		t.printRow(r.bw)
	}
	return nil
}

// addRow notes and prints a result.
func (t *tester) addRow(r *bwReport) error {
	t.out.bw = append(t.out.bw, *r)
	t.printRow(r)
	return nil
}

func (t *tester) printRow(r *bwReport) {
	p := t.inv.Printf
	switch {
	case t.json:
	case t.output == "bandwidth":
		p("%f\n", r.average)
	case t.output == "message_rate":
		p("%f\n", r.rate)
	case t.gbits && r.average < smallGbits:
		p(bwSmallRow, r.size, r.iters, r.peak, r.average, r.rate)
	default:
		p(bwRow, r.size, r.iters, r.peak, r.average, r.rate)
	}
}

// reportLatency notes and prints a result.
func (t *tester) reportLatency(r *latReport) error {
	t.out.lat = append(t.out.lat, *r)
	p := t.inv.Printf
	list := func(times []int64) {
		p("#, usec\n")
		for i, ns := range times {
			p("%d, %g\n", i+1, r.micros(float64(ns)))
		}
	}
	if !t.json && t.unsorted {
		list(r.all)
	}
	if !t.json && t.sorted {
		list(slices.Sorted(slices.Values(r.all)))
	}
	if t.classicOutput() && (t.sorted || t.unsorted) {
		p(resultLine)
		t.printColumns()
	}
	switch {
	case t.json:
	case t.output == "latency":
		p("%f\n", r.average())
	case r.byTime:
		p(latTimeRow, r.size, r.iters, r.average(), r.perSecond())
	default:
		p(latRow, r.size, r.iters, r.micros(float64(r.histogram.Min())), r.micros(float64(r.histogram.Max())), r.quantile(50),
			r.average(), r.micros(r.histogram.StdDev()), r.quantile(99), r.quantile(99.9))
	}
	return nil
}

// finishReport prints the end of the tables, and writes the reports for programs.
func (t *tester) finishReport() error {
	if t.classicOutput() {
		t.inv.Printf(resultLine)
	}
	if t.outJSON {
		if err := t.writeJSONFile(); err != nil {
			return err
		}
	}
	if t.json {
		t.inv.PrintJSON(t.jsonReport())
	}
	return nil
}
