//go:build !linux || !(amd64 || arm64)

package supervisor

import (
	"errors"
	"os"
)

// A Session is a run, in the process of its supervisor.
type Session struct{ Program Program }

// Program is the program to run.
type Program struct {
	Path    string
	Args    []string
	Options []string
}

// Status is how a program ended.
type Status struct{ err error }

var errSystem = errors.New("run a program with devices: it needs Linux on amd64 or arm64")

// Stage does nothing here.
func Stage(func(*Session) error) {}

// Find fails.
func Find(args, options []string) (Program, error) { return Program{}, errSystem }

// Run fails.
func Run(Program) Status { return Status{errSystem} }

// Err says why there was no program.
func (s Status) Err() error { return s.err }

// Exit ends this process.
func (s Status) Exit() { os.Exit(125) }

// Check says that this system has none of the things that are needed.
func Check() []Finding {
	return []Finding{{
		Name: "system", Needed: true,
		Lost: "no program can be run", Remedy: "Linux on amd64 or arm64",
	}}
}
