package diagnose_test

import (
	"encoding/binary"
	"testing"

	"github.com/adverb-rdma/adverb/internal/diagnose"
	"github.com/adverb-rdma/adverb/internal/wire"
)

// Messages with which protocols begin.
func nvmeConnect() []byte {
	b := make([]byte, 64+1024)
	b[0], b[1], b[4] = 0x7f, 0x40, 1
	return b
}

func smbNegotiate() []byte {
	b := make([]byte, 20)
	for i, v := range []uint16{0x0100, 0x0100, 0, 255} {
		binary.LittleEndian.PutUint16(b[2*i:], v)
	}
	return b
}

func rpcCall() (b []byte) {
	for _, v := range []uint32{0x1234, 1, 32, 0, 0, 0, 0, 0x1234, 0, 2, 100003, 4, 1} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func (s *script) carry(payload []byte) {
	w := send(0)
	w.Payload = payload
	s.ab(w)
	s.ba(ack(0))
}

// ulpScripts are conversations that begin as a protocol's do.
var ulpScripts = []conversation{
	{"NVMe without its connection request", func(s *script) { s.carry(nvmeConnect()) }, nil, []string{"ULP"}},
}

// What connections carry is told by ports and by first messages. What begins otherwise is not named.
func TestCarried(t *testing.T) {
	change := func(b []byte, at int) []byte { b[at] ^= 2; return b }
	for _, tt := range []struct {
		name string
		play func(s *script)
		want string
		sure diagnose.Certainty
	}{
		{"a port", func(s *script) {
			s.req(func(m *wire.REQ) { m.ServiceID = wire.RDMAServiceID(wire.PortSpaceTCP, 4420) })
		}, "NVMe over Fabrics: 1 connection request to its port 4420.", diagnose.Hint},
		{"a port and a message", func(s *script) {
			s.req(func(m *wire.REQ) { m.ServiceID = wire.RDMAServiceID(wire.PortSpaceTCP, 4420) })
			s.rep(nil)
			s.carry(nvmeConnect())
		}, "NVMe over Fabrics: 1 connection request to its port 4420, and 1 queue pair with a message of its own at the beginning.", diagnose.Likely},
		{"SMB Direct", func(s *script) { s.carry(smbNegotiate()) }, "SMB Direct: 1 queue pair with a message of its own at the beginning.", diagnose.Likely},
		{"NFS", func(s *script) { s.carry(rpcCall()) }, "NFS over RDMA: 1 queue pair with a message of its own at the beginning.", diagnose.Likely},
		{"another command of NVMe", func(s *script) { s.carry(change(nvmeConnect(), 4)) }, "", 0},
		{"another version of SMB Direct", func(s *script) { s.carry(change(smbNegotiate(), 1)) }, "", 0},
		{"a call with chunks", func(s *script) { s.carry(change(rpcCall(), 19)) }, "", 0},
		{"another transaction", func(s *script) { s.carry(change(rpcCall(), 31)) }, "", 0},
		{"zeros", func(s *script) { s.carry(make([]byte, 64)) }, "", 0},
		{"a message in the middle", func(s *script) {
			s.good(100, 10)
			w := send(110)
			w.Payload = smbNegotiate()
			s.ab(w)
		}, "", 0},
	} {
		s := newScript()
		tt.play(s)
		got, sure := "", diagnose.Hint
		for _, f := range s.report(diagnose.Options{}).Notes {
			if f.ID == "ULP" {
				got, sure = f.Words, f.Certainty
			}
		}
		if got != tt.want || sure != tt.sure {
			t.Errorf("%s: %q, %v; want %q, %v", tt.name, got, sure, tt.want, tt.sure)
		}
	}
}
