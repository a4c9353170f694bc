package wire

import "encoding/binary"

// The specification fixes these numbers of management datagrams.
const (
	MADSize       = 256 // of every management datagram: header and data, in which unused bytes are zero
	MADHeaderSize = 24
	CMDataSize    = MADSize - MADHeaderSize

	GSIQPN  = 1          // the general service interface: the QP that sends and receives management datagrams
	GSIQKey = 0x80010000 // its Q_Key, at both ends

	MADBaseVersion = 1
	MADMethodSend  = 0x03 // the method of each CM message, of answers too

	MADClassCM        = 0x07 // communication management
	MADClassVersionCM = 2
)

// MADHeader is the header of a management datagram (MAD), its first 24 bytes. Reserved bits are
// ignored and sent as zero.
type MADHeader struct {
	BaseVersion   uint8
	MgmtClass     uint8
	ClassVersion  uint8
	Method        uint8
	Status        uint16
	ClassSpecific uint16
	TID           uint64 // transaction ID; CM messages find their connection by communication IDs instead
	AttrID        uint16 // which message of the class, see [CMAttr]
	AttrMod       uint32
}

// Where the fields of a MAD header stand.
const (
	madMgmtClass     = 1
	madClassVersion  = 2
	madMethod        = 3
	madStatus        = 4
	madClassSpecific = 6
	madTID           = 8
	madAttrID        = 16
	madAttrMod       = 20
)

// DecodeMADHeader reads a MAD header from the front of b. Its only error is [ErrShortMAD]. The
// caller checks whether version, class and method are known, see [MADHeader.CM].
func DecodeMADHeader(b []byte) (h MADHeader, err error) {
	if len(b) < MADHeaderSize {
		return h, ErrShortMAD
	}
	h.BaseVersion = b[0]
	h.MgmtClass = b[madMgmtClass]
	h.ClassVersion = b[madClassVersion]
	h.Method = b[madMethod]
	h.Status = binary.BigEndian.Uint16(b[madStatus:])
	h.ClassSpecific = binary.BigEndian.Uint16(b[madClassSpecific:])
	h.TID = binary.BigEndian.Uint64(b[madTID:])
	h.AttrID = binary.BigEndian.Uint16(b[madAttrID:])
	h.AttrMod = binary.BigEndian.Uint32(b[madAttrMod:])
	return h, nil
}

// AppendTo appends the header's 24 bytes to b.
func (h *MADHeader) AppendTo(b []byte) []byte {
	b = append(b, h.BaseVersion, h.MgmtClass, h.ClassVersion, h.Method)
	b = binary.BigEndian.AppendUint16(b, h.Status)
	b = binary.BigEndian.AppendUint16(b, h.ClassSpecific)
	b = binary.BigEndian.AppendUint64(b, h.TID)
	b = binary.BigEndian.AppendUint32(b, uint32(h.AttrID)<<16)
	return binary.BigEndian.AppendUint32(b, h.AttrMod)
}

// NewCMHeader returns the header of a CM message.
func NewCMHeader(attr CMAttr, tid uint64) MADHeader {
	return MADHeader{
		BaseVersion:  MADBaseVersion,
		MgmtClass:    MADClassCM,
		ClassVersion: MADClassVersionCM,
		Method:       MADMethodSend,
		TID:          tid,
		AttrID:       uint16(attr),
	}
}

// CM returns the kind of CM message that the header announces. ok is false if it announces none, or one of a version
// that is not known here. The data must not be decoded then.
func (h *MADHeader) CM() (attr CMAttr, ok bool) {
	attr = CMAttr(h.AttrID)
	return attr, h.BaseVersion == MADBaseVersion && h.MgmtClass == MADClassCM && h.ClassVersion == MADClassVersionCM &&
		h.Method == MADMethodSend && attr >= CMREQ && attr <= CMAPR
}
