package wire

import (
	"encoding/binary"
	"net/netip"
)

// appendCM appends the kind of CM message that mad is and its most telling fields. If mad is no CM message, it
// appends nothing.
func appendCM(b, mad []byte) []byte {
	r, ok := CMRoute(mad)
	if !ok {
		return b
	}
	b = append(append(b, " CM "...), r.Attr.String()...)
	data := mad[MADHeaderSize:]
	b = appendHexField(b, "id", uint64(binary.BigEndian.Uint32(data[cmLocalCommID:])), 8) // a request ID stands there too
	switch r.Attr {
	case CMREQ:
		m, _ := DecodeREQ(data)
		b = appendHexField(b, "service", m.ServiceID, 16)
		b = appendHexField(b, "localqp", uint64(m.LocalQPN), 6)
		b = appendHexField(b, "start", uint64(m.StartingPSN), 6)
		return appendIPCM(b, m.ServiceID, m.PrivateData[:])
	case CMSIDRREQ:
		m, _ := DecodeSIDRREQ(data)
		b = appendHexField(b, "service", m.ServiceID, 16)
		return appendIPCM(b, m.ServiceID, m.PrivateData[:])
	case CMSIDRREP:
		m, _ := DecodeSIDRREP(data)
		b = appendHexField(b, "service", m.ServiceID, 16)
		b = appendDecField(b, "status", uint64(m.Status))
		b = appendHexField(b, "localqp", uint64(m.QPN), 6)
		b = appendHexField(b, "localqkey", uint64(m.QKey), 8)
		if m.Status != SIDRSuccess {
			b = appendWords(b, m.Status.String())
		}
		return b
	}

	b = appendHexField(b, "remote", uint64(r.CommID), 8)
	switch r.Attr {
	case CMMRA:
		m, _ := DecodeMRA(data)
		b = appendDecField(b, "message", uint64(m.Message))
		b = appendDecField(b, "timeout", uint64(m.ServiceTimeout))
	case CMREJ:
		m, _ := DecodeREJ(data)
		b = appendDecField(b, "message", uint64(m.Message))
		b = appendDecField(b, "reason", uint64(m.Reason))
		b = appendWords(b, m.Reason.String())
	case CMREP:
		m, _ := DecodeREP(data)
		b = appendHexField(b, "localqp", uint64(m.LocalQPN), 6)
		b = appendHexField(b, "start", uint64(m.StartingPSN), 6)
	case CMDREQ:
		m, _ := DecodeDREQ(data)
		b = appendHexField(b, "remoteqp", uint64(m.RemoteQPN), 6)
	case CMLAP:
		m, _ := DecodeLAP(data)
		b = appendHexField(b, "remoteqp", uint64(m.RemoteQPN), 6)
	case CMAPR:
		m, _ := DecodeAPR(data)
		b = appendDecField(b, "status", uint64(m.Status))
	}
	return b
}

// appendIPCM appends the addresses and ports between which a connection is asked for, if service ID
// and private data have them.
func appendIPCM(b []byte, service uint64, private []byte) []byte {
	_, port, ok := SplitRDMAServiceID(service)
	if !ok {
		return b
	}
	h, err := DecodeIPCMHeader(private)
	if err != nil {
		return b
	}
	b = netip.AddrPortFrom(h.Src, h.SrcPort).AppendTo(append(b, " from="...))
	return netip.AddrPortFrom(h.Dst, port).AppendTo(append(b, " to="...))
}

// appendWords appends the meaning of the code before.
func appendWords(b []byte, words string) []byte {
	return append(append(append(b, " ("...), words...), ')')
}
