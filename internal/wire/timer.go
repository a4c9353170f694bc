package wire

import "time"

// timerCodeMask selects the 5 bits that both codes have.
const timerCodeMask = 0x1f

// rnrTimers holds, in units of 10 µs, the time of each RNR NAK timer code. Code 0 is the longest.
var rnrTimers = [timerCodeMask + 1]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer returns the least time that a requester waits after an RNR NAK with this 5-bit code
// (min_rnr_timer): 655.36 ms for 0, from 10 µs for 1 to 491.52 ms for 31.
func RNRTimer(code uint8) time.Duration {
	return rnrTimers[code&timerCodeMask] * (10 * time.Microsecond)
}

// ACKTimeout returns the local ACK timeout for a 5-bit code (timeout): 4.096 µs × 2^code. For code
// 0 it returns 0, and the requester waits without end: IBTA C9-140. The time that a requester really waits is
// between one and four times the result.
func ACKTimeout(code uint8) time.Duration {
	if code &= timerCodeMask; code != 0 {
		return 4096 * time.Nanosecond << code
	}
	return 0
}
