package supervisor

// A Finding is one thing that a supervisor needs of the machine, and whether it is there.
type Finding struct {
	Name   string
	OK     bool
	Needed bool   // without it nothing runs
	Lost   string // what does not work without it
	Remedy string
}
