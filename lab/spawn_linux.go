package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// spawner takes functions that start children, and calls them on one thread that lives as long as
// the process. The kernel kills a child with Pdeathsig when the thread that started it ends.
var spawner = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// spawn starts a command that does not outlive this process.
func spawn(cmd *exec.Cmd) error {
	dieWithThread(cmd)
	started := make(chan error, 1)
	spawner() <- func() { started <- cmd.Start() }
	return <-started
}

func dieWithThread(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// asTree puts a command into a PID namespace of its own. When the command ends, the kernel kills
// all that it has started.
func asTree(cmd *exec.Cmd) *exec.Cmd {
	dieWithThread(cmd)
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
	return cmd
}

// errEnough is returned by the reader of readTree when the reader has read enough.
var errEnough = errors.New("enough")

// readTree is runTree for a command whose output goes to a reader. When the reader fails, or has
// read enough, readTree kills the command.
func readTree(cmd *exec.Cmd, read func(io.Reader) error) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := spawn(asTree(cmd)); err != nil {
		return err
	}
	err = read(out)
	if err != nil {
		cmd.Process.Kill()
	}
	ended := cmd.Wait()
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err == nil:
		err = ended
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// runTree runs a command until it ends. Neither the command nor what it starts outlives this
// process. If the command fails, the error contains its stderr.
func runTree(cmd *exec.Cmd) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := spawn(asTree(cmd)); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}
