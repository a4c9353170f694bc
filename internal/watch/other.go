//go:build !linux || adverb_portable

package watch

import "context"

// Listen does nothing here: nobody can ask.
func Listen() (release func()) { return func() {} }

// Ask fails with ErrUnsupported.
func Ask(context.Context, Want) ([]Process, []error, error) { return nil, nil, ErrUnsupported }
