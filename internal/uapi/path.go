package uapi

import "encoding/binary"

// PathRecord is a path as the subnet administrator describes it: ib_path_rec_data has it as a PathRecord of InfiniBand.
type PathRecord struct {
	DGID, SGID     [16]byte
	DLID, SLID     uint16
	FlowLabel      uint32
	HopLimit       uint8
	TrafficClass   uint8
	PKey           uint16
	SL             uint8
	MTU, Rate      uint8 // codes
	PacketLifeTime uint8 // code
}

// PathFlags say of a path that it is the only one: IB_PATH_GMP, _PRIMARY and _BIDIRECTIONAL.
const PathFlags = 1<<0 | 1<<1 | 1<<3 | 1<<5

// Where the fields of a PathRecord stand.
const (
	pathDGID, pathSGID, pathDLID, pathSLID, pathFlow, pathClass, pathReversible = 8, 24, 40, 42, 44, 48, 49
	pathPKey, pathSL, pathMTU, pathRate, pathLifeTime                           = 50, 52, 54, 55, 56

	selectExactly = 2 << 6 // IB_SA_EQ, before a code
	codeMask      = 1<<6 - 1
)

// Data writes a path for the kernel, or for a program.
func (p *PathRecord) Data() PathRecData {
	var b [64]byte
	copy(b[pathDGID:], p.DGID[:])
	copy(b[pathSGID:], p.SGID[:])
	binary.BigEndian.PutUint16(b[pathDLID:], p.DLID)
	binary.BigEndian.PutUint16(b[pathSLID:], p.SLID)
	binary.BigEndian.PutUint32(b[pathFlow:], p.FlowLabel<<8|uint32(p.HopLimit))
	b[pathClass], b[pathReversible] = p.TrafficClass, 1<<7
	binary.BigEndian.PutUint16(b[pathPKey:], p.PKey)
	binary.BigEndian.PutUint16(b[pathSL:], uint16(p.SL&0xf))
	b[pathMTU], b[pathRate], b[pathLifeTime] = selectExactly|p.MTU&codeMask, selectExactly|p.Rate&codeMask, selectExactly|p.PacketLifeTime&codeMask
	d := PathRecData{Flags: PathFlags}
	for i := range d.PathRec {
		d.PathRec[i] = native.Uint32(b[4*i:])
	}
	return d
}

// Path reads a path.
func (d *PathRecData) Path() (p PathRecord) {
	var b []byte
	for _, w := range d.PathRec {
		b = native.AppendUint32(b, w)
	}
	copy(p.DGID[:], b[pathDGID:])
	copy(p.SGID[:], b[pathSGID:])
	flow := binary.BigEndian.Uint32(b[pathFlow:])
	p.DLID, p.SLID = binary.BigEndian.Uint16(b[pathDLID:]), binary.BigEndian.Uint16(b[pathSLID:])
	p.FlowLabel, p.HopLimit, p.TrafficClass = flow>>8&(1<<20-1), uint8(flow), b[pathClass]
	p.PKey, p.SL = binary.BigEndian.Uint16(b[pathPKey:]), b[pathSL+1]&0xf
	p.MTU, p.Rate, p.PacketLifeTime = b[pathMTU]&codeMask, b[pathRate]&codeMask, b[pathLifeTime]&codeMask
	return p
}
