package shm

import "testing"

// A receiver maps files until they are maxMapped bytes together.
func TestMappedBound(t *testing.T) {
	m := &mapped{size: maxMapped - 10}
	for size, want := range map[int64]bool{10: true, 11: false, maxMapped: false, 1<<63 - 1: false, 0: false, -1: false} {
		if got := m.room(1, size) == nil; got != want {
			t.Errorf("with room for 10 bytes a file of %d is mapped: %v, want %v", size, got, want)
		}
	}
}
