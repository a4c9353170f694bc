package wire

import (
	"math/bits"
	"strings"
	"testing"
)

// TestOpcodeTable compares the table with a second list. Opcodes that the list lacks must be invalid.
func TestOpcodeTable(t *testing.T) {
	want := map[Opcode]struct {
		name      string
		headerLen int
	}{
		0x00: {"RC SEND_FIRST", 12},
		0x01: {"RC SEND_MIDDLE", 12},
		0x02: {"RC SEND_LAST", 12},
		0x03: {"RC SEND_LAST_WITH_IMM", 16},
		0x04: {"RC SEND_ONLY", 12},
		0x05: {"RC SEND_ONLY_WITH_IMM", 16},
		0x06: {"RC RDMA_WRITE_FIRST", 28},
		0x07: {"RC RDMA_WRITE_MIDDLE", 12},
		0x08: {"RC RDMA_WRITE_LAST", 12},
		0x09: {"RC RDMA_WRITE_LAST_WITH_IMM", 16},
		0x0a: {"RC RDMA_WRITE_ONLY", 28},
		0x0b: {"RC RDMA_WRITE_ONLY_WITH_IMM", 32},
		0x0c: {"RC RDMA_READ_REQUEST", 28},
		0x0d: {"RC RDMA_READ_RESPONSE_FIRST", 16},
		0x0e: {"RC RDMA_READ_RESPONSE_MIDDLE", 12},
		0x0f: {"RC RDMA_READ_RESPONSE_LAST", 16},
		0x10: {"RC RDMA_READ_RESPONSE_ONLY", 16},
		0x11: {"RC ACKNOWLEDGE", 16},
		0x12: {"RC ATOMIC_ACKNOWLEDGE", 24},
		0x13: {"RC COMPARE_SWAP", 40},
		0x14: {"RC FETCH_ADD", 40},
		0x16: {"RC SEND_LAST_WITH_INVALIDATE", 16},
		0x17: {"RC SEND_ONLY_WITH_INVALIDATE", 16},
		0x1c: {"RC FLUSH", 32},
		0x1d: {"RC ATOMIC_WRITE", 28},

		0x20: {"UC SEND_FIRST", 12},
		0x21: {"UC SEND_MIDDLE", 12},
		0x22: {"UC SEND_LAST", 12},
		0x23: {"UC SEND_LAST_WITH_IMM", 16},
		0x24: {"UC SEND_ONLY", 12},
		0x25: {"UC SEND_ONLY_WITH_IMM", 16},
		0x26: {"UC RDMA_WRITE_FIRST", 28},
		0x27: {"UC RDMA_WRITE_MIDDLE", 12},
		0x28: {"UC RDMA_WRITE_LAST", 12},
		0x29: {"UC RDMA_WRITE_LAST_WITH_IMM", 16},
		0x2a: {"UC RDMA_WRITE_ONLY", 28},
		0x2b: {"UC RDMA_WRITE_ONLY_WITH_IMM", 32},

		0x64: {"UD SEND_ONLY", 20},
		0x65: {"UD SEND_ONLY_WITH_IMM", 24},
		0x81: {"CNP", 28},

		0xa0: {"XRC SEND_FIRST", 16},
		0xa1: {"XRC SEND_MIDDLE", 16},
		0xa2: {"XRC SEND_LAST", 16},
		0xa3: {"XRC SEND_LAST_WITH_IMM", 20},
		0xa4: {"XRC SEND_ONLY", 16},
		0xa5: {"XRC SEND_ONLY_WITH_IMM", 20},
		0xa6: {"XRC RDMA_WRITE_FIRST", 32},
		0xa7: {"XRC RDMA_WRITE_MIDDLE", 16},
		0xa8: {"XRC RDMA_WRITE_LAST", 16},
		0xa9: {"XRC RDMA_WRITE_LAST_WITH_IMM", 20},
		0xaa: {"XRC RDMA_WRITE_ONLY", 32},
		0xab: {"XRC RDMA_WRITE_ONLY_WITH_IMM", 36},
		0xac: {"XRC RDMA_READ_REQUEST", 32},
		0xad: {"XRC RDMA_READ_RESPONSE_FIRST", 16},
		0xae: {"XRC RDMA_READ_RESPONSE_MIDDLE", 12},
		0xaf: {"XRC RDMA_READ_RESPONSE_LAST", 16},
		0xb0: {"XRC RDMA_READ_RESPONSE_ONLY", 16},
		0xb1: {"XRC ACKNOWLEDGE", 16},
		0xb2: {"XRC ATOMIC_ACKNOWLEDGE", 24},
		0xb3: {"XRC COMPARE_SWAP", 44},
		0xb4: {"XRC FETCH_ADD", 44},
		0xb6: {"XRC SEND_LAST_WITH_INVALIDATE", 20},
		0xb7: {"XRC SEND_ONLY_WITH_INVALIDATE", 20},
		0xbc: {"XRC FLUSH", 36},

		0xc0: {"SECURED", 20},
		0xe0: {"ADVERB HELLO", 12},
		0xe1: {"ADVERB ACKNOWLEDGE_RANGES", 16},
	}
	for i := range 256 {
		op := Opcode(i)
		info := &opcodes[op]
		w, ok := want[op]
		if op.Valid() != ok {
			t.Errorf("opcode %#02x: Valid() = %v, want %v", i, op.Valid(), ok)
			continue
		}
		if !ok {
			if op.Flags() != 0 || op.Headers() != 0 || op.HeaderLen() != 0 {
				t.Errorf("invalid opcode %#02x: got flags %b, headers %b, length %d, want 0 thrice", i, op.Flags(), op.Headers(), op.HeaderLen())
			}
			continue
		}
		if info.Name != w.name || info.HeaderLen != w.headerLen {
			t.Errorf("opcode %#02x: %q with %d bytes of headers, want %q with %d", i, info.Name, info.HeaderLen, w.name, w.headerLen)
		}
		if op.String() != w.name || op.HeaderLen() != w.headerLen || info.Service != op.Service() {
			t.Errorf("opcode %#02x: methods return %v, %d and %v, want %q, %d and %v", i, op, op.HeaderLen(), op.Service(), w.name, w.headerLen, info.Service)
		}
		if info.HeaderLen > MaxHeaderLen {
			t.Errorf("%v: got %d bytes of headers, want at most %d", op, info.HeaderLen, MaxHeaderLen)
		}
	}
}

func TestOpcodeFlagsConsistent(t *testing.T) {
	for i := range 256 {
		op := Opcode(i)
		if !op.Valid() {
			continue
		}
		f := op.Flags()
		count := func(mask OpcodeFlags) int { return bits.OnesCount32(uint32(f & mask)) }
		if n := count(FlagFirst | FlagMiddle | FlagLast | FlagOnly); n != 1 {
			t.Errorf("%v has %d positions, want 1", op, n)
		}
		kinds := count(FlagSend | FlagWrite | FlagRead | FlagAtomic | FlagAtomicWrite | FlagFlush | FlagAck | FlagOwn)
		sides := count(FlagRequest | FlagResponse)
		neither := op == CNP || op == Secured
		if want := 1; !neither && (kinds != want || sides != want) || neither && kinds+sides != 0 {
			t.Errorf("%v: got %d operations and %d directions, want one of each, and none for CNP and SECURED", op, kinds, sides)
		}
		if op.HasImm() != (op.Headers()&HeaderImmDt != 0) || op.HasInvalidate() != (op.Headers()&HeaderIETH != 0) {
			t.Errorf("%v: flags do not agree with headers, want them to", op)
		}
		// Immediate data, and a key to invalidate, end a message.
		if (op.HasImm() || op.HasInvalidate()) && !op.EndsMessage() {
			t.Errorf("%v carries immediate data or a key and does not end a message, want it to end one", op)
		}
		if op.IsResponse() && op.Headers()&HeaderAETH == 0 && !op.IsMiddle() {
			t.Errorf("%v is a response without AETH, want one", op)
		}
		if !op.HasPayload() && op.Flags()&FlagOnly == 0 {
			t.Errorf("%v is one packet of several and has no payload, want some", op)
		}
	}
}

// TestOpcodeFlagsFollowName checks the flags against the names, which TestOpcodeTable checks.
func TestOpcodeFlagsFollowName(t *testing.T) {
	for i := range 256 {
		op := Opcode(i)
		if !op.Valid() || op == CNP || op == Secured {
			continue
		}
		_, name, _ := strings.Cut(op.String(), " ")
		name, suffix, _ := strings.Cut(name, "_WITH_")
		has := func(s string) bool { return strings.Contains(name, s) }
		several := has("_FIRST") || has("_MIDDLE") || has("_LAST")
		response := has("RESPONSE") || has("ACKNOWLEDGE")
		for _, c := range []struct {
			method    string
			got, want bool
		}{
			{"IsFirst", op.IsFirst(), has("_FIRST")},
			{"IsMiddle", op.IsMiddle(), has("_MIDDLE")},
			{"IsLast", op.IsLast(), has("_LAST")},
			{"StartsMessage", op.StartsMessage(), has("_FIRST") || !several},
			{"EndsMessage", op.EndsMessage(), has("_LAST") || !several},
			{"IsRequest", op.IsRequest(), !response},
			{"IsResponse", op.IsResponse(), response},
			{"IsSend", op.IsSend(), has("SEND")},
			{"IsWrite", op.IsWrite(), has("RDMA_WRITE")},
			{"IsRead", op.IsRead(), has("RDMA_READ")},
			{"IsAtomic", op.IsAtomic(), has("COMPARE_SWAP") || has("FETCH_ADD") || has("ATOMIC_ACKNOWLEDGE")},
			{"HasImm", op.HasImm(), suffix == "IMM"},
			{"HasInvalidate", op.HasInvalidate(), suffix == "INVALIDATE"},
			{"HasPayload", op.HasPayload(), has("SEND") || has("WRITE") || has("READ_RESPONSE") || has("HELLO") || has("_RANGES")},
		} {
			if c.got != c.want {
				t.Errorf("%v.%s() = %v, want %v", op, c.method, c.got, c.want)
			}
		}
	}
}

func TestOpcodePredicates(t *testing.T) {
	type predicates struct{ request, response, starts, middle, ends, payload bool }
	for op, want := range map[Opcode]predicates{
		RCSendFirst:              {request: true, starts: true, payload: true},
		RCRDMAWriteMiddle:        {request: true, middle: true, payload: true},
		RCSendLastWithInvalidate: {request: true, ends: true, payload: true},
		RCRDMAReadRequest:        {request: true, starts: true, ends: true},
		RCRDMAReadResponseLast:   {response: true, ends: true, payload: true},
		RCAcknowledge:            {response: true, starts: true, ends: true},
		RCFetchAdd:               {request: true, starts: true, ends: true},
		UCRDMAWriteOnlyWithImm:   {request: true, starts: true, ends: true, payload: true},
		UDSendOnly:               {request: true, starts: true, ends: true, payload: true},
		0x15:                     {},
	} {
		got := predicates{op.IsRequest(), op.IsResponse(), op.StartsMessage(), op.IsMiddle(), op.EndsMessage(), op.HasPayload()}
		if got != want {
			t.Errorf("%v: %+v, want %+v", op, got, want)
		}
	}
}

func TestOpcodeString(t *testing.T) {
	if got, want := Opcode(0x15).String(), "opcode 0x15"; got != want {
		t.Errorf("String of an unknown opcode = %q, want %q", got, want)
	}
	if got, want := Service(2).String(), "service 0x2"; got != want {
		t.Errorf("String of an unknown service = %q, want %q", got, want)
	}
}
