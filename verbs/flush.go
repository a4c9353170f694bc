package verbs

// Flush qualifies OpFlush (the arguments len, type and level of ibv_wr_flush). FLUSH has the peer place all earlier
// WRITEs, atomics and ATOMIC WRITEs to a range, or to a whole region, so far as Placement says; then it completes. The
// work requests behind FLUSH are executed after it. It counts as a READ does for MAX_QP_RD_ATOMIC, and SendFence waits for
// it. It is of annex A19 of the specification. QPs of QPTypeRC have it, and those of QPTypeXRCSend on software devices.
//
// A FLUSH to storage takes as long as the peer's disk. A software device waits for another one, however long. Any other peer
// may be silent meanwhile: there choose Timeout and RetryCnt for the disk, or flush in parts; else the status is
// WCRetryExceeded, and the data may be stored nonetheless.
//
// QP and region must allow each kind of placement, by AccessFlushGlobal and AccessFlushPersistent: else the status is
// WCRemInvReqErr or WCRemAccessErr. WCRemOpErr says that the peer could not flush.
type Flush struct {
	// Length is the number of bytes from Remote on, 2^31 at most. With FlushMR it means nothing.
	Length      uint32
	Placement   FlushPlacement
	Selectivity FlushSelectivity
}

// FlushPlacement is how far the data must get (enum ibv_placement_type). Both kinds together are allowed.
type FlushPlacement uint8

// The kinds of placement (IBV_FLUSH_*).
const (
	FlushGlobal     FlushPlacement = 1 << 0 // visible to everybody who reads the memory
	FlushPersistent FlushPlacement = 1 << 1 // in the file behind the memory: it outlives a loss of power as that file does
)

var flushPlacementNames = []flagName{{uint64(FlushGlobal), "FLUSH_GLOBAL"}, {uint64(FlushPersistent), "FLUSH_PERSISTENT"}}

// String joins the names of the set bits by "|".
func (p FlushPlacement) String() string { return flagNames(uint64(p), flushPlacementNames) }

// FlushSelectivity is how much of a region is flushed (enum ibv_selectivity_level).
type FlushSelectivity uint8

// The selectivity levels (IBV_FLUSH_*).
const (
	FlushRange FlushSelectivity = 0 // Length bytes from Remote on
	FlushMR    FlushSelectivity = 1 // the whole region; the address in Remote means nothing
)

var flushSelectivityNames = names[FlushSelectivity]{"FLUSH", map[FlushSelectivity]string{FlushRange: "FLUSH_RANGE", FlushMR: "FLUSH_MR"}}

// String returns the C library's name without IBV_, such as FLUSH_RANGE.
func (s FlushSelectivity) String() string { return flushSelectivityNames.name(s) }

// check reports the first fault of a FLUSH, which has length bytes of local data, on a device.
func (f *Flush) check(length uint64, flags SendFlags, dev *DeviceAttr) error {
	switch {
	case length != 0 || flags&SendInline != 0:
		return invalidf("OpFlush takes no data: name the range by Remote and Flush.Length")
	case f.Placement == 0:
		return invalidf("Flush.Placement is 0: choose FlushGlobal, FlushPersistent, or both")
	case f.Placement&^(FlushGlobal|FlushPersistent) != 0:
		return invalidf("unknown kinds of placement %#x", uint8(f.Placement&^(FlushGlobal|FlushPersistent)))
	case f.Selectivity > FlushMR:
		return invalidf("unknown selectivity level %d", f.Selectivity)
	case uint64(f.Length) > MaxMessageSize:
		return Errorf(ErrLimit, "a range of %d bytes: at most 2^31; flush longer ones in parts, or by FlushMR", f.Length)
	case f.Placement&FlushGlobal != 0 && dev.DeviceCapFlagsEx&DeviceFlushGlobal == 0:
		return dev.lacks("FLUSH with FLUSH_GLOBAL")
	case f.Placement&FlushPersistent != 0 && dev.DeviceCapFlagsEx&DeviceFlushPersistent == 0:
		return dev.lacks("FLUSH with FLUSH_PERSISTENT")
	}
	return nil
}

// lacks is the error for an operation that DeviceCapFlagsEx leaves out.
func (a *DeviceAttr) lacks(op string) error {
	if a.MissingOps != "" {
		return Errorf(ErrUnsupported, "the device has no %s (device_cap_flags_ex): %s", op, a.MissingOps)
	}
	return Errorf(ErrUnsupported, "the device has no %s (device_cap_flags_ex)", op)
}
