package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// cmMessage is the part that the types of CM messages have in common.
type cmMessage interface{ AppendTo(b []byte) []byte }

// cmField says where a message has a field: in width bits from bit top (7 to 0) of a byte on.
type cmField struct {
	name             string
	byte, top, width int
}

// cmCodec is a kind of message for tests that treat all kinds alike.
type cmCodec struct {
	attr   CMAttr
	new    func() cmMessage
	decode func(data []byte) (cmMessage, error)
	fields []cmField
}

func newCMCodec[M any, P interface {
	*M
	cmMessage
}](attr CMAttr, decode func([]byte) (M, error), fields ...cmField) cmCodec {
	return cmCodec{
		attr: attr,
		new:  func() cmMessage { return P(new(M)) },
		decode: func(data []byte) (cmMessage, error) {
			m, err := decode(data)
			return P(&m), err
		},
		fields: fields,
	}
}

// cmCommIDs and cmPath return fields that several messages share, cmPath those from byte base on of
// a REQ.
func cmCommIDs(more ...cmField) []cmField {
	return append([]cmField{{"LocalCommID", 0, 7, 32}, {"RemoteCommID", 4, 7, 32}}, more...)
}

func cmPath(name string, base int) []cmField {
	return []cmField{
		{name + ".LocalLID", base, 7, 16},
		{name + ".RemoteLID", base + 2, 7, 16},
		{name + ".LocalGID", base + 4, 7, 128},
		{name + ".RemoteGID", base + 20, 7, 128},
		{name + ".FlowLabel", base + 36, 7, 20},
		{name + ".Rate", base + 39, 5, 6},
		{name + ".TrafficClass", base + 40, 7, 8},
		{name + ".HopLimit", base + 41, 7, 8},
		{name + ".SL", base + 42, 7, 4},
		{name + ".SubnetLocal", base + 42, 3, 1},
		{name + ".ACKTimeout", base + 43, 7, 5},
	}
}

// cmCodecs holds all kinds of messages. The places of the fields are written down from the
// specification, not from the constants that the codecs use.
var cmCodecs = []cmCodec{
	newCMCodec(CMREQ, DecodeREQ, append(append([]cmField{
		{"LocalCommID", 0, 7, 32},
		{"ServiceID", 8, 7, 64},
		{"LocalGUID", 16, 7, 64},
		{"LocalQKey", 28, 7, 32},
		{"LocalQPN", 32, 7, 24},
		{"ResponderResources", 35, 7, 8},
		{"LocalEECN", 36, 7, 24},
		{"InitiatorDepth", 39, 7, 8},
		{"RemoteEECN", 40, 7, 24},
		{"RemoteCMTimeout", 43, 7, 5},
		{"Transport", 43, 2, 2},
		{"FlowControl", 43, 0, 1},
		{"StartingPSN", 44, 7, 24},
		{"LocalCMTimeout", 47, 7, 5},
		{"RetryCount", 47, 2, 3},
		{"PKey", 48, 7, 16},
		{"MTU", 50, 7, 4},
		{"RDC", 50, 3, 1},
		{"RNRRetryCount", 50, 2, 3},
		{"MaxCMRetries", 51, 7, 4},
		{"SRQ", 51, 3, 1},
		{"ExtTransport", 51, 2, 3},
		{"PrivateData", 140, 7, 92 * 8},
	}, cmPath("Primary", 52)...), cmPath("Alternate", 96)...)...),
	newCMCodec(CMMRA, DecodeMRA, cmCommIDs([]cmField{
		{"Message", 8, 7, 2},
		{"ServiceTimeout", 9, 7, 5},
		{"PrivateData", 10, 7, 222 * 8},
	}...)...),
	newCMCodec(CMREJ, DecodeREJ, cmCommIDs([]cmField{
		{"Message", 8, 7, 2},
		{"ARILen", 9, 7, 7},
		{"Reason", 10, 7, 16},
		{"ARI", 12, 7, 72 * 8},
		{"PrivateData", 84, 7, 148 * 8},
	}...)...),
	newCMCodec(CMREP, DecodeREP, cmCommIDs([]cmField{
		{"LocalQKey", 8, 7, 32},
		{"LocalQPN", 12, 7, 24},
		{"LocalEECN", 16, 7, 24},
		{"StartingPSN", 20, 7, 24},
		{"ResponderResources", 24, 7, 8},
		{"InitiatorDepth", 25, 7, 8},
		{"TargetACKDelay", 26, 7, 5},
		{"Failover", 26, 2, 2},
		{"FlowControl", 26, 0, 1},
		{"RNRRetryCount", 27, 7, 3},
		{"SRQ", 27, 4, 1},
		{"LocalGUID", 28, 7, 64},
		{"PrivateData", 36, 7, 196 * 8},
	}...)...),
	newCMCodec(CMRTU, DecodeRTU, cmCommIDs(cmField{"PrivateData", 8, 7, 224 * 8})...),
	newCMCodec(CMDREQ, DecodeDREQ, cmCommIDs([]cmField{
		{"RemoteQPN", 8, 7, 24},
		{"PrivateData", 12, 7, 220 * 8},
	}...)...),
	newCMCodec(CMDREP, DecodeDREP, cmCommIDs(cmField{"PrivateData", 8, 7, 224 * 8})...),
	newCMCodec(CMSIDRREQ, DecodeSIDRREQ, []cmField{
		{"RequestID", 0, 7, 32},
		{"PKey", 4, 7, 16},
		{"ServiceID", 8, 7, 64},
		{"PrivateData", 16, 7, 216 * 8},
	}...),
	newCMCodec(CMSIDRREP, DecodeSIDRREP, []cmField{
		{"RequestID", 0, 7, 32},
		{"Status", 4, 7, 8},
		{"AddInfoLen", 5, 7, 8},
		{"QPN", 8, 7, 24},
		{"ServiceID", 12, 7, 64},
		{"QKey", 20, 7, 32},
		{"AddInfo", 24, 7, 72 * 8},
		{"PrivateData", 96, 7, 136 * 8},
	}...),
	newCMCodec(CMLAP, DecodeLAP, cmCommIDs([]cmField{
		{"RemoteQPN", 12, 7, 24},
		{"RemoteCMTimeout", 15, 7, 5},
		{"Alternate.LocalLID", 20, 7, 16},
		{"Alternate.RemoteLID", 22, 7, 16},
		{"Alternate.LocalGID", 24, 7, 128},
		{"Alternate.RemoteGID", 40, 7, 128},
		{"Alternate.FlowLabel", 56, 7, 20},
		{"Alternate.TrafficClass", 59, 7, 8},
		{"Alternate.HopLimit", 60, 7, 8},
		{"Alternate.Rate", 61, 5, 6},
		{"Alternate.SL", 62, 7, 4},
		{"Alternate.SubnetLocal", 62, 3, 1},
		{"Alternate.ACKTimeout", 63, 7, 5},
		{"PrivateData", 64, 7, 168 * 8},
	}...)...),
	newCMCodec(CMAPR, DecodeAPR, cmCommIDs([]cmField{
		{"AddInfoLen", 8, 7, 8},
		{"Status", 9, 7, 8},
		{"AddInfo", 12, 7, 72 * 8},
		{"PrivateData", 84, 7, 148 * 8},
	}...)...),
}

// cmCodecFor returns the codec of a kind of message.
func cmCodecFor(t testing.TB, attr CMAttr) *cmCodec {
	t.Helper()
	for i := range cmCodecs {
		if cmCodecs[i].attr == attr {
			return &cmCodecs[i]
		}
	}
	t.Fatalf("no codec for %v", attr)
	return nil
}

// in returns the field of a message.
func (f *cmField) in(m cmMessage) reflect.Value {
	v := reflect.ValueOf(m).Elem()
	for name := range strings.SplitSeq(f.name, ".") {
		if v = v.FieldByName(name); !v.IsValid() {
			panic(fmt.Sprintf("%T has no field %s", m, f.name))
		}
	}
	return v
}

// set gives a message's field a value, which is cut to fit the field's type as Go does, and puts into wire the bits
// that the message must have there.
func (f *cmField) set(m cmMessage, wire []byte, value func() uint64) {
	v := f.in(m)
	if v.Kind() == reflect.Array {
		for i := range v.Len() {
			b := uint8(value())
			v.Index(i).SetUint(uint64(b))
			wire[f.byte+i] = b
		}
		return
	}
	n := value()
	if v.Kind() == reflect.Bool {
		v.SetBool(n&1 != 0)
	} else {
		v.SetUint(n & (1<<v.Type().Bits() - 1))
	}
	for i := range f.width {
		at := f.byte*8 + 7 - f.top + i
		wire[at/8] |= uint8(n>>(f.width-1-i)&1) << (7 - at%8)
	}
}

// trim cuts a field to the bits that it has on the wire.
func (f *cmField) trim(m cmMessage) {
	if v := f.in(m); v.CanUint() && f.width < 64 {
		v.SetUint(v.Uint() & (1<<f.width - 1))
	}
}

func allOnes() uint64 { return 1<<64 - 1 }

func countFields(t reflect.Type) (n int) {
	for i := range t.NumField() {
		if f := t.Field(i).Type; f.Kind() == reflect.Struct {
			n += countFields(f)
		} else {
			n++
		}
	}
	return n
}

// TestCMFields sets one field at a time to more ones than the field has room for. Only the field's own bits may
// change.
func TestCMFields(t *testing.T) {
	for _, c := range cmCodecs {
		if n := countFields(reflect.TypeOf(c.new()).Elem()); n != len(c.fields) {
			t.Errorf("%v: got %d fields, want %d", c.attr, n, len(c.fields))
		}
		var kept [CMDataSize]byte
		for _, f := range c.fields {
			m := c.new()
			var want [CMDataSize]byte
			f.set(m, want[:], allOnes)
			checkEncodes(t, c.attr.String()+"."+f.name, m.AppendTo, want[:])

			f.trim(m)
			got, err := c.decode(want[:])
			if err != nil || !reflect.DeepEqual(got, m) {
				t.Errorf("%v.%s: decodes to\n%+v, %v, want\n%+v", c.attr, f.name, got, err, m)
			}
			for i, b := range want {
				if kept[i]&b != 0 {
					t.Errorf("%v.%s: byte %d belongs to another field too, want it in one field", c.attr, f.name, i)
				}
				kept[i] |= b
			}
		}

		// Bits of no field are reserved: ignored, and sent as zero.
		got, err := c.decode(bytes.Repeat([]byte{0xff}, CMDataSize))
		if err != nil {
			t.Fatal(err)
		}
		checkEncodes(t, c.attr.String()+" of ones", got.AppendTo, kept[:])
	}
}

// randomCM returns a message with something in each field, and its bytes on the wire.
func (c *cmCodec) random(rng *rand.Rand) (m cmMessage, data []byte) {
	m, data = c.new(), make([]byte, CMDataSize)
	for _, f := range c.fields {
		f.set(m, data, rng.Uint64)
		f.trim(m)
	}
	return m, data
}

func TestCMRoundTrip(t *testing.T) {
	const seed, rounds = 1, 50
	rng := rand.New(rand.NewPCG(seed, seed))
	for _, c := range cmCodecs {
		for round := range rounds {
			m, data := c.random(rng)
			checkEncodes(t, c.attr.String(), m.AppendTo, data)
			got, err := c.decode(data)
			if err != nil || !reflect.DeepEqual(got, m) {
				t.Fatalf("seed %d, round %d: %v decodes to\n%+v, %v, want\n%+v", seed, round, c.attr, got, err, m)
			}
		}
	}
}

// TestCMOverwrites appends messages where bytes are not zero.
func TestCMOverwrites(t *testing.T) {
	for _, c := range cmCodecs {
		used := bytes.Repeat([]byte{0xff}, CMDataSize)
		if got := c.new().AppendTo(used[:0]); !bytes.Equal(got, make([]byte, CMDataSize)) {
			t.Errorf("an empty %v: got %x, want zeros only", c.attr, got)
		}
	}
}

func TestCMRefusesShort(t *testing.T) {
	for _, c := range cmCodecs {
		for _, n := range []int{0, 1, CMDataSize - 1} {
			if _, err := c.decode(make([]byte, n)); err != ErrShortMAD {
				t.Errorf("%v of %d bytes: %v, want ErrShortMAD", c.attr, n, err)
			}
		}
	}
}

func TestCMNames(t *testing.T) {
	for _, c := range cmCodecs {
		name := strings.TrimPrefix(fmt.Sprintf("%T", c.new()), "*wire.")
		if got := strings.ReplaceAll(c.attr.String(), "_", ""); got != name {
			t.Errorf("attribute %#x: got the name %v, want %s", uint16(c.attr), c.attr, name)
		}
	}
	if got := CMAttr(0x1b).String(); got != "CM attribute 0x001b" {
		t.Errorf("attribute 0x1b: got the name %q, want CM attribute 0x001b", got)
	}
}

func TestRejReasons(t *testing.T) {
	seen := make(map[string]RejReason)
	for r := RejNoQP; r <= RejVendorOptionNotSupported; r++ {
		s := r.String()
		if _, twice := seen[s]; twice || strings.HasPrefix(s, "unknown reason") != (r == 34) {
			t.Errorf("reason %d: got %q, want a text of its own, and for 34 an unknown reason", uint16(r), s)
		}
		seen[s] = r
	}
	for _, r := range []RejReason{0, 34, 36, 1<<16 - 1} {
		if got, want := r.String(), fmt.Sprintf("unknown reason %d", uint16(r)); got != want {
			t.Errorf("reason %d is %q, want %q", uint16(r), got, want)
		}
	}
}

func TestSIDRStatuses(t *testing.T) {
	for s := SIDRSuccess; s <= SIDRUnsupportedVersion; s++ {
		if got := s.String(); got == "" || strings.HasPrefix(got, "unknown status") {
			t.Errorf("status %d: got %q, want a text", uint8(s), got)
		}
	}
	if got := SIDRStatus(6).String(); got != "unknown status 6" {
		t.Errorf("status 6: got %q, want unknown status 6", got)
	}
}

// TestREJInfo has lengths that come from a peer, and may be too large.
func TestREJInfo(t *testing.T) {
	for _, tt := range []struct {
		len  uint8
		want int
	}{{0, 0}, {8, 8}, {72, 72}, {73, 72}, {127, 72}, {255, 72}} {
		m := REJ{ARILen: tt.len}
		if got := len(m.Info()); got != tt.want {
			t.Errorf("length %d: %d bytes of information, want %d", tt.len, got, tt.want)
		}
	}
}

func TestCMAllocs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	req := NewCMHeader(CMREQ, 1)
	mad := append(req.AppendTo(nil), make([]byte, CMDataSize)...)
	_, data := cmCodecFor(t, CMREQ).random(rng)
	ipcm := IPCMHeader{}
	private := ipcm.AppendTo(nil)
	buf := make([]byte, 0, MADSize)
	var failed int
	check := func(err error) {
		if err != nil {
			failed++
		}
	}
	allocs := testing.AllocsPerRun(10, func() {
		h, err := DecodeMADHeader(mad)
		check(err)
		_ = h.AppendTo(buf)
		m0, err := DecodeREQ(data)
		check(err)
		_ = m0.AppendTo(buf)
		m1, err := DecodeMRA(data)
		check(err)
		_ = m1.AppendTo(buf)
		m2, err := DecodeREJ(data)
		check(err)
		_ = m2.AppendTo(buf)
		_ = m2.Info()
		m3, err := DecodeREP(data)
		check(err)
		_ = m3.AppendTo(buf)
		m4, err := DecodeRTU(data)
		check(err)
		_ = m4.AppendTo(buf)
		m5, err := DecodeDREQ(data)
		check(err)
		_ = m5.AppendTo(buf)
		m6, err := DecodeDREP(data)
		check(err)
		_ = m6.AppendTo(buf)
		m7, err := DecodeSIDRREQ(data)
		check(err)
		_ = m7.AppendTo(buf)
		m8, err := DecodeSIDRREP(data)
		check(err)
		_ = m8.AppendTo(buf)
		m9, err := DecodeLAP(data)
		check(err)
		_ = m9.AppendTo(buf)
		m10, err := DecodeAPR(data)
		check(err)
		_ = m10.AppendTo(buf)
		ip, err := DecodeIPCMHeader(private)
		check(err)
		_ = ip.AppendTo(buf)
		if _, ok := CMRoute(mad); !ok {
			failed++
		}
	})
	if allocs != 0 || failed != 0 {
		t.Errorf("%v allocations, %d failures, want none", allocs, failed)
	}
}
