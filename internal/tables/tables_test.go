package tables

import (
	"bytes"
	"container/list"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/adverb-rdma/adverb/internal/idtable"
)

type inner struct {
	byName map[string]int
	up     *outer
}

type outer struct {
	inner   inner
	pointer *inner
	many    []*inner
	pair    [2]inner
	order   list.List
	loaded  atomic.Pointer[[]int]
	any     any
	buf     []byte
	foreign *bytes.Buffer
	skipped map[int]int
	depth   map[int]map[int]int
	numbers idtable.Table[int]
}

func TestHeld(t *testing.T) {
	o := &outer{pointer: &inner{byName: map[string]int{}}, buf: make([]byte, 10), foreign: bytes.NewBufferString("x"), skipped: map[int]int{1: 1}}
	if held := Held(o, nil, []string{"skipped"}); len(held) != 0 {
		t.Errorf("of one that is empty: got %v, want nothing", held)
	}
	o.inner = inner{map[string]int{"a": 1, "b": 2}, o}
	o.pointer.byName["c"] = 3
	o.many = []*inner{{byName: map[string]int{"d": 1}}, {byName: map[string]int{"e": 1}}}
	o.pair[1].byName = map[string]int{"f": 1}
	o.order.PushBack(1)
	o.loaded.Store(&[]int{1, 2, 3})
	o.any = &inner{byName: map[string]int{"g": 1}}
	o.depth = map[int]map[int]int{1: {2: 3}}
	o.numbers.Limit = 9
	for i := range 2 {
		if err := o.numbers.Add(&i, func(uint32) {}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]int{
		"inner.byName": 2, "pointer.byName": 1, "many": 2, "many[].byName": 2, "pair[].byName": 1,
		"order": 1, "loaded": 3, "any.byName": 1, "depth": 1, "depth[]": 1,
		"numbers": 2, "numbers.opened": 1, // a block
	}
	if held := Held(o, nil, []string{"skipped"}); !maps.Equal(held, want) {
		t.Errorf("got  %s\nwant %s", String(held), String(want))
	}
}
