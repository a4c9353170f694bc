//go:build linux && (amd64 || arm64)

package native

import (
	"sync"
	"sync/atomic"
)

// numbers finds QPs by their numbers of 24 bits, which the device chooses. A lookup takes two loads and no lock: put stores
// a page before its place in the table, and the QP before its number is told to anybody.
type numbers struct {
	pages [1 << 12]atomic.Pointer[page]
}

type page [1 << 12]atomic.Pointer[qp]

func (t *numbers) get(n uint32) *qp {
	if n >= 1<<24 {
		return nil
	}
	p := t.pages[n>>12].Load()
	if p == nil {
		return nil
	}
	return p[n&(1<<12-1)].Load()
}

func (t *numbers) put(n uint32, q *qp) {
	at := &t.pages[n>>12&(1<<12-1)]
	if at.Load() == nil {
		at.CompareAndSwap(nil, new(page))
	}
	at.Load()[n&(1<<12-1)].Store(q)
}

// remove forgets a QP, unless another has its number.
func (t *numbers) remove(n uint32, q *qp) {
	if p := t.pages[n>>12&(1<<12-1)].Load(); p != nil {
		p[n&(1<<12-1)].CompareAndSwap(q, nil)
	}
}

// table finds our objects by the numbers or pointers that C has for them.
type table[K comparable, V any] struct {
	mu sync.RWMutex
	m  map[K]V
}

func (t *table[K, V]) get(k K) V {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[k]
}

func (t *table[K, V]) put(k K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[K]V{}
	}
	t.m[k] = v
}

func (t *table[K, V]) remove(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, k)
}

// each calls f for each of the objects.
func (t *table[K, V]) each(f func(V)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, v := range t.m {
		f(v)
	}
}
