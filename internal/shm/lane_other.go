//go:build !linux || adverb_portable

package shm

import "errors"

// Bell wakes a process that sleeps. Only Linux has lanes, and so bells.
type Bell struct{}

// Ring does nothing here.
func (Bell) Ring() {}

// Silence does nothing here.
func (Bell) Silence() {}

// Close does nothing here.
func (*Bell) Close() {}

func mapFile(File, bool) ([]byte, func(), error) { return nil, nil, errors.ErrUnsupported }
