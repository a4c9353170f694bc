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

// The kernel kills a child with Pdeathsig when the thread that made it ends. So one thread makes all
// children, and lives as long as the process.
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

// asTree has a command take all that it starts with it when it ends, by a PID namespace.
func asTree(cmd *exec.Cmd) *exec.Cmd {
	dieWithThread(cmd)
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
	return cmd
}

// errEnough is what the reader of readTree returns when it wants no more.
var errEnough = errors.New("enough")

// readTree is runTree for a command whose output goes to a reader. It ends the command where the reader ends.
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

// runTree runs a command to its end, and neither it nor what it starts outlives this process. The
// error holds what the command says on stderr.
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
