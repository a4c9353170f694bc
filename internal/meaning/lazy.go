package meaning

import (
	"regexp"
	"sync"
)

// A program that starts makes no table and no pattern of this package, only small maps. Functions that no one calls are not
// linked: a program that uses rdmacm alone has the reasons of a REJ, and not the other tables. So there is no
// regexp.MustCompile and no sync.OnceValue among the package's variables, and tables are arrays and slices of constants,
// which the compiler lays out.

// pattern is a regular expression that is compiled when it is used first.
type pattern struct {
	text string
	once sync.Once
	re   *regexp.Regexp
}

func (p *pattern) get() *regexp.Regexp {
	p.once.Do(func() { p.re = regexp.MustCompile(p.text) })
	return p.re
}

func (p *pattern) MatchString(s string) bool            { return p.get().MatchString(s) }
func (p *pattern) FindStringIndex(s string) []int       { return p.get().FindStringIndex(s) }
func (p *pattern) FindStringSubmatch(s string) []string { return p.get().FindStringSubmatch(s) }
func (p *pattern) FindStringSubmatchIndex(s string) []int {
	return p.get().FindStringSubmatchIndex(s)
}
func (p *pattern) FindAllStringSubmatchIndex(s string) [][]int {
	return p.get().FindAllStringSubmatchIndex(s, -1)
}

// once makes a value when it is asked for first.
type once[T any] struct {
	sync  sync.Once
	value T
}

func (o *once[T]) get(make func() T) T {
	o.sync.Do(func() { o.value = make() })
	return o.value
}
