package secure

// Window is how far a packet may come behind later ones. A packet that is further behind is dropped, and
// the peer repeats it under a new number.
const Window = (windowWords - 1) * wordBits

const (
	windowWords = 64 // a power of two
	wordBits    = 64
)

// window remembers which packet numbers have come, in a ring of bits, in the way of RFC 6479: the word
// that is about to be used is cleared, so that nothing is shifted.
type window struct {
	end  uint64 // the number after the highest
	bits [windowWords]uint64
}

func word(number uint64) uint64 { return number / wordBits }

// fresh reports whether a number has not come, and is not too old to tell.
func (w *window) fresh(number uint64) bool {
	switch {
	case number >= w.end:
		return true
	case w.end-number > Window:
		return false
	}
	return w.bits[word(number)%windowWords]>>(number%wordBits)&1 == 0
}

// add takes note that a number has come, which is fresh.
func (w *window) add(number uint64) {
	if number >= w.end {
		at := word(w.end - 1) // of the highest; all ones before the first, which is one before 0
		if w.end == 0 {
			at = word(number) // all is clear
		}
		for n := min(word(number)-at, windowWords); n > 0; n-- {
			w.bits[(word(number)-n+1)%windowWords] = 0
		}
		w.end = number + 1
	}
	w.bits[word(number)%windowWords] |= 1 << (number % wordBits)
}
