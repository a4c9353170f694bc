package lab

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// The CRC of these digits is the check value that catalogues of CRCs list for the CRC-32 of Ethernet.
func TestEthernetCRC32(t *testing.T) {
	if got := ethernetCRC32([]byte("123456789")); got != 0xcbf43926 {
		t.Errorf("got %08x, want cbf43926", got)
	}
}

// roceFrames are acknowledgements that Linux's rxe sent, over IPv4 and IPv6.
var roceFrames = map[string]string{
	"IPv4": `
		5254004700015254004700020800450000303b9740004011eac50a2f00020a2f
		0001ed7e12b7001c00001100ffff0014557d00434c321f0000006f6c26f0`,
	"IPv6": `
		52540047000152540047000286dd60000000001c1140fd470000000000000000
		000000000002fd470000000000000000000000000001f14912b7001c00001100
		ffff00959d4a003055a81f0000012d8da3f8`,
}

func roceFrame(t *testing.T, name string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(roceFrames[name]), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCheckICRC(t *testing.T) {
	for name := range roceFrames {
		frame := roceFrame(t, name)
		if err := checkICRC(frame); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
		if err := checkICRC(append(slices.Clone(frame), 0, 0)); err != nil {
			t.Errorf("%s with Ethernet padding: got %v, want no error", name, err)
		}
	}
}

// The ICRC covers each byte, except those that may change on the way.
func TestICRCCovers(t *testing.T) {
	for name, headerLength := range map[string]int{"IPv4": ip4Header, "IPv6": ip6Header} {
		good := roceFrame(t, name)
		udp := etherHeader + headerLength
		free := []int{etherHeader + 1, etherHeader + 8, etherHeader + 10, etherHeader + 11, udp + 6, udp + 7, udp + udpHeader + 4}
		if name == "IPv6" {
			free = []int{etherHeader + 1, etherHeader + 2, etherHeader + 3, etherHeader + 7, udp + 6, udp + 7, udp + udpHeader + 4}
		}
		for i := etherHeader; i < len(good); i++ {
			frame := slices.Clone(good)
			frame[i] ^= 1
			err := checkICRC(frame)
			if wantGood := slices.Contains(free, i) || i == etherHeader && name == "IPv6"; wantGood != (err == nil) {
				t.Errorf("%s: with another byte %d of the IP packet: got %v, want a right ICRC: %v", name, i-etherHeader, err, wantGood)
			}
		}
	}
}
