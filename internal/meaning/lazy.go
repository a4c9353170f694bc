package meaning

import (
	"regexp"
	"regexp/syntax"
	"strings"
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
	any  []string // a text without any of these does not fit
}

// in returns the expression if it can fit a text. Most lines of a log are about something else, and a search for a few
// words is much cheaper than the expression.
func (p *pattern) in(s string) (*regexp.Regexp, bool) {
	p.once.Do(func() {
		p.re = regexp.MustCompile(p.text)
		if tree, err := syntax.Parse(p.text, syntax.Perl); err == nil {
			p.any = literals(tree.Simplify())
		}
	})
	for _, word := range p.any {
		if strings.Contains(s, word) {
			return p.re, true
		}
	}
	return p.re, len(p.any) == 0
}

// literals returns words of which each text that fits has one, or none if there are no such words.
func literals(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if len(re.Rune) > 1 && re.Flags&syntax.FoldCase == 0 {
			return []string{string(re.Rune)}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literals(re.Sub[0])
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			list := literals(sub)
			if list == nil {
				return nil
			}
			all = append(all, list...)
		}
		return all
	case syntax.OpConcat: // the part whose shortest word is the longest
		var best []string
		for _, sub := range re.Sub {
			if list := literals(sub); list != nil && (best == nil || shortest(list) > shortest(best)) {
				best = list
			}
		}
		return best
	}
	return nil
}

func shortest(list []string) int {
	n := len(list[0])
	for _, s := range list {
		n = min(n, len(s))
	}
	return n
}

func (p *pattern) MatchString(s string) bool {
	re, ok := p.in(s)
	return ok && re.MatchString(s)
}

func (p *pattern) FindStringIndex(s string) []int {
	if re, ok := p.in(s); ok {
		return re.FindStringIndex(s)
	}
	return nil
}

func (p *pattern) FindStringSubmatch(s string) []string {
	if re, ok := p.in(s); ok {
		return re.FindStringSubmatch(s)
	}
	return nil
}

func (p *pattern) FindStringSubmatchIndex(s string) []int {
	if re, ok := p.in(s); ok {
		return re.FindStringSubmatchIndex(s)
	}
	return nil
}

func (p *pattern) FindAllStringSubmatchIndex(s string) [][]int {
	if re, ok := p.in(s); ok {
		return re.FindAllStringSubmatchIndex(s, -1)
	}
	return nil
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
