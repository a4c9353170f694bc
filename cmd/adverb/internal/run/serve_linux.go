//go:build amd64 || arm64

package run

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/adverb-rdma/adverb/internal/supervisor"
	"github.com/adverb-rdma/adverb/internal/ucma"
	"github.com/adverb-rdma/adverb/internal/uverbs"
	"github.com/adverb-rdma/adverb/verbs"
)

// netlinkRDMA is NETLINK_RDMA. Where it is not, libibverbs looks into sysfs.
const netlinkRDMA = 20

// rules are those of the filter, beside the calls on devices.
var rules = []supervisor.Rule{{
	Number: unix.SYS_SOCKET,
	If:     []supervisor.Arg{{Index: 0, Mask: ^uint32(0), Value: unix.AF_NETLINK}, {Index: 2, Mask: ^uint32(0), Value: netlinkRDMA}},
	Errno:  unix.EPROTONOSUPPORT,
}}

// Serve is the supervisor's process of a run. If another run serves already, this run hands its target over to it.
func Serve(s *supervisor.Session) error {
	t, err := supervisor.NewTree("/sys/class/infiniband_verbs", "/sys/class/infiniband", "/sys/class/misc/rdma_cm", "/dev/infiniband")
	if err != nil {
		return err
	}
	r, err := newRun(s.Program.Options, os.Stderr)
	if err != nil {
		return err
	}
	if err := errors.Join(r.files(t), r.nodes(t)); err != nil {
		return err
	}
	l, err := s.Start(supervisor.Filter{Rules: rules, Map: r.memory.maps}, t)
	if err != nil {
		return err
	}
	name := shareName()
	for range shareTries {
		shared, err := supervisor.Share(name, serveGuest)
		switch {
		case err == nil:
			s.Outlive(shared)
			err = r.serve(l, t)
			s.Finish(shared, err)
			return err
		case !errors.Is(err, supervisor.ErrShared):
			return r.serve(l, t)
		}
		if joined, err := s.Join(name, l, t, r.options()); joined {
			return err
		}
	}
	r.logf("no other run can serve this one, which is slower where the two talk to each other: see adverb run --check")
	return r.serve(l, t)
}

// shareTries is how often a run looks for another that serves. The other may end between two looks.
const shareTries = 3

// serveGuest serves the target of another run.
func serveGuest(g supervisor.Guest) error {
	r, err := newRun(g.Options, g.Stderr)
	if err == nil {
		err = r.nodes(g.Tree)
	}
	if err != nil {
		g.Listener.Close()
		return err
	}
	return r.serve(g.Listener, g.Tree)
}

// shareName is the name by which runs share a supervisor: runs of one binary, which see the same files and processes, as the
// same user, with the same settings, rights and limits. They are of one service, so that the end of a service ends no other one's
// programs. The network namespace has its own names.
func shareName() string {
	h := sha256.New()
	var st unix.Stat_t
	for _, p := range []string{"/proc/self/exe", "/proc/self/root"} {
		if err := unix.Stat(p, &st); err == nil {
			fmt.Fprintln(h, st.Dev, st.Ino, st.Mtim)
		}
	}
	for _, p := range []string{"mnt", "pid", "user", "ipc"} {
		ns, _ := os.Readlink("/proc/self/ns/" + p)
		fmt.Fprintln(h, ns)
	}
	fmt.Fprintln(h, os.Geteuid(), os.Getegid())
	cgroups, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(cgroups)) {
		if strings.HasPrefix(line, "0::") || strings.Contains(line, ":name=systemd:") { // a service's
			fmt.Fprint(h, line)
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "CapEff:") || strings.HasPrefix(line, "Seccomp") {
			fmt.Fprint(h, line)
		}
	}
	for _, resource := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA, unix.RLIMIT_FSIZE, unix.RLIMIT_NOFILE, unix.RLIMIT_MEMLOCK} {
		var limit unix.Rlimit
		_ = unix.Getrlimit(resource, &limit)
		fmt.Fprintln(h, limit.Max)
	}
	env := os.Environ()
	slices.Sort(env)
	for _, v := range env {
		if strings.HasPrefix(v, "ADVERB_") || strings.HasPrefix(v, "GO") {
			fmt.Fprintln(h, v)
		}
	}
	return "adverb/run/" + hex.EncodeToString(h.Sum(nil)[:16])
}

// softProvider registers the devices that programs are shown.
const softProvider = "soft"

// served is a run, as the supervisor that serves it has it.
type served struct {
	names   []string // of the devices
	verbose bool
	stderr  io.Writer
	cm      connections
	memory  memory
}

// newRun makes a run by the options of its program.
func newRun(options []string, stderr io.Writer) (*served, error) {
	r := &served{stderr: stderr}
	r.memory.run, r.memory.maps = r, !slices.Contains(options, copiesOption)
	for _, o := range options {
		if name, ok := strings.CutPrefix(o, deviceOption); ok {
			r.names = append(r.names, name)
		}
		r.verbose = r.verbose || o == verboseOption
	}
	if len(r.names) == 0 {
		infos, err := verbs.Devices()
		if err != nil {
			return nil, err
		}
		for _, i := range infos {
			if i.Provider == softProvider && i.Transport == verbs.TransportIB { // rxe's provider speaks RoCE
				r.names = append(r.names, i.Name)
			}
		}
	}
	r.cm.run = r
	return r, nil
}

// options are those by which another supervisor serves the run. They name the devices that the tree shows: the other might find other
// ones by now.
func (r *served) options() (list []string) {
	for _, name := range r.names {
		list = append(list, deviceOption+name)
	}
	if r.verbose {
		list = append(list, verboseOption)
	}
	if !r.memory.maps {
		list = append(list, copiesOption)
	}
	return list
}

// logf tells of calls that fail, if the user has asked for that.
func (r *served) logf(format string, args ...any) {
	if r.verbose {
		fmt.Fprintf(r.stderr, "adverb run: "+format+"\n", args...)
	}
}

// serve answers the target's calls until its last process has ended.
func (r *served) serve(l *supervisor.Listener, t *supervisor.Tree) error {
	defer r.cm.close()
	supervisor.RaiseFileSize() // after the program has begun, whose limit stays
	sup, err := supervisor.New(l, supervisor.Config{Tree: t, Map: r.memory.maps, Logf: r.logf})
	if err != nil {
		l.Close()
		return err
	}
	return sup.Serve()
}

// files makes the files of the devices, and of the connection manager.
func (r *served) files(t *supervisor.Tree) error {
	files := uverbs.ABIFiles()
	maps.Copy(files, ucma.Sysfs(miscMajor, cmMinor))
	for i, name := range r.names {
		n := uverbs.Node{Name: uverbs.NodeName(name), Index: i}
		dev, err := verbs.Open(name)
		if err != nil {
			return err
		}
		of, err := n.Files(dev)
		dev.Close()
		if err != nil {
			return err
		}
		maps.Copy(files, of)
	}
	return t.Files(files)
}

// nodes makes the nodes of the devices, and of the connection manager.
func (r *served) nodes(t *supervisor.Tree) error {
	for i, name := range r.names {
		n := uverbs.Node{Name: uverbs.NodeName(name), Index: i}
		if err := t.Node(n.Path(), supervisor.Node{Device: verbsDevice{r, name}, Major: uverbs.Major, Minor: uint32(n.Minor())}); err != nil {
			return err
		}
	}
	return t.Node(cmPath, supervisor.Node{Device: cmDevice{r}, Major: miscMajor, Minor: cmMinor})
}

// connections is the connection manager of a run, with the devices that it uses. Most programs need none.
type connections struct {
	run *served

	mu      sync.Mutex
	manager *ucma.Manager // nil before its first use
	devices []*verbs.Device
	forget  func() // whose they are
}

// get returns the manager. Its devices count as those of the process that needed it first.
func (c *connections) get(by *supervisor.Call) (*ucma.Manager, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.manager != nil {
		return c.manager, nil
	}
	for _, name := range c.run.names[len(c.devices):] {
		dev, err := verbs.Open(name)
		if err != nil {
			return nil, err
		}
		c.devices = append(c.devices, dev)
	}
	var err error
	if c.forget, err = openedBy(by, c.devices...); err != nil {
		return nil, err
	}
	c.manager = ucma.New(ucma.Config{Devices: c.devices})
	return c.manager, nil
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.manager != nil {
		if err := c.manager.Close(); err != nil {
			c.run.logf("close the connection manager: %v", err)
		}
		c.forget()
	}
	for _, d := range c.devices {
		if err := d.Close(); err != nil {
			c.run.logf("close %s: %v", d.Name(), err)
		}
	}
}
