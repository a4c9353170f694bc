package meaning

import (
	"strconv"
	"strings"

	"github.com/adverb-rdma/adverb/verbs"
)

// named are kinds whose entries are found by a name that stands alone in a text.
var named = map[Kind]bool{
	KindStatus: true, KindReject: true, KindCMEvent: true, KindEvent: true, KindMTU: true, KindQPState: true, KindPort: true,
	KindCounter: true, KindOpcode: true, KindHeader: true, KindSetting: true, KindGID: true, KindWCOpcode: true, KindIrdma: true, KindEFA: true,
}

var theNameIndex once[map[string]int]

// nameIndex has the entries by their names in lower case, as one word each, without IBV_.
func nameIndex() map[string]int { return theNameIndex.get(makeNameIndex) }

func makeNameIndex() map[string]int {
	index := map[string]int{}
	add := func(name string, i int) {
		name = strings.TrimPrefix(lower(name), "ibv_")
		if strings.ContainsAny(name, " /-:") || len(name) < 3 && name != "bth" {
			return
		}
		if _, ok := index[name]; !ok {
			index[name] = i
		}
	}
	table := Table()
	for i := range table {
		if e := &table[i]; named[e.Kind] {
			add(e.Name, i)
			if e.Kind == KindReject { // its words, such as "timeout", are of other things too
				continue
			}
			for _, a := range e.Also {
				add(a, i)
			}
		}
	}
	for i := range table { // shorter names come behind all others
		e := &table[i]
		for _, prefix := range []string{"WC_", "IB_CM_REJ_", "RDMA_CM_EVENT_", "EVENT_"} {
			if named[e.Kind] && strings.HasPrefix(e.Name, prefix) {
				short := strings.TrimPrefix(e.Name, prefix)
				if strings.Contains(short, "_") {
					add(short, i)
				}
			}
		}
	}
	return index
}

// goNames are the names that package verbs has for the statuses of failures, in lower case.
var goNames = map[string]verbs.WCStatus{
	"wcloclenerr": verbs.WCLocLenErr, "wclocqpoperr": verbs.WCLocQPOpErr, "wclocproterr": verbs.WCLocProtErr, "wcflusherr": verbs.WCFlushErr,
	"wcmwbinderr": verbs.WCMWBindErr, "wcbadresperr": verbs.WCBadRespErr, "wclocaccesserr": verbs.WCLocAccessErr, "wcreminvreqerr": verbs.WCRemInvReqErr,
	"wcremaccesserr": verbs.WCRemAccessErr, "wcremoperr": verbs.WCRemOpErr, "wcretryexceeded": verbs.WCRetryExceeded,
	"wcrnrretryexceeded": verbs.WCRNRRetryExceeded, "wcremaborterr": verbs.WCRemAbortErr, "wcfatalerr": verbs.WCFatalErr,
	"wcresptimeouterr": verbs.WCRespTimeoutErr, "wcgeneralerr": verbs.WCGeneralErr,
}

// common are names that are words of any log as well: they count only if they are the whole text.
var common = map[string]bool{
	"timeout": true, "ttl": true, "mad": true, "success": true, "qkey": true, "lifespan": true, "hello": true, "secured": true, "acknowledge": true, "flush": true, "rnr": true, "fork": true,
	"req": true, "rep": true, "rtu": true, "rej": true, "mra": true, "dreq": true, "drep": true, "sidr_req": true, "sidr_rep": true,
	"reset": true, "init": true, "rtr": true, "rts": true, "sqd": true, "sqe": true, "err": true,
}

// expected is the text of a program about an event that did not come.
var expected = &pattern{text: `expected\s+rdma_cm_event_\w+`}

// findNames finds names: of C, of counters, of headers, of settings.
func findNames(t *text) (found []Finding) {
	index, table := nameIndex(), Table()
	skip := expected.FindStringIndex(t.lower)
	for _, w := range t.words {
		if skip != nil && skip[0] <= w.at && w.at < skip[1] {
			continue
		}
		name := strings.TrimPrefix(w.text, "ibv_")
		if status, ok := goNames[name]; ok {
			found = append(found, finding(rankCode, w.at, w.text, KindStatus, int(status))...)
			continue
		}
		i, ok := index[name]
		if !ok { // as the kernel writes it
			i, ok = index[strings.TrimPrefix(name, "ib_")]
		}
		if !ok || common[name] && len(t.words) > 1 {
			continue
		}
		e := table[i]
		r := rankContext
		switch e.Kind {
		case KindStatus, KindEvent, KindReject:
			r = rankCode
		case KindCMEvent:
			r = rankPhrase // its status tells more
		}
		if len(t.words) == 1 {
			r = rankAsked
		}
		found = append(found, Finding{Entry: e, By: t.raw[w.at : w.at+len(w.text)], rank: r, at: w.at})
	}
	return found
}

// phraseKinds are kinds whose entries programs print in words.
var phraseKinds = map[Kind]bool{KindStatus: true, KindReject: true, KindNAK: true, KindSetting: true, KindHeader: true, KindGID: true, KindEvent: true}

type phrase struct {
	text  string
	entry int
}

var thePhrases once[[]phrase]

// phrases are the texts of several words by which entries are printed, in lower case.
func phrases() []phrase { return thePhrases.get(makePhrases) }

func makePhrases() (list []phrase) {
	table := Table()
	for i := range table {
		if e := &table[i]; phraseKinds[e.Kind] {
			for _, a := range append([]string{e.Name}, e.Also...) {
				if strings.Contains(a, " ") {
					list = append(list, phrase{lower(a), i})
				}
			}
		}
	}
	return list
}

// findPhrases finds entries that programs print in words: "transport retry counter exceeded".
func findPhrases(t *text) (found []Finding) {
	table := Table()
	for _, p := range phrases() {
		at := strings.Index(t.lower, p.text)
		if at < 0 || at > 0 && isWordByte(t.lower[at-1]) || at+len(p.text) < len(t.lower) && isWordByte(t.lower[at+len(p.text)]) {
			continue
		}
		e := table[p.entry]
		if e.Kind == KindStatus && len(p.text) < len(t.lower) && !ofCompletion(t, p.text, at, e.Number) {
			continue
		}
		if e.Kind == KindReject && !t.cm || e.Kind == KindStatus && rnrBefore(t.lower, at) || e.Kind == KindNAK && (t.wc || len(p.text) < len(t.lower) && !nakWord.MatchString(t.lower)) {
			continue
		}
		r := rankPhrase
		switch {
		case len(p.text) == len(t.lower):
			r = rankAsked
		case e.Kind == KindEvent && (t.cm || shortEvents[p.text] && !eventWord.MatchString(t.lower) && !numbered(t.lower[at+len(p.text):], e.Number)):
			continue
		case e.Kind == KindEvent: // the texts of statuses are parts of some
			r = rankCode
		case e.Kind == KindSetting || e.Kind == KindHeader || e.Kind == KindGID:
			r = rankContext
		case spdkAbort.MatchString(t.lower[:at]):
			r = rankVendor
		}
		found = append(found, Finding{Entry: e, By: t.raw[at : at+len(p.text)], rank: r, at: at})
	}
	return found
}

var (
	// generic are texts of statuses that any log may have. They count beside a word for a completion, or beside the number of
	// their status.
	generic = map[string]bool{
		"fatal error": true, "general error": true, "bad response": true, "bad response error": true, "invalid request": true, "aborted error": true,
		"operation aborted": true, "flush error": true, "response timeout error": true, "tm error": true, "endpoint timeout": true, "retry exceeded": true,
	}
	// short are those that a word of RDMA beside them makes clear.
	short = map[string]bool{
		"local length": true, "local protection": true, "local access": true, "remote access": true, "remote invalid request": true, "local qp operation": true,
		"receiver not ready": true, "memory window bind": true, "remote operation error": true, "local access error": true, "remote access error": true,
	}

	// shortEvents are texts of asynchronous events that count beside a word for an event.
	shortEvents = map[string]bool{
		"cq error": true, "qp fatal error": true, "qp request error": true, "qp access error": true, "communication established": true, "path migrated": true,
		"device fatal error": true, "port active": true, "port error": true, "srq error": true, "client reregister": true, "gid changed": true, "wq fatal": true,
	}

	eventWord      = &pattern{text: `\basync|\bevent`}
	completionWord = &pattern{text: `\b(?:wc|cqe?|completions?|ibv_\w+|work requests?|wr_id|synd(?:rome?)?|vend\w*|ucx|ucs_\w+)\b|completion`}
	rdmaWord       = &pattern{text: `\b(?:qp\w*|rdma\w*|verbs|ib|infiniband|roce\w*|nccl|nvmf?|fi_\w+|prov_err\w*|mlx\w+|ib_\w+|rping|openfabrics)\b`}
	nakWord        = &pattern{text: `\bnaks?\b|\baeth|\bnaked\b|\bqp\w*\b|\bpsn\b|\brdma`}
	statusBefore   = &pattern{text: `\bstatus\W{0,3}$`}
)

// ofCompletion reports whether a phrase at an offset is a status, and not plain English.
func ofCompletion(t *text, phrase string, at, status int) bool {
	switch {
	case !generic[phrase] && !short[phrase]:
		return true
	case healthLine.MatchString(t.lower):
		return false
	case completionWord.MatchString(t.lower), short[phrase] && rdmaWord.MatchString(t.lower):
		return true
	}
	before, after := t.lower[max(0, at-8):at], t.lower[at+len(phrase):]
	return statusBefore.MatchString(before) || strings.HasSuffix(strings.TrimRight(before, " ):=]"), strconv.Itoa(status)) || numbered(after, status)
}

// numbered reports whether a text begins with a number: " (19) for".
func numbered(after string, n int) bool {
	rest, ok := strings.CutPrefix(strings.TrimLeft(after, " (:=["), strconv.Itoa(n))
	return ok && (rest == "" || rest[0] != '.' && !isWordByte(rest[0]))
}

// spdkAbort is printed before one and the same phrase, whatever the completion had.
var spdkAbort = &pattern{text: `abort requests after $`}

// rnrBefore reports whether "retry counter exceeded" at an offset is that of RNR.
func rnrBefore(s string, at int) bool { return strings.HasSuffix(s[:at], "rnr ") }
