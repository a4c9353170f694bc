package wire

// SamePartition reports whether two P_Keys are of one partition, as full members or as limited ones.
func SamePartition(a, b uint16) bool { return a&PKeyBase == b&PKeyBase }

// MayTalk reports whether ends with two P_Keys take each other's packets: both are of one partition, and not both limited
// members.
func MayTalk(a, b uint16) bool { return SamePartition(a, b) && (a|b)&^uint16(PKeyBase) != 0 }
