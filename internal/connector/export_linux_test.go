package connector

// SetCommand has f carry out the kernel's commands, and returns what undoes that.
func SetCommand(f func(fd int, b []byte) error) (undo func()) {
	before := command
	command = f
	return func() { command = before }
}
