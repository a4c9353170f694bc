package lab

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bystanderEnv makes the test binary a process that starts a lab of its own, to be killed.
const bystanderEnv = "ADVERB_LAB_BYSTANDER"

// bystander prints the PIDs of a guest and of a program beside it, and waits.
func bystander() int {
	err := Enter()
	if err == nil {
		err = standBy()
	}
	fmt.Println(err)
	return 1
}

func standBy() error {
	l, err := newLab(context.Background(), Config{MTU: 1500})
	if err != nil {
		return err
	}
	if err := l.Guest(0).launch(); err != nil {
		return err
	}
	p, err := l.Host().Start(context.Background(), "sh", "-c", "echo $$; exec sleep 1000")
	if err != nil {
		return err
	}
	if err := p.AwaitOutput(context.Background(), "\n"); err != nil {
		return err
	}
	fmt.Println("pids", l.Guest(0).qemu.Process.Pid, strings.TrimSpace(p.stdout.String()))
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	panic("a test has failed badly")
}

// When the process of a lab ends, its guests, programs and namespaces end too, whatever has ended
// the process.
func TestNothingIsLeft(t *testing.T) {
	needLab(t)
	recordTest(t, labFamily, resultRow{program: "end of the lab"}, "nothing is left after a kill, an interrupt, a panic")
	for _, tt := range []struct {
		name string
		end  func(cmd *exec.Cmd, stdin *os.File) error
	}{
		{"killed", func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Kill() }},
		{"interrupted", func(cmd *exec.Cmd, _ *os.File) error { return cmd.Process.Signal(syscall.SIGINT) }},
		{"panic", func(_ *exec.Cmd, stdin *os.File) error { _, err := stdin.WriteString("x"); return err }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := within(t, 2*patience) // the process first runs apt-get twice and builds two programs
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			stdin, toStdin, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer toStdin.Close()
			cmd := exec.CommandContext(ctx, exe)
			cmd.Env = append(os.Environ(), bystanderEnv+"=1")
			cmd.Stdin = stdin
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stdin.Close()
			line, _ := bufio.NewReader(stdout).ReadString('\n')
			var guest, program int
			if _, err := fmt.Sscanf(line, "pids %d %d", &guest, &program); err != nil {
				cmd.Process.Kill()
				t.Fatalf("the other lab says %q, want two PIDs: %v", line, err)
			}
			space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", guest))
			if err != nil {
				t.Fatal(err)
			}
			fds := []int{pidfd(t, guest), pidfd(t, program)}
			if err := tt.end(cmd, toStdin); err != nil {
				t.Fatal(err)
			}
			cmd.Wait() // always an error
			for _, fd := range fds {
				if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int((10 * time.Second).Milliseconds())); n != 1 {
					t.Errorf("a child outlives the lab by 10 s (%v)", err)
				}
				unix.Close(fd)
			}
			all, err := filepath.Glob("/proc/[0-9]*/ns/net")
			if err != nil || len(all) == 0 {
				t.Errorf("got %d network namespaces of processes, %v; want some", len(all), err)
			}
			for _, name := range all {
				if link, _ := os.Readlink(name); link == space {
					t.Errorf("%s is still in the lab's network", name)
				}
			}
		})
	}
}

// pidfd returns a file descriptor that becomes readable when a process has ended.
func pidfd(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	return fd
}
