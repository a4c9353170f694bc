package verbs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// object is the part that all verbs objects share: a name for errors, whether the object is closed,
// and the objects that depend on it. If it is closed too early, the error names these.
type object struct {
	name string // such as "pd 1" or "qp 0x000011"; of an MR, Rereg changes it: see named
	of   any    // the PD, QP … that this is the object of, once it is made

	mu       sync.Mutex
	closed   bool
	parents  []*object
	children map[*object]struct{}
}

// An ErrBusy names up to maxNamedChildren dependents. It counts the others.
const maxNamedChildren = 4

// check returns an error if o is closed.
func (o *object) check(verb string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return &OpError{Verb: verb, Object: o.name, Err: ErrClosed}
	}
	return nil
}

func (o *object) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// attach makes o a dependent of the parents. It fails if one of them is closed.
func (o *object) attach(verb string, parents ...*object) error {
	for _, p := range parents {
		if p == nil {
			continue
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			o.detach()
			return &OpError{Verb: verb, Object: p.name, Err: ErrClosed}
		}
		if p.children == nil {
			p.children = map[*object]struct{}{}
		}
		p.children[o] = struct{}{}
		p.mu.Unlock()
		o.parents = append(o.parents, p)
	}
	return nil
}

func (o *object) detach() {
	for _, p := range o.parents {
		p.mu.Lock()
		delete(p.children, o)
		p.mu.Unlock()
	}
	o.parents = nil
}

// has returns how many dependents o has if c is one of them, or else 0.
func (o *object) has(c *object) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.children[c]; !ok {
		return 0
	}
	return len(o.children)
}

// close closes o by provider, its provider's method, unless o is closed or has dependents.
func (o *object) close(provider func() error) error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil
	}
	if len(o.children) > 0 {
		err := &OpError{Verb: "close", Object: o.name, Err: o.busy()}
		o.mu.Unlock()
		return err
	}
	o.closed = true
	o.mu.Unlock()
	if err := provider(); err != nil {
		if errors.Is(err, ErrBusy) {
			o.mu.Lock()
			o.closed = false
			o.mu.Unlock()
		} else {
			o.detach()
		}
		return wrap("close", o.named(), err)
	}
	o.detach()
	return nil
}

// busy names the dependents. The caller holds o.mu.
func (o *object) busy() error {
	return Errorf(ErrBusy, "still in use by %s: close them first", o.dependents())
}

// dependents names the dependents, and theirs: a PD that a package made says nothing to the program,
// and the MR in it does. The caller holds o.mu. Children are locked after their parents.
func (o *object) dependents() string {
	var ns []string
	for c := range o.children {
		c.mu.Lock()
		name := c.name
		if len(c.children) > 0 {
			name += " (with " + c.dependents() + ")"
		}
		ns = append(ns, name)
		c.mu.Unlock()
	}
	slices.Sort(ns)
	if n := len(ns) - maxNamedChildren; n > 0 {
		ns = append(ns[:maxNamedChildren], fmt.Sprintf("%d more", n))
	}
	return strings.Join(ns, ", ")
}

// made says that the provider has made its side of v, whose object o is.
func (o *object) made(v any) {
	o.mu.Lock()
	o.of = v
	o.mu.Unlock()
}

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// named returns o's name. Where o is an MR, or may be one, nobody reads it without the lock.
func (o *object) named() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.name
}

// setName gives o the name that is made of the number that its provider gave it.
func (o *object) setName(name string) {
	o.mu.Lock()
	o.name = name
	o.mu.Unlock()
}
