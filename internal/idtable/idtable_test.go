package idtable

import (
	"errors"
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

// TestTableNumbers: numbers are unique and cannot be guessed, and the table finds each object by its
// number.
func TestTableNumbers(t *testing.T) {
	const n = 3 * blockFill // so that further blocks are opened
	tab := newTable(n)
	seen := make(map[uint32]*thing, n)
	sequel := 0
	last := uint32(0)
	for range n {
		v := new(thing)
		if tab.Add(v, v.set) != nil {
			t.Fatalf("the table is full with %d objects, want room for %d", len(seen), n)
		}
		if seen[v.n] != nil {
			t.Fatalf("number %#x is given a second time, want one that is free", v.n)
		}
		if b := v.n >> BlockBits; b == 0 || b >= tableBlocks-1 {
			t.Fatalf("number %#x is of a reserved block, want one of blocks 1 to %#x", v.n, tableBlocks-2)
		}
		if v.n-last+8 <= 16 {
			sequel++
		}
		last = v.n
		seen[v.n] = v
	}
	// One in 256 at most is this near to the one before by chance; 1 of 20 is 40 deviations away.
	if sequel > n/20 {
		t.Errorf("%d of %d numbers are near the one given before, want %d at most: they can be guessed", sequel, n, n/20)
	}
	if v := new(thing); tab.Add(v, v.set) == nil {
		t.Errorf("the table took %d objects, want %d, its limit, at most", n+1, n)
	}
	for num, v := range seen {
		if tab.Get(num) != v {
			t.Fatalf("Get(%#x) = %+v, want %+v", num, tab.Get(num), v)
		}
	}
	if len(tab.opened) != 3 {
		t.Errorf("%d blocks for %d objects, want 3", len(tab.opened), n)
	}
	for num := range seen {
		tab.Remove(num)
		if tab.Get(num) != nil {
			t.Fatalf("Get(%#x) = %+v after Remove, want nil", num, tab.Get(num))
		}
		v := new(thing)
		if tab.Add(v, v.set) != nil {
			t.Fatal("no room after remove")
		}
		break
	}
}

// TestTableDistribution: all numbers of a block are about equally likely, and different tables use
// different blocks.
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
		t.Errorf("8 tables began with the same number, %v; want different ones", first)
	}
}

// TestTableSpread: numbers come from so many blocks from the first one on, each about as often. Where
// others have blocks a table takes fewer, and one at least.
func TestTableSpread(t *testing.T) {
	const spread, draws = 8, 4000
	blocks := func(claim func(uint32) (bool, error), draws int) map[uint32]int {
		tab := newTable(draws)
		tab.Spread, tab.Claim = spread, claim
		of := map[uint32]int{}
		for range draws {
			v := new(thing)
			if err := tab.Add(v, v.set); err != nil {
				t.Fatal(err)
			}
			of[v.n>>BlockBits]++
		}
		return of
	}
	of := blocks(nil, draws)
	if len(of) != spread {
		t.Errorf("got numbers from %d blocks, want %d", len(of), spread)
	}
	for b, n := range of {
		if n < draws/spread/2 || n > draws/spread*2 {
			t.Errorf("%d numbers are from block %#x, want about %d", n, b, draws/spread)
		}
	}
	if n := len(blocks(nil, 1)); n != 1 {
		t.Errorf("one object has numbers of %d blocks, want one", n)
	}
	taken := map[uint32]bool{}
	tables := 0
	crowded := func(block uint32) (bool, error) {
		if taken[block] {
			return false, nil
		}
		taken[block] = true
		return true, nil
	}
	for ; len(taken) < tableBlocks/2; tables++ { // each takes what a process would
		if n := len(blocks(crowded, 1)); n != 1 {
			t.Fatalf("one object has numbers of %d blocks, want one", n)
		}
	}
	half := tables
	for ; len(taken) < tableBlocks-2; tables++ {
		blocks(crowded, 1)
	}
	if half < tableBlocks/spread/2 || tables < tableBlocks/3 {
		t.Errorf("half of the blocks were enough for %d tables and all for %d, want %d and %d at least", half, tables, tableBlocks/spread/2, tableBlocks/3)
	}
	failing := errors.New("no descriptor")
	first := true
	if n := len(blocks(func(uint32) (bool, error) {
		if first {
			first = false
			return true, nil
		}
		return false, failing
	}, 100)); n != 1 {
		t.Errorf("where further claims fail: got numbers from %d blocks, want 1", n)
	}
}

// TestTableReserved: no block of special QPs is taken, whichever is drawn.
func TestTableReserved(t *testing.T) {
	draws := []uint32{tableBlocks - 1, 0, 7}
	tab := newTable(1)
	tab.Random = func() uint32 {
		r := draws[0]
		draws = draws[1:]
		return r
	}
	if b, err := tab.First(); b != 7 || err != nil {
		t.Errorf("blocks %#x, 0 and 7 are drawn: got block %#x, error %v, want block 7", tableBlocks-1, b, err)
	}
}

// TestTableGetUnknown: numbers that are not in use find nothing.
func TestTableGetUnknown(t *testing.T) {
	tab, v := newTable(1), new(thing)
	tab.Add(v, v.set)
	for _, n := range []uint32{0, 1, v.n ^ 1, v.n ^ 1<<23, 1<<24 - 1, 1 << 24, v.n | 1<<24, 1<<32 - 1} {
		if tab.Get(n) != nil {
			t.Errorf("Get(%#x) found an object, want nil: only %#x is in use", n, v.n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { tab.Get(v.n) }); n != 0 {
		t.Errorf("Get allocates %v times, want never", n)
	}
}

// TestTableConcurrent: many goroutines add, find and remove objects at the same time.
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
						t.Errorf("Get(%#x) is another object, want the one that was added", v.n)
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
		t.Errorf("%d objects are left, want none", tab.used)
	}
}

// TestTableRest: a number that was given back is not given again for a while. Its place in the block is
// not lost for ever.
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
				t.Fatalf("number %#x is given again after %v, want %v or more", v.n, time.Since(last), tab.Rest)
			}
			given[v.n] = time.Now()
			tab.Remove(v.n)
			if i%BlockSize == 0 {
				<-time.After(300 * time.Millisecond)
			}
		}
		if n := len(tab.resting); n != len(tab.rested) || n > MaxResting {
			t.Errorf("%d numbers rest, %d are listed in order; want the same, and %d at most", n, len(tab.rested), MaxResting)
		}
		<-time.After(tab.Rest)
		v := new(thing)
		if tab.Add(v, v.set); len(tab.resting) != 0 || len(tab.opened) > 6 {
			t.Errorf("after the last rest %d numbers rest, of %d blocks; want none, and 6 blocks at most", len(tab.resting), len(tab.opened))
		}
		// Beyond the bound the oldest numbers are given again early, and nothing grows.
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
