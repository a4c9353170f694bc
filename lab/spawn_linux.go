package lab

import (
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
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error, 1)
	spawner() <- func() { started <- cmd.Start() }
	return <-started
}
