//go:build !linux

package ucma

import "os"

// pipe is the file that a program polls. There is none on this system, where no program gets a descriptor.
type pipe struct{}

func newPipe() (*pipe, *os.File, error) { return &pipe{}, nil, nil }

func (p *pipe) set(int) {}
func (p *pipe) close()  {}
