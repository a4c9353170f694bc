package wire

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// tsharkFields says under which names tshark 4.0 knows fields of CM messages. It knows nothing but
// the header of MRA, LAP, APR, SIDR_REQ and SIDR_REP. Left out are a REQ's flow labels and packet
// rates: it takes too few bytes of their word.
var tsharkFields = map[CMAttr]map[string]string{
	CMREQ: {
		"LocalCommID":            "infiniband.cm.req",
		"LocalGUID":              "infiniband.cm.req.localcaguid",
		"ServiceID":              "infiniband.cm.req.serviceid",
		"LocalQKey":              "infiniband.cm.req.localqkey",
		"LocalQPN":               "infiniband.cm.req.localqpn",
		"ResponderResources":     "infiniband.cm.req.responderres",
		"LocalEECN":              "infiniband.cm.req.localeecn",
		"InitiatorDepth":         "infiniband.cm.req.initdepth",
		"RemoteEECN":             "infiniband.cm.req.remoteeecn",
		"RemoteCMTimeout":        "infiniband.cm.req.remoteresptout",
		"Transport":              "infiniband.cm.req.transpsvctype",
		"FlowControl":            "infiniband.cm.req.e2eflowctrl",
		"StartingPSN":            "infiniband.cm.req.startpsn",
		"LocalCMTimeout":         "infiniband.cm.req.localresptout",
		"RetryCount":             "infiniband.cm.req.retrcount",
		"PKey":                   "infiniband.cm.req.pkey",
		"MTU":                    "infiniband.cm.req.pppmtu",
		"RDC":                    "infiniband.cm.req.rdcexist",
		"RNRRetryCount":          "infiniband.cm.req.rnrretrcount",
		"MaxCMRetries":           "infiniband.cm.req.maxcmretr",
		"SRQ":                    "infiniband.cm.req.srq",
		"ExtTransport":           "infiniband.cm.req.ext_transport",
		"Primary.LocalLID":       "infiniband.cm.req.prim_locallid",
		"Primary.RemoteLID":      "infiniband.cm.req.prim_remotelid",
		"Primary.LocalGID":       "infiniband.cm.req.prim_localgid",
		"Primary.RemoteGID":      "infiniband.cm.req.prim_remotegid",
		"Primary.TrafficClass":   "infiniband.cm.req.prim_tfcclass",
		"Primary.HopLimit":       "infiniband.cm.req.prim_hoplim",
		"Primary.SL":             "infiniband.cm.req.prim_sl",
		"Primary.SubnetLocal":    "infiniband.cm.req.prim_subnetlocal",
		"Primary.ACKTimeout":     "infiniband.cm.req.prim_localacktout",
		"Alternate.LocalLID":     "infiniband.cm.req.alt_locallid",
		"Alternate.RemoteLID":    "infiniband.cm.req.alt_remotelid",
		"Alternate.LocalGID":     "infiniband.cm.req.alt_localgid",
		"Alternate.RemoteGID":    "infiniband.cm.req.alt_remotegid",
		"Alternate.TrafficClass": "infiniband.cm.req.alt_tfcclass",
		"Alternate.HopLimit":     "infiniband.cm.req.alt_hoplim",
		"Alternate.SL":           "infiniband.cm.req.alt_sl",
		"Alternate.SubnetLocal":  "infiniband.cm.req.alt_subnetlocal",
		"Alternate.ACKTimeout":   "infiniband.cm.req.alt_localacktout",
		"PrivateData":            "infiniband.cm.req.private",
	},
	CMREP: {
		"LocalCommID":        "infiniband.cm.rep",
		"RemoteCommID":       "infiniband.cm.rep.remotecommid",
		"LocalQKey":          "infiniband.cm.rep.localqkey",
		"LocalQPN":           "infiniband.cm.rep.localqpn",
		"LocalEECN":          "infiniband.cm.rep.localeecn",
		"StartingPSN":        "infiniband.cm.rep.startpsn",
		"ResponderResources": "infiniband.cm.rep.respres",
		"InitiatorDepth":     "infiniband.cm.rep.initdepth",
		"TargetACKDelay":     "infiniband.cm.rep.tgtackdelay",
		"Failover":           "infiniband.cm.rep.failoveracc",
		"FlowControl":        "infiniband.cm.rep.e2eflowctrl",
		"RNRRetryCount":      "infiniband.cm.rep.rnrretrcount",
		"SRQ":                "infiniband.cm.rep.srq",
		"LocalGUID":          "infiniband.cm.rep.localcaguid",
		"PrivateData":        "infiniband.cm.rep.private",
	},
	CMRTU: {
		"LocalCommID":  "infiniband.cm.rtu.localcommid",
		"RemoteCommID": "infiniband.cm.rtu.remotecommid",
		"PrivateData":  "infiniband.cm.rtu.private",
	},
	CMREJ: {
		"LocalCommID":  "infiniband.cm.rej.localcommid",
		"RemoteCommID": "infiniband.cm.rej.remotecommid",
		"Message":      "infiniband.cm.rej.msgrej",
		"ARILen":       "infiniband.cm.rej.rejinfolen",
		"Reason":       "infiniband.cm.rej.reason",
		"ARI":          "infiniband.cm.rej.ari",
		"PrivateData":  "infiniband.cm.rej.private",
	},
	CMDREQ: {
		"LocalCommID":  "infiniband.cm.dreq.localcommid",
		"RemoteCommID": "infiniband.cm.dreq.remotecommid",
		"RemoteQPN":    "infiniband.cm.req.remoteqpneecn",
		"PrivateData":  "infiniband.cm.dreq.private",
	},
	CMDREP: {
		"LocalCommID":  "infiniband.cm.drsp.localcommid",
		"RemoteCommID": "infiniband.cm.drsp.remotecommid",
		"PrivateData":  "infiniband.cm.drsp.private",
	},
}

// TestCMInTshark asks for a second opinion on messages with something in each field: tshark shares
// no code with this.
func TestCMInTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI must have tshark (Debian package tshark)")
		}
		t.Skip("tshark is not installed (Debian package tshark)")
	}
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, seed))
	var messages []cmMessage
	var mads [][]byte
	for _, c := range cmCodecs {
		m, data := c.random(rng)
		h := NewCMHeader(c.attr, 0x1122334455667788)
		messages = append(messages, m)
		mads = append(mads, append(h.AppendTo(nil), data...))
	}
	name := filepath.Join(t.TempDir(), "cm.pcap")
	writeMADs(t, name, mads)

	columns := []string{"_ws.malformed", "infiniband.mad.attributeid", "infiniband.mad.transactionid"}
	index := make(map[string]int)
	for _, fields := range tsharkFields {
		for _, name := range fields {
			index[name] = len(columns)
			columns = append(columns, name)
		}
	}
	args := []string{"-r", name, "-T", "fields", "-E", "occurrence=f"}
	for _, c := range columns {
		args = append(args, "-e", c)
	}
	out, err := exec.Command(tshark, args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	lines := strings.Split(strings.TrimRight(string(out), "\n"), "\n")
	if len(lines) != len(mads) {
		t.Fatalf("tshark read %d packets, want %d", len(lines), len(mads))
	}
	for i, c := range cmCodecs {
		row := strings.Split(lines[i], "\t")
		if want := fmt.Sprintf("0x%04x", uint16(c.attr)); row[0] != "" || row[1] != want || row[2] != "0x1122334455667788" {
			t.Errorf("%v: tshark has malformed %q, attribute %q, transaction ID %q, want nothing malformed, %q and 0x1122334455667788", c.attr, row[0], row[1], row[2], want)
		}
		for _, f := range c.fields {
			name, known := tsharkFields[c.attr][f.name]
			if !known {
				continue
			}
			v := f.in(messages[i])
			if got := row[index[name]]; !sameInTshark(got, v) {
				t.Errorf("%v.%s is %v, tshark has %q for %s, want the same", c.attr, f.name, v, got, name)
			}
		}
	}
}

// sameInTshark compares tshark's output with a field: an address, bytes in hex or a number.
func sameInTshark(got string, v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array:
		want := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(want), v)
		if addr, err := netip.ParseAddr(got); err == nil {
			return addr == netip.AddrFrom16([16]byte(want))
		}
		b, err := hex.DecodeString(got)
		return err == nil && string(b) == string(want)
	case reflect.Bool:
		return got == strconv.FormatBool(v.Bool()) || got == map[bool]string{false: "0", true: "1"}[v.Bool()] ||
			got == map[bool]string{false: "0x00", true: "0x01"}[v.Bool()]
	}
	n, err := strconv.ParseUint(got, 0, 64)
	return err == nil && n == v.Uint()
}

// writeMADs writes packets with these MADs to a file.
func writeMADs(t *testing.T, name string, mads [][]byte) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := pcapgo.NewWriter(file)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	// Over IPv4 tshark shows the last 4 bytes of a GID only.
	src, dst := netip.MustParseAddrPort("[fd98::3]:50000"), netip.MustParseAddrPort("[fd98::2]:4791")
	for i, mad := range mads {
		p := Packet{BTH: BTH{Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: GSIQPN, AckReq: true, PSN: PSN(i)},
			DETH: DETH{QKey: GSIQKey, SrcQP: GSIQPN}, Payload: mad}
		datagram := p.AppendTo(nil)
		flow := NewFlow(src, dst)
		flow.Seal(uint16(i), datagram)
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP,
			SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		udp := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: UDPPort}
		ethernet := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
			EthernetType: layers.EthernetTypeIPv6}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		buf := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buf, options, ethernet, ip, udp, gopacket.Payload(datagram)); err != nil {
			t.Fatal(err)
		}
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: len(buf.Bytes()), Length: len(buf.Bytes())}
		if err := w.WritePacket(ci, buf.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
}
