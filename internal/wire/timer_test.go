package wire

import (
	"testing"
	"time"
)

func TestRNRTimer(t *testing.T) {
	// In units of 10 µs; the same steps as the credits, but for code 0, which stands at the far end.
	want := []time.Duration{65536, 1, 2, 3}
	for n := time.Duration(4); len(want) < 32; n *= 2 {
		want = append(want, n, n+n/2)
	}
	for code, w := range want[:32] {
		if got := RNRTimer(uint8(code)); got != w*10*time.Microsecond {
			t.Errorf("RNRTimer(%d) = %v, want %v", code, got, w*10*time.Microsecond)
		}
	}
	for code, want := range map[uint8]time.Duration{
		0:  655360 * time.Microsecond,
		1:  10 * time.Microsecond,
		12: 640 * time.Microsecond,
		25: 61440 * time.Microsecond,
		31: 491520 * time.Microsecond,
		33: 10 * time.Microsecond, // five bits count
	} {
		if got := RNRTimer(code); got != want {
			t.Errorf("RNRTimer(%d) = %v, want %v", code, got, want)
		}
	}
}

func TestACKTimeout(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0:  0,
		1:  8192 * time.Nanosecond,
		14: 67108864 * time.Nanosecond,
		19: 2147483648 * time.Nanosecond,
		31: 8796093022208 * time.Nanosecond,
		32: 0, // five bits count
	} {
		if got := ACKTimeout(code); got != want {
			t.Errorf("ACKTimeout(%d) = %v, want %v", code, got, want)
		}
	}
}
