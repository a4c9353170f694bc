// Package settings reads the variables of the environment that say what devices do. One that is not set or empty
// says nothing, and one with a value that means nothing is an error: whoever sets it would otherwise take what
// happens for what was asked for.
package settings

import (
	"fmt"
	"os"
	"strconv"

	"github.com/adverb-rdma/adverb/verbs"
)

// Value returns what a variable says, as parse reads it, or the zero value if it says nothing. The error names the
// variable.
func Value[T any](name string, parse func(string) (T, error)) (v T, err error) {
	s := os.Getenv(name)
	if s == "" {
		return v, nil
	}
	if v, err = parse(s); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return v, err
}

// Switch returns whether a variable is 1 or true, rather than 0 or false, or usual if it says nothing.
func Switch(name string, usual bool) (bool, error) {
	if os.Getenv(name) == "" {
		return usual, nil
	}
	return Value(name, func(s string) (bool, error) {
		on, err := strconv.ParseBool(s)
		if err != nil {
			return usual, verbs.Errorf(verbs.ErrInvalid, "%q is neither on nor off: say 1 or 0", s)
		}
		return on, nil
	})
}
