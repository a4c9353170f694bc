package meaning

import "fmt"

// Kind is a class of entries. Its text is the word by which adverb explain knows the class.
type Kind string

// The kinds.
const (
	KindStatus   Kind = "status"    // of a work completion
	KindWCOpcode Kind = "wc-opcode" // of a work completion
	KindVendor   Kind = "vendor"    // vendor_err of a completion
	KindSyndrome Kind = "syndrome"  // of an error CQE of mlx5
	KindNAK      Kind = "nak"       // the code of a NAK
	KindAETH     Kind = "aeth"      // the first byte of an AETH
	KindRNR      Kind = "rnr-timer" // min_rnr_timer
	KindTimeout  Kind = "timeout"   // a QP's timeout
	KindEvent    Kind = "event"     // an asynchronous event
	KindReject   Kind = "reject"    // the reason of a REJ
	KindSIDR     Kind = "sidr"      // the status of a SIDR_REP
	KindCMEvent  Kind = "cm-event"  // an event of librdmacm
	KindHealth   Kind = "health"    // of a card of mlx5 itself
	KindEFA      Kind = "efa"       // vendor_err of EFA
	KindIrdma    Kind = "ae"        // an asynchronous event of Intel's irdma
	KindNVMe     Kind = "nvme"      // why an NVMe target has refused
	KindErrno    Kind = "errno"     // of a call
	KindMTU      Kind = "mtu"       // a path MTU
	KindGID      Kind = "gid"       // the type of a GID
	KindQPState  Kind = "qp-state"  // a QP's state
	KindPort     Kind = "port"      // a port's state
	KindOpcode   Kind = "opcode"    // the first byte of a BTH
	KindHeader   Kind = "header"    // a header of a packet
	KindCounter  Kind = "counter"   // a counter
	KindSetting  Kind = "setting"   // an attribute that programs choose
	KindMessage  Kind = "message"   // a program's line without a code
	KindWord     Kind = "word"      // of the glossary
)

// KindDesc describes a kind.
type KindDesc struct {
	Kind    Kind   `json:"kind"`
	Title   string `json:"title"`
	Example string `json:"example"` // words for adverb explain

	// Rule is what all entries say, each with a time of its own: a list needs no more than their numbers and names.
	Rule string `json:"rule,omitempty"`
}

// Kinds are all kinds, in the order of lists and documents.
var Kinds = []KindDesc{
	{Kind: KindStatus, Title: "Statuses of work completions (enum ibv_wc_status)", Example: "status 12"},
	{Kind: KindWCOpcode, Title: "Opcodes of work completions (enum ibv_wc_opcode)", Example: "wc-opcode 128"},
	{Kind: KindVendor, Title: "Vendor codes of failed completions (vendor_err), of mlx5", Example: "vendor 0x81"},
	{Kind: KindSyndrome, Title: "Syndromes of error CQEs of mlx5", Example: "synd 0x15"},
	{Kind: KindHealth, Title: "Health syndromes of mlx5, of a card that has failed", Example: "health 0x10"},
	{Kind: KindEFA, Title: "Vendor codes of failed completions of EFA", Example: "efa 9"},
	{Kind: KindIrdma, Title: "Asynchronous events of irdma, the driver of cards of Intel (ae_id)", Example: "ae 0x50a"},
	{Kind: KindErrno, Title: "Errors of calls, by call and errno", Example: "ibv_modify_qp RTR 110"},
	{Kind: KindReject, Title: "Reasons of rejected connections (REJ)", Example: "reject 28"},
	{Kind: KindNVMe, Title: "Statuses by which NVMe targets refuse, behind reason 28", Example: "nvme 6"},
	{Kind: KindCMEvent, Title: "Events of the connection manager (enum rdma_cm_event_type)", Example: "RDMA_CM_EVENT_UNREACHABLE"},
	{Kind: KindSIDR, Title: "Statuses of answers to service lookups (SIDR_REP)", Example: "sidr 1"},
	{Kind: KindEvent, Title: "Asynchronous events (enum ibv_event_type)", Example: "event 10"},
	{Kind: KindNAK, Title: "Codes of NAKs", Example: "nak 2"},
	{Kind: KindAETH, Title: "First bytes of an AETH (syndromes of acknowledgements)", Example: "aeth 0x62"},
	{Kind: KindRNR, Title: "RNR timer codes (min_rnr_timer)", Example: "rnr-timer 12",
		Rule: "After an RNR NAK the requester waits so long at least. The responder's min_rnr_timer has the code. 0 is the longest time, not the shortest."},
	{Kind: KindTimeout, Title: "ACK timeout codes (timeout of a QP)", Example: "timeout 14",
		Rule: "The time is 4.096 µs × 2^code. A requester without an answer sends again after that to four times that; cards wait longer, and have a least time. 0 waits without end, so that a packet lost at the end of a message hangs the QP."},
	{Kind: KindSetting, Title: "Attributes that programs choose", Example: "rnr_retry"},
	{Kind: KindMessage, Title: "Messages that name no code", Example: "cannot find -libverbs"},
	{Kind: KindMTU, Title: "Path MTU codes (enum ibv_mtu)", Example: "mtu 5"},
	{Kind: KindGID, Title: "Types of GIDs", Example: "gid 2"},
	{Kind: KindQPState, Title: "States of a QP (enum ibv_qp_state)", Example: "qp-state 6"},
	{Kind: KindPort, Title: "States of a port (enum ibv_port_state)", Example: "port 1"},
	{Kind: KindCounter, Title: "Counters of rdma statistic, of sysfs and of adverb stat", Example: "out_of_sequence"},
	{Kind: KindOpcode, Title: "BTH opcodes", Example: "opcode 0x0a"},
	{Kind: KindHeader, Title: "Headers, with their bits", Example: "BTH"},
	{Kind: KindWord, Title: "Words of RDMA", Example: "rkey"},
}

// Entry is the meaning of one number or name.
type Entry struct {
	Kind   Kind   `json:"kind"`
	Number int    `json:"number"` // -1 if the entry has a name alone
	Name   string `json:"name"`   // C's name where there is one

	// Also are further names, and the phrases by which programs print it.
	Also []string `json:"also,omitempty"`

	// Call is the call that an errno is of, and State the state of a QP that ibv_modify_qp was asked for, such as "RTR".
	Call  string `json:"call,omitempty"`
	State string `json:"state,omitempty"`

	Brief   string   `json:"brief"`             // in one line, for errors and lists; without a full stop
	More    string   `json:"more,omitempty"`    // whole sentences
	Causes  []string `json:"causes,omitempty"`  // the usual ones, the likeliest first
	Checks  []string `json:"checks,omitempty"`  // steps
	Tools   []string `json:"tools,omitempty"`   // commands of adverb that show it
	Drawing string   `json:"drawing,omitempty"` // of bits

	// Follows says that something else has failed before, and that its error is the one to look for.
	Follows bool `json:"follows,omitempty"`

	// See are other entries, as words for adverb explain.
	See []string `json:"see,omitempty"`
}

// hex are the kinds whose numbers are written in base 16.
var hex = map[Kind]bool{KindVendor: true, KindSyndrome: true, KindHealth: true, KindIrdma: true, KindAETH: true, KindOpcode: true}

// Digits returns the number as programs print it, or "".
func (e *Entry) Digits() string {
	switch {
	case e.Number < 0:
		return ""
	case hex[e.Kind]:
		return fmt.Sprintf("0x%02x", e.Number)
	}
	return fmt.Sprint(e.Number)
}

// Title names the entry: "status 12: WC_RETRY_EXC_ERR".
func (e *Entry) Title() string {
	s := string(e.Kind)
	if d := e.Digits(); d != "" {
		s += " " + d
	}
	if e.Call != "" {
		s += " of " + e.Call
	}
	if e.State != "" {
		s += " to " + e.State
	}
	if e.Name != "" {
		s += ": " + e.Name
	}
	return s
}

// Words are words by which adverb explain finds the entry first.
func (e *Entry) Words() string {
	switch {
	case e.Kind == KindErrno:
		s := e.Name
		if e.State != "" {
			s = e.State + " " + s
		}
		if e.Call != "" {
			s = e.Call + " " + s
		}
		return s
	case e.Number >= 0:
		return string(e.Kind) + " " + e.Digits()
	}
	return e.Name
}

// FollowsText is the text for entries with Follows.
const FollowsText = "This only follows another failure: look for the first error, in the log of this end and of the other."

var theTable once[[]Entry]

// Table returns all entries: kind by kind in the order of [Kinds], each in the order of its numbers, or of the parts of
// the program that report them. It must not be changed.
func Table() []Entry { return theTable.get(makeTable) }

func makeTable() []Entry {
	made := map[Kind][]Entry{
		KindStatus: statusEntries(), KindWCOpcode: wcOpcodeEntries(), KindVendor: vendorEntries(), KindSyndrome: syndromeEntries(), KindHealth: healthEntries(), KindIrdma: irdmaEntries(), KindEFA: efaEntries(), KindNVMe: nvmeEntries(),
		KindErrno: errnoEntries(), KindReject: rejectEntries(), KindCMEvent: cmEvents, KindSIDR: sidrEntries(),
		KindEvent: eventEntries(), KindNAK: nakEntries(), KindAETH: aethEntries(), KindRNR: rnrEntries(), KindTimeout: timeoutEntries(),
		KindSetting: settings, KindMessage: messageEntries(), KindMTU: mtuEntries(), KindGID: gidEntries(), KindQPState: qpStateEntries(), KindPort: portEntries(),
		KindCounter: counterEntries(), KindOpcode: opcodeEntries(), KindHeader: headers(), KindWord: glossary,
	}
	var all []Entry
	for _, k := range Kinds {
		for _, e := range made[k.Kind] {
			e.Kind = k.Kind
			if numberless[k.Kind] {
				e.Number = -1
			}
			all = append(all, e)
		}
	}
	return all
}

// numberless are the kinds whose entries have names alone.
var numberless = map[Kind]bool{KindSetting: true, KindCounter: true, KindHeader: true, KindWord: true, KindMessage: true}

// Of returns the entries of a kind, a part of [Table].
func Of(kind Kind) []Entry {
	rest := Table()
	for len(rest) > 0 && rest[0].Kind != kind {
		rest = rest[1:]
	}
	n := 0
	for n < len(rest) && rest[n].Kind == kind {
		n++
	}
	return rest[:n:n]
}

// Lookup returns the entry of a kind that has the number.
func Lookup(kind Kind, number int) (*Entry, bool) {
	entries := Of(kind)
	for i := range entries {
		if entries[i].Number == number && number >= 0 {
			return &entries[i], true
		}
	}
	return nil, false
}
