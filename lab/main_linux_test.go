package lab

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

const (
	labEnv   = "ADVERB_LAB"
	required = "require"
)

var (
	keepFlag   = flag.String("keep", "", "directory to write a capture of each scenario to")
	updateFlag = flag.Bool("update", false, "write the results into README.md")
	cardsFlag  = flag.Bool("cards", false, "run the scenarios of cards too, which take some 30 minutes more")
)

func TestMain(m *testing.M) {
	flag.StringVar(&Release, "release", "", "Debian release of the guests, such as trixie (default this system's)")
	flag.Parse()
	switch mode := os.Getenv(labEnv); {
	case os.Getenv(bystanderEnv) != "":
		os.Exit(bystander())
	case mode == required:
		// If something is missing, the run fails with one message. Skipping every test would hide
		// the lack.
		if err := ready(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case mode != "":
		fmt.Fprintf(os.Stderr, "%s=%s: want %q, or no such variable\n", labEnv, mode, required)
		os.Exit(2)
	}
	code := m.Run()
	networks.close()
	results.report(os.Stderr)
	// After a failure README.md cannot be right. With -update it is written even so, and then shows
	// the failure.
	if os.Getenv(labEnv) == required && (code == 0 || *updateFlag) {
		if err := results.finish("README.md", *updateFlag, *cardsFlag); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func ready() error {
	if _, err := exec.LookPath("tshark"); err != nil {
		return fmt.Errorf("start lab: %w: it checks the packets of each scenario (apt-get install tshark)", err)
	}
	return Enter()
}

// needLab skips a test unless there is a lab.
func needLab(t *testing.T) {
	t.Helper()
	if os.Getenv(labEnv) == "" {
		t.Skip("needs a kernel peer in a virtual machine: make lab, as root on Debian")
	}
}

// mtus are the MTUs of the shared labs. Each MTU has a lab of its own.
var mtus = []int{1500, 9000}

// networks are the labs that the scenarios share. Both boot when a test first needs one of them.
var networks sharedLabs

type sharedLabs struct {
	once sync.Once
	labs map[int]*startedLab
}

type startedLab struct {
	lab  *Lab
	err  error
	done chan struct{}
}

// network returns the shared lab with an MTU.
func network(t *testing.T, mtu int) *Lab {
	t.Helper()
	needLab(t)
	s := &networks
	s.once.Do(func() {
		s.labs = make(map[int]*startedLab)
		for _, mtu := range mtus {
			started := &startedLab{done: make(chan struct{})}
			s.labs[mtu] = started
			started.lab, started.err = newLab(context.Background(), Config{MTU: mtu})
			go func() {
				defer close(started.done)
				if started.err == nil {
					started.err = started.lab.boot(context.Background())
				}
			}()
		}
	})
	started := s.labs[mtu]
	<-started.done
	if started.err != nil {
		t.Fatal(started.err)
	}
	return started.lab
}

// ownLab starts a lab for one test. The lab is closed at the end of the test.
func ownLab(ctx context.Context, t *testing.T, cfg Config) *Lab {
	t.Helper()
	l, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, l)
	return l
}

// closeAtEnd closes c at the end of the test.
func closeAtEnd(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (s *sharedLabs) close() {
	for _, started := range s.labs {
		<-started.done
		if started.err == nil {
			started.lab.Close()
		}
	}
}

// tail returns the last lines of a text.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
