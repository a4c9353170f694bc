package wire

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// TestUpdateCRC compares all lengths of payloads with hash/crc32, at places in memory of all alignments.
func TestUpdateCRC(t *testing.T) {
	const seed = 1
	rnd := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, 4096+64)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for n := range 4096 + 1 {
		from, c := rnd.IntN(64), rnd.Uint32()
		p := data[from:][:n]
		if got, want := updateCRC(c, p), crc32.Update(c, crc32.IEEETable, p); got != want {
			t.Fatalf("seed %d: of %d bytes from %d on with %#08x before: %#08x, want %#08x", seed, n, from, c, got, want)
		}
	}
}

func BenchmarkICRC(b *testing.B) {
	for _, n := range []int{256, 1024, 4096, 4112} {
		p := make([]byte, n)
		for _, c := range []struct {
			name   string
			update func(uint32, []byte) uint32
		}{
			{"adverb", updateCRC},
			{"crc32", func(c uint32, p []byte) uint32 { return crc32.Update(c, crc32.IEEETable, p) }},
		} {
			b.Run(fmt.Sprint(n, "/", c.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for i := range b.N {
					c.update(uint32(i), p)
				}
			})
		}
	}
}
