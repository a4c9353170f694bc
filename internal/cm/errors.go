package cm

import (
	"errors"
	"fmt"
)

// Errors of this package's calls; test with errors.Is.
var (
	// ErrState: the call makes no sense in the state of the connection or SIDR exchange.
	ErrState = errors.New("not possible in this state")

	// ErrServiceInUse: another listener has the service ID, at this address or at any.
	ErrServiceInUse = errors.New("service ID in use")

	// ErrPrivateData: there is more private data than the message has room for.
	ErrPrivateData = errors.New("private data too long")

	// ErrInvalid: a parameter is out of its range.
	ErrInvalid = errors.New("invalid parameter")

	// ErrNoIDs: every communication ID is in use.
	ErrNoIDs = errors.New("no communication ID is free")
)

func tooLong(n, room int) error {
	return fmt.Errorf("%w: %d bytes, the message has room for %d", ErrPrivateData, n, room)
}

// failed wraps err for a call on a connection.
func (c *Conn) failed(verb string, err error) error {
	return fmt.Errorf("cm: %s connection %#08x: %w", verb, c.id, err)
}

// wrongState is the error of a call that c's state does not allow.
func (c *Conn) wrongState(verb string) error {
	return c.failed(verb, fmt.Errorf("%w: %v", ErrState, c.state))
}
