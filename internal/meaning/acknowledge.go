package meaning

import (
	"fmt"
	"strconv"
	"time"

	"github.com/adverb-rdma/adverb/internal/wire"
)

func nakEntries() []Entry {
	list := []Entry{
		{Number: int(wire.NAKSequenceError), Brief: "a packet is missing: the requester sends again from the PSN in the NAK's BTH",
			Also:   []string{"out of sequence NAK", "PSN sequence error"},
			Causes: []string{"the network has lost or reordered packets", "after a path change: packets took two ways"},
			Checks: []string{"counters: packet_seq_err at the sender, out_of_sequence at the receiver", "switch ports: discards, ECN marks, PFC pauses; whether PFC is on for the priority that the traffic has at every hop"},
			Tools:  []string{"adverb stat -v: rcvd_seq_err, send_seq_err, out_of_seq_request", "ADVERB_TRACE=1 prints each NAK with its PSN"}},
		{Number: int(wire.NAKInvalidRequest), Brief: "the responder found the request invalid; the requester completes it with status 9",
			Causes: []string{"those of status 9"}, See: []string{"status 9"}},
		{Number: int(wire.NAKRemoteAccessError), Brief: "the responder refused access to its memory; the requester completes the work request with status 10",
			Causes: []string{"those of status 10"}, See: []string{"status 10"}},
		{Number: int(wire.NAKRemoteOperationalError), Brief: "the responder could not carry the request out; the requester completes it with status 11",
			Causes: []string{"those of status 11"}, See: []string{"status 11"}},
		{Number: int(wire.NAKInvalidRDRequest), Brief: "of the RD service, which no device has"},
	}
	for i := range list {
		list[i].Name = wire.NAKCode(list[i].Number).String()
		list[i].More = fmt.Sprintf("On the wire it is the AETH byte 0x%02x.", byte(wire.SyndromeNAK(wire.NAKCode(list[i].Number))))
	}
	return list
}

const aethBits = `  bit  7   6   5   4   3   2   1   0
     +---+-------+-------------------+
     | 0 | kind  | value             |
     +---+-------+-------------------+
  kind 0  ACK; value: credit code, 31 for no limit
  kind 1  RNR NAK; value: RNR timer code
  kind 2  reserved
  kind 3  NAK; value: NAK code`

func aethEntries() (list []Entry) {
	for n := range 256 {
		s := wire.Syndrome(n)
		e := Entry{Number: n, Name: s.String(), Drawing: aethBits}
		switch v := s.Value(); s.Kind() {
		case wire.KindACK:
			if credits, ok := wire.DecodeCredits(v); ok {
				e.Brief = fmt.Sprintf("an acknowledgement; the responder has receives for %d messages", credits)
			} else {
				e.Brief = "an acknowledgement; the responder sets no limit by credits"
			}
		case wire.KindRNR:
			e.Brief = fmt.Sprintf("an RNR NAK: no receive was posted; come again after %v", wire.RNRTimer(v))
			e.See = []string{"status 13", "rnr-timer " + strconv.Itoa(int(v)), "rnr_retry"}
		case wire.KindNAK:
			e.Brief = "a NAK: " + s.NAKCode().String()
			if v <= uint8(wire.NAKInvalidRDRequest) {
				e.See = []string{"nak " + strconv.Itoa(int(v))}
			}
		default:
			e.Brief = "reserved: a sender has a defect, or the packet is damaged"
		}
		if n >= 0x80 {
			e.Brief += "; bit 7 is reserved, and set here"
		}
		list = append(list, e)
	}
	return list
}

func rnrEntries() (list []Entry) {
	for n := range 32 {
		d := wire.RNRTimer(uint8(n))
		list = append(list, Entry{
			Number: n, Name: d.String(), Also: []string{"RNR NAK timer " + strconv.Itoa(n)},
			Brief: fmt.Sprintf("after an RNR NAK the requester waits %v at least", d),
			More:  "The responder's min_rnr_timer chooses it, and the RNR NAK carries it. Code 0 is the longest time, not the shortest.",
			See:   []string{"min_rnr_timer", "rnr_retry", "status 13"},
		})
	}
	return list
}

func timeoutEntries() (list []Entry) {
	const retries = 7
	for n := range 32 {
		e := Entry{Number: n, See: []string{"retry_cnt", "status 12"}}
		if d := wire.ACKTimeout(uint8(n)); d == 0 {
			e.Name, e.Brief = "none", "the requester waits for an acknowledgement without end: a lost packet at the end of a message hangs the QP"
		} else {
			e.Name = round(d).String()
			e.Brief = fmt.Sprintf("4.096 µs × 2^%d = %v; a requester waits between one and four times that before it sends again", n, round(d))
			e.More = fmt.Sprintf("With retry_cnt %d a silent peer fails the QP after %v to %v. Cards may wait longer than the code says, and have a least time: on a card of mlx5 code 14 took 3.5 s until the QP failed.", retries, round(d*(retries+1)), round(4*d*(retries+1)))
		}
		list = append(list, e)
	}
	return list
}

// round leaves three digits or so of a time.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 10000*unit {
			return (d + unit/2) / unit * unit
		}
	}
}
