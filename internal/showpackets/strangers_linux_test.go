package showpackets

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/user"
	"github.com/adverb-rdma/adverb/internal/user/usertest"
)

// A capture goes into no file of another user, who may read it there, nor into a file of somebody who cannot be told from
// this user. A file that did not exist is this user's.
func TestCaptureStrangers(t *testing.T) {
	const envFile = "ADVERB_TEST_FILE"
	for _, tt := range []struct {
		name   string
		change []func(*testing.T, *exec.Cmd)
		want   string
	}{
		{"user", []func(*testing.T, *exec.Cmd){usertest.As(usertest.Somebody)}, "belongs to another user"},
		{"nobody", []func(*testing.T, *exec.Cmd){usertest.Namespace([2]int{usertest.Nobody, 1}), usertest.As(usertest.Nobody)}, user.ErrUnmapped.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			theirs := os.Getenv(envFile)
			if !usertest.Inside(t) {
				usertest.NeedsRoot(t)
				dir, err := os.MkdirTemp("", "captures")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(dir)
				theirs = filepath.Join(dir, "packets.pcapng")
				const stranger = 23456
				if err := errors.Join(os.WriteFile(theirs, nil, 0o666), os.Chmod(theirs, 0o666), os.Chown(theirs, stranger, stranger), os.Chmod(dir, 0o777)); err != nil {
					t.Fatal(err)
				}
				t.Setenv(envFile, theirs)
			}
			if !usertest.In(t, tt.change...) {
				return
			}
			if f, err := open(theirs); err == nil {
				f.Close()
				t.Error("a capture goes into a stranger's file, want an error")
			} else if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("a stranger's file: %v, want %q", err, tt.want)
			}
			f, err := open(filepath.Join(filepath.Dir(theirs), "new.pcapng"))
			if err != nil {
				t.Fatalf("a new file: %v", err)
			}
			f.Close()
		})
	}
}
