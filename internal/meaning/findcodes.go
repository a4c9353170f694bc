package meaning

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

var (
	cmContext = &pattern{text: `rdma_cm_event|cma? event|rdma event|\brej(ect(ed|ion)?|s)?\b|ib_cm_rej|rdma_(connect|accept|reject)|connect(ion)? (error|rejected)|\b(addr|route|connect)_error\b|\bunreachable, `}
	wcContext = &pattern{text: `complet|\bwc\b|ibv_wc|wr_id|work request|\bcqe?\b|vendor|opcode|poll`}
)

// parse reads a decimal number, or one of base 16 behind 0x.
func parse(s string) (int, bool) {
	n, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		n, err = strconv.ParseInt(s, 10, 32) // 010 is ten
	}
	return int(n), err == nil
}

// numbers calls f for each number that the only group of re finds.
func numbers(re *pattern, s string, f func(at int, by string, n int)) {
	for _, m := range re.FindAllStringSubmatchIndex(s) {
		if m[2] < 0 {
			continue
		}
		if n, ok := parse(s[m[2]:m[3]]); ok {
			f(m[0], strings.TrimSpace(s[m[0]:m[1]]), n)
		}
	}
}

var (
	// An mlx5 dump: four rows of four words by libmlx5, or rows of bytes behind an offset by the kernel.
	dumpWords = &pattern{text: `\b([0-9a-f]{8})[ \t]+([0-9a-f]{8})[ \t]+([0-9a-f]{8})[ \t]+([0-9a-f]{8})\b`}
	dumpBytes = &pattern{text: `\b0*30: ((?:[0-9a-f]{2} ){15}[0-9a-f]{2})\b`}
	dumpLast  = &pattern{text: `^.*\b([0-9a-f]{8})[ \t]+([0-9a-f]{8})[ \t]+([0-9a-f]{8})[ \t]+([0-9a-f]{8})\b`} // the last four words
	dumpRow   = &pattern{text: `\b[0-9a-f]{8}: (?:[0-9a-f]{2} ){15}[0-9a-f]{2}\b`}
)

const (
	cqeReqErr  = 0xd // opcodes of error CQEs: of a requester, and of a responder
	cqeRespErr = 0xe
)

// findDump decodes the last 16 bytes of an error CQE of mlx5.
func findDump(t *text) []Finding {
	var row string
	at := 0
	if m := dumpBytes.FindStringSubmatchIndex(t.lower); m != nil {
		at, row = m[0], strings.ReplaceAll(t.lower[m[2]:m[3]], " ", "")
	} else if m := dumpLast.FindStringSubmatchIndex(t.lower); m != nil {
		at = m[2]
		for g := 2; g < len(m); g += 2 {
			row += t.lower[m[g]:m[g+1]]
		}
	}
	if len(row) != 32 {
		return nil
	}
	var b [16]byte
	for i := range b {
		n, _ := strconv.ParseUint(row[2*i:2*i+2], 16, 8)
		b[i] = byte(n)
	}
	status, ok := statusOfSyndrome(int(b[7]))
	side := map[byte]string{cqeReqErr: "of a send work request", cqeRespErr: "of a receive"}[b[15]>>4]
	if !ok || side == "" {
		return nil
	}
	qpn := int(b[9])<<16 | int(b[10])<<8 | int(b[11])
	note := fmt.Sprintf("the dump is an error CQE %s: syndrome 0x%02x, vendor_err 0x%02x, QP 0x%06x, WQE counter %d", side, b[7], b[6], qpn, int(b[12])<<8|int(b[13]))
	if op, ok := wqeOpcodes[b[8]]; ok && b[15]>>4 == cqeReqErr {
		note += ", opcode " + op
	}
	found := finding(rankDump, at, "the dump", KindStatus, int(status))
	found[0].Note = note
	return append(found, finding(rankVendor, at, fmt.Sprintf("vendor_err 0x%02x of the dump", b[6]), KindVendor, int(b[6]))...)
}

// asked are further words for kinds, at the beginning of a user's question.
var asked = map[string]Kind{
	"wc": KindStatus, "wcstatus": KindStatus, "wc_status": KindStatus, "completion": KindStatus, "vend": KindVendor, "vendor_err": KindVendor, "vendor_error": KindVendor, "vendor_code": KindVendor,
	"synd": KindSyndrome, "rej": KindReject, "reason": KindReject, "rejected": KindReject, "rnr": KindRNR, "rnr_timer": KindRNR, "min_rnr_timer": KindRNR,
	"ack_timeout": KindTimeout, "qp_timeout": KindTimeout, "async": KindEvent, "async_event": KindEvent, "cm_event": KindCMEvent,
	"path_mtu": KindMTU, "active_mtu": KindMTU, "gid_type": KindGID, "qp_state": KindQPState, "qps": KindQPState, "port_state": KindPort, "nak_code": KindNAK,
	"bth": KindOpcode, "ae_id": KindIrdma, "health_syndrome": KindHealth,
}

var askedForm = &pattern{text: `^([a-z][a-z_-]*?(?:[ -](?:timer|state|event|err|error|code|type|opcode))?)[\s:=#]+(?:code |err |error |number )?(-?(?:0x[0-9a-f]+|\d+))$`}

// entryNamed returns the opcode that a text names in words: "XRC SEND_ONLY".
func entryNamed(s string) *Entry {
	opcodes := Of(KindOpcode)
	for i := range opcodes {
		if e := &opcodes[i]; strings.Contains(e.Name, " ") && lower(e.Name) == s {
			return e
		}
	}
	return nil
}

// findAsked finds the entry of a kind and a number: "vendor 0x81".
func findAsked(t *text) []Finding {
	if len(t.words) > 5 {
		return nil
	}
	if e := entryNamed(t.lower); e != nil {
		return []Finding{{Entry: *e, By: t.raw, rank: rankAsked}}
	}
	m := askedForm.FindStringSubmatch(t.lower)
	if m == nil {
		return nil
	}
	n, ok := parse(m[2])
	if !ok {
		return nil
	}
	name := strings.ReplaceAll(m[1], " ", "-")
	kind := Kind(name)
	if k, ok := asked[strings.ReplaceAll(name, "-", "_")]; ok {
		kind = k
	}
	switch {
	case kind == KindErrno:
		return nil // of no call: findErrnoAlone
	case kind == KindMTU && n > int(verbs.MTU4096):
		m, ok := verbs.MTUFromBytes(n)
		if !ok {
			return nil
		}
		n = int(m)
	case kind == KindSyndrome: // UCX and the driver write synd for it
		if _, ok := statusOfSyndrome(n); !ok {
			kind = KindVendor
		}
	}
	found := finding(rankAsked, 0, t.raw, kind, n)
	if name == string(KindOpcode) && !strings.HasPrefix(m[2], "0x") { // programs print those of completions in base 10
		found = append(found, finding(rankAsked, 0, t.raw, KindWCOpcode, n)...)
	}
	return found
}

var statusForms = &pattern{text: `(?:\b(?:wc[_ .]?status|completion[_ ]status|failed status|bad wc status|status)\s*[:=]?\s*\(?|completion (?:from peer \S+ )?with (?:error|status)[:= ]*|completion error[:= ]+|ibv_wc_status[:= ]+|wc error[:= ]+|work completion error[:= ]+)(\d{1,3})\b`}

// exitStatus is in lines about a process that has ended.
var exitStatus = &pattern{text: `\bexit(?:s|ed|ing)?\b|http`}

// ofEFA are lines of libfabric's provider of EFA, whose statuses are numbers of its own.
var ofEFA = &pattern{text: `libfabric:[\d:]*efa\b`}

// findStatus finds the status of a completion by its number.
func findStatus(t *text) (found []Finding) {
	if t.cm && !t.wc || ofEFA.MatchString(t.lower) {
		return nil
	}
	numbers(statusForms, t.lower, func(at int, by string, n int) {
		question := len(t.words) < 4
		if strings.HasPrefix(by, "status") && (exitStatus.MatchString(t.lower) || !question && !t.wc && !completionWord.MatchString(t.lower) && !rdmaWord.MatchString(t.lower)) {
			return // a status of something else
		}
		if n > 0 || question {
			found = append(found, finding(rankCode, at, by, KindStatus, n)...)
		}
	})
	return found
}

var (
	syndromeForms = &pattern{text: `(?:^|[^_\w])(?:synd|syndrome)[ :=]+(0x[0-9a-f]{1,2})\b`}
	hnsForm       = &pattern{text: `error cqe status[ (]*(0x[0-9a-f]{1,2})\b`} // hns has the same syndromes
	vendorForms   = &pattern{text: `(?:vendor[ _]?(?:err(?:or)?|code|synd(?:rome?)?)?(?:[ _]synd(?:rome)?)?|vend(?:[ _]err)?|\bsyndrom|error syndrome)[ :=]+\(?(0x[0-9a-f]{1,2}|\d{1,3})\b`}
	vendorHex     = &pattern{text: `\bvend_err ([0-9a-f]{2})\b`} // as the kernel's iSER target prints it
	vendorBefore  = &pattern{text: `(?:vendor|error|aeth)[ _]$`}
)

// findSyndrome finds the syndrome of an error CQE of mlx5, which is a status.
func findSyndrome(t *text) (found []Finding) {
	if healthLine.MatchString(t.lower) || findHealth(t) != nil {
		return nil
	}
	numbers(syndromeForms, t.lower, func(at int, by string, n int) {
		word := strings.Index(t.lower[at:], "synd") + at
		status, ok := statusOfSyndrome(n)
		if !ok || vendorBefore.MatchString(t.lower[:word]) {
			return
		}
		f := finding(rankCode, at, strings.TrimLeft(by, " ([,"), KindStatus, int(status))
		f[0].Note = fmt.Sprintf("mlx5's syndrome 0x%02x is status %d", n, status)
		found = append(found, f...)
	})
	numbers(hnsForm, t.lower, func(at int, by string, n int) {
		if status, ok := statusOfSyndrome(n); ok {
			f := finding(rankCode, at, by, KindStatus, int(status))
			f[0].Note = fmt.Sprintf("the CQE status 0x%02x of hns is status %d", n, status)
			found = append(found, f...)
		}
	})
	return found
}

// pairForm is a status with a vendor code, as the kernel's NFS prints them.
var pairForm = &pattern{text: `(?:rpcrdma|frwr|localinv|fastreg)[^\n]*\((\d{1,2})/(0x[0-9a-f]{1,2})\)`}

// findVendor finds vendor codes.
func findVendor(t *text) (found []Finding) {
	if m := pairForm.FindStringSubmatchIndex(t.lower); m != nil {
		status, _ := parse(t.lower[m[2]:m[3]])
		vendor, _ := parse(t.lower[m[4]:m[5]])
		by := t.raw[m[2]-1 : m[5]+1]
		return append(finding(rankCode, m[2]-1, by, KindStatus, status), finding(rankVendor, m[2]-1, by, KindVendor, vendor)...)
	}
	if m := vendorHex.FindStringSubmatchIndex(t.lower); m != nil {
		n, _ := parse("0x" + t.lower[m[2]:m[3]])
		return finding(rankVendor, m[0], t.raw[m[0]:m[1]], KindVendor, n)
	}
	numbers(vendorForms, t.lower, func(at int, by string, n int) {
		found = append(found, finding(rankVendor, at, by, KindVendor, n)...)
	})
	return found
}

var (
	rejectForms = &pattern{text: `(?:\brej\b[^\n]*?reason[^\n\d]{0,12}|\brejects?(?:ed|ion)?\b[^\n]*?(?:reason|status|error|code)[:= (]*|ib_cm_rej\S*[:= ]+|rdma_cm_event_rejected[^\n]*?(?:status|error|reason)[:= (]*|\bcm-rej-)(-?(?:0x[0-9a-f]{1,8}|\d{1,3}))\b`}
	eventStatus = &pattern{text: `\b(?:rdma_cm_event_)?(addr_error|route_error|connect_error|unreachable|rejected|multicast_error)\b[^\n]*?(?:status|error|errno)?[:= (]*(-\d{1,3})\b`}
	eventErrno  = &pattern{text: `\brdma_cm_event_(addr_error|route_error|connect_error|unreachable|multicast_error)\b[^\n]*?(?:status|error|errno)[:= (]*(\d{1,3})\b`}
)

// callOfEvent is the call whose failure an event reports.
var callOfEvent = map[string]string{
	"addr_error": "rdma_resolve_addr", "route_error": "rdma_resolve_route", "connect_error": "rdma_connect", "unreachable": "rdma_connect",
	"rejected": "rdma_connect", "multicast_error": "rdma_join_multicast",
}

// findReject finds the reason of a REJ, and the errno of an event of the connection manager.
func findReject(t *text) (found []Finding) {
	numbers(rejectForms, t.lower, func(at int, by string, n int) {
		if n > 0 {
			found = append(found, finding(rankCode, at, by, KindReject, n)...)
		}
	})
	for _, re := range []*pattern{eventStatus, eventErrno} {
		for _, m := range re.FindAllStringSubmatchIndex(t.lower) {
			n, _ := parse(strings.TrimPrefix(t.lower[m[4]:m[5]], "-"))
			found = append(found, findingOfCall(rankCode, m[0], t.raw[m[0]:m[1]], callOfEvent[t.lower[m[2]:m[3]]], "", n)...)
		}
	}
	return found
}

var (
	// An event of the connection manager by its number, and its status.
	eventNumber  = &pattern{text: `\b(?:rdma|cma?|rdma_?cm)[_ ](?:cm )?event(?: bl blka| type| id| error: event)?[:=# ]+\(?(\d{1,2})\b|^[^\n]*\b(?:address|route|connect|unreachable|rejected|established|disconnected|device|multicast|timewait)[a-z ]*\((\d{1,2})\): status -?\d+ id\b|\bbad event waiting for connect request (\d{1,2})\b`}
	numberStatus = &pattern{text: `^[^\n]*?(?:status|error|reason)[:= (]*(-?\d{1,3})\b`}
)

// findEventNumber finds an event of the connection manager by its number, and what its status says: "rdma event 8 status 8".
func findEventNumber(t *text) (found []Finding) {
	m := eventNumber.FindStringSubmatchIndex(t.lower)
	if m == nil {
		return nil
	}
	at, end := m[2], m[3]
	for g := 4; at < 0; g += 2 {
		at, end = m[g], m[g+1]
	}
	n, _ := parse(t.lower[at:end])
	by := t.raw[m[0]:end]
	found = finding(rankPhrase, m[0], by, KindCMEvent, n)
	if found == nil {
		return nil
	}
	s := numberStatus.FindStringSubmatchIndex(t.lower[end:])
	if s == nil {
		return found
	}
	status, _ := parse(t.lower[end+s[2] : end+s[3]])
	by = t.raw[m[0] : end+s[3]]
	event := lower(strings.TrimPrefix(found[0].Name, "RDMA_CM_EVENT_"))
	switch call := callOfEvent[event]; {
	case event == "rejected" && status > 0:
		found = append(found, finding(rankCode, m[0], by, KindReject, status)...)
	case call != "" && status != 0:
		found = append(found, findingOfCall(rankCode, m[0], by, call, "", max(status, -status))...)
	}
	return found
}

var sidrForms = &pattern{text: `\bsidr\w*[^\n]*?status[:= (]*(\d)\b`}

func findSIDR(t *text) (found []Finding) {
	numbers(sidrForms, t.lower, func(at int, by string, n int) {
		found = append(found, finding(rankCode, at, by, KindSIDR, n)...)
	})
	return found
}

// codeForms are codes that stand behind their name in any text.
var codeForms = []struct {
	re   *pattern
	kind Kind
}{
	{&pattern{text: `\b(?:nccl_ib_timeout|(?:qp|local|ack)[_ ]?(?:ack[_ ])?timeout|timeout code|qp timeout)[:= ]+(\d{1,2})\b`}, KindTimeout},
	{&pattern{text: `\b(?:min_rnr_timer|rnr[_ ](?:nak )?timer)(?: code)?[:= ]+(\d{1,2})\b`}, KindRNR},
	{&pattern{text: `\bgot (?:fatal|async) event (\d{1,2})\b`}, KindEvent}, // MVAPICH2
	{&pattern{text: `\bopcode[:= ]+(12[89])\b`}, KindWCOpcode},             // SPDK and NCCL print it; smaller numbers may be anything
	{&pattern{text: `\bpath_mtu[:= ]+([1-5])\b`}, KindMTU},
	{&pattern{text: `\bactive_mtu:?[ \t]+\d+ \(([1-5])\)`}, KindMTU},
	{&pattern{text: `\bport_(?:down|init|armed|active)[ \t]*\(([1-5])\)`}, KindPort},
	{&pattern{text: `\baeth(?:\.| )?(?:syndrome)?[:= ]+(0x[0-9a-f]{1,2})\b`}, KindAETH},
	{&pattern{text: `\bbth(?:\.| )?opcode[:= ]+(0x[0-9a-f]{1,2}|\d{1,3})\b`}, KindOpcode},
	{&pattern{text: `\bnak(?: code)?[:= ]+([0-4])\b`}, KindNAK},
}

func findCodes(t *text) (found []Finding) {
	for _, c := range codeForms {
		numbers(c.re, t.lower, func(at int, by string, n int) { found = append(found, finding(rankNumber, at, by, c.kind, n)...) })
	}
	return found
}

// bareKinds are the kinds that a number alone may be of, the likeliest first.
var bareKinds = []Kind{KindStatus, KindVendor, KindReject, KindErrno}

var bareNumber = &pattern{text: `^(?:0x[0-9a-f]+|\d+)$`}

// findBare finds all that a number alone may mean. A negative number is an errno: see findErrnoAlone.
func findBare(t *text) (found []Finding) {
	if !bareNumber.MatchString(t.lower) {
		return nil
	}
	n, ok := parse(t.lower)
	if !ok {
		return nil
	}
	kinds := bareKinds
	if strings.HasPrefix(t.lower, "0x") {
		kinds = []Kind{KindVendor, KindSyndrome, KindAETH, KindOpcode}
	}
	for i, k := range kinds {
		if k != KindErrno {
			found = append(found, finding(rankBare+rank(i), 0, t.raw, k, n)...)
		} else {
			found = append(found, findingOfCall(rankBare+rank(i), 0, t.raw, "", "", n)...)
		}
	}
	return found
}
