package idtable

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type thing struct{ n uint32 }

func newTable(limit int) *Table[thing] {
	return &Table[thing]{Limit: limit}
}

func (t *thing) set(n uint32) { t.n = n }

func TestTableNumbers(t *testing.T) {
	const n = 3 * blockFill // so that further blocks are opened
	tab := newTable(n)
	seen := make(map[uint32]*thing, n)
	sequel := 0
	last := uint32(0)
	for range n {
		v := new(thing)
		if tab.Add(v, v.set) != nil {
			t.Fatalf("full after %d of %d", len(seen), n)
		}
		if seen[v.n] != nil {
			t.Fatalf("number %#x given twice", v.n)
		}
		if b := v.n >> BlockBits; b == 0 || b >= tableBlocks-1 {
			t.Fatalf("number %#x of a reserved block", v.n)
		}
		if v.n-last+8 <= 16 {
			sequel++
		}
		last = v.n
		seen[v.n] = v
	}
	// One in 256 at most is this near to the one before by chance; 1 of 20 is 40 deviations away.
	if sequel > n/20 {
		t.Errorf("%d of %d numbers are next to the one given before: they can be guessed", sequel, n)
	}
	if v := new(thing); tab.Add(v, v.set) == nil {
		t.Errorf("the table took %d, its limit is %d", n+1, n)
	}
	for num, v := range seen {
		if tab.Get(num) != v {
			t.Fatalf("Get(%#x) is another object", num)
		}
	}
	if len(tab.opened) != 3 {
		t.Errorf("%d blocks for %d objects, want 3", len(tab.opened), n)
	}
	for num := range seen {
		tab.Remove(num)
		if tab.Get(num) != nil {
			t.Fatalf("Get(%#x) after remove", num)
		}
		v := new(thing)
		if tab.Add(v, v.set) != nil {
			t.Fatal("no room after remove")
		}
		break
	}
}

// Within a block all numbers are about as likely, and tables differ in their blocks.
func TestTableDistribution(t *testing.T) {
	const buckets, want = 16, blockFill / 16
	var count [buckets]int
	tab := newTable(blockFill)
	for range blockFill {
		v := new(thing)
		tab.Add(v, v.set)
		count[v.n&(BlockSize-1)/(BlockSize/buckets)]++
	}
	for i, c := range count {
		if c < want/2 || c > want+want/3 { // 8 standard deviations; a bucket cannot hold more than 4/3
			t.Errorf("bucket %d has %d numbers, want about %d: %v", i, c, want, count)
		}
	}
	first := make(map[uint32]bool)
	for range 8 {
		tab, v := newTable(1), new(thing)
		tab.Add(v, v.set)
		first[v.n] = true
	}
	if len(first) < 2 {
		t.Errorf("8 tables began with the same number, %v", first)
	}
}

func TestTableGetUnknown(t *testing.T) {
	tab, v := newTable(1), new(thing)
	tab.Add(v, v.set)
	for _, n := range []uint32{0, 1, v.n ^ 1, v.n ^ 1<<23, 1<<24 - 1, 1 << 24, v.n | 1<<24, 1<<32 - 1} {
		if tab.Get(n) != nil {
			t.Errorf("Get(%#x) found an object, and only %#x is in use", n, v.n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { tab.Get(v.n) }); n != 0 {
		t.Errorf("Get allocates %v times", n)
	}
}

func TestTableConcurrent(t *testing.T) {
	const workers, rounds = 8, 2000
	tab := newTable(workers * 8)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			var mine []*thing
			for i := range rounds {
				if len(mine) < 8 {
					v := new(thing)
					if tab.Add(v, v.set) != nil {
						t.Error("full below the limit")
						return
					}
					mine = append(mine, v)
				}
				for _, v := range mine {
					if tab.Get(v.n) != v {
						t.Errorf("Get(%#x) is another object", v.n)
						return
					}
					tab.Get(v.n ^ 1) // perhaps another's
				}
				if i%3 != 0 {
					tab.Remove(mine[0].n)
					mine = mine[1:]
				}
			}
			for _, v := range mine {
				tab.Remove(v.n)
			}
		})
	}
	wg.Wait()
	if tab.used != 0 {
		t.Errorf("%d objects are left", tab.used)
	}
}

// TestTableRest: a number that was given back is not given again for a while, nor does it keep its
// block from being used up for ever.
func TestTableRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tab := newTable(1 << 20)
		tab.Rest = time.Second
		given := map[uint32]time.Time{}
		for i := range 4 * BlockSize {
			v := new(thing)
			if err := tab.Add(v, v.set); err != nil {
				t.Fatal(err)
			}
			if last, ok := given[v.n]; ok && time.Since(last) < tab.Rest {
				t.Fatalf("number %#x again after %v", v.n, time.Since(last))
			}
			given[v.n] = time.Now()
			tab.Remove(v.n)
			if i%BlockSize == 0 {
				<-time.After(300 * time.Millisecond)
			}
		}
		if n := len(tab.resting); n != len(tab.rested) || n > MaxResting {
			t.Errorf("%d numbers rest, %d in order", n, len(tab.rested))
		}
		<-time.After(tab.Rest)
		v := new(thing)
		if tab.Add(v, v.set); len(tab.resting) != 0 || len(tab.opened) > 6 {
			t.Errorf("after all rest %d numbers rest, of %d blocks", len(tab.resting), len(tab.opened))
		}
		// Beyond the bound the oldest come early, and nothing grows.
		for range MaxResting + 100 {
			v := new(thing)
			tab.Add(v, v.set)
			tab.Remove(v.n)
		}
		if n := len(tab.resting); n != MaxResting {
			t.Errorf("%d numbers rest, want %d", n, MaxResting)
		}
	})
}
