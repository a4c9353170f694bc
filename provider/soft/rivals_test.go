package soft

import (
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/adverb-rdma/adverb/verbs"
)

// gidFile is an entry of a GID table, as the kernel's files have it.
type gidFile struct {
	entry             string // device/port/index
	gid, typ, netdevs string
}

// writeKernel makes the files of the kernel's RDMA devices.
func writeKernel(t *testing.T, entries []gidFile) fs.FS {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if text == "" { // the kernel refuses to read the file of a free entry: so does a directory
			if err := os.Mkdir(name, 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range entries {
		device, rest := path.Split(path.Dir(e.entry))
		port := path.Join(device, "ports", rest)
		index := path.Base(e.entry)
		write(path.Join(port, "gids", index), e.gid)
		write(path.Join(port, "gid_attrs/types", index), e.typ)
		write(path.Join(port, "gid_attrs/ndevs", index), e.netdevs)
	}
	return os.DirFS(dir)
}

func TestRivals(t *testing.T) {
	const (
		v4   = "0000:0000:0000:0000:0000:ffff:0a00:0001"
		v6   = "fe80:0000:0000:0000:5054:00ff:fe00:0001"
		free = "0000:0000:0000:0000:0000:0000:0000:0000"
	)
	kernel := []gidFile{
		{"mlx5_0/1/0", v6, "IB/RoCE v1", "eth0"},
		{"mlx5_0/1/1", v6, "RoCE v2", "eth0"},
		{"mlx5_0/1/2", v4, "IB/RoCE v1", "eth0"},
		{"mlx5_0/1/3", v4, "RoCE v2", "eth0"},
		{"mlx5_0/1/4", free, "", ""},
		{"mlx5_1/1/0", v4, "IB/RoCE v1", "eth0"}, // not over UDP
		{"mlx5_2/1/0", v4, "RoCE v2", "eth1"},    // on another interface
		{"mlx5_3/1/0", v4, "RoCE v2", "eth2"},
		{"mlx5_3/2/0", v6, "RoCE v2", "eth0"}, // by its second port
		{"mlx5_4/1/0", v6, "IB/RoCE v1", ""},  // InfiniBand has no network interface here
		{"rxe0/1/0", v4, "RoCE v2", "eth0"},
		{"rxe1/1/0", "0000:0000:0000:0000:0000:ffff:0a00:0063", "RoCE v2", "eth0"}, // another namespace's eth0
	}
	ip4, ip6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fe80::5054:ff:fe00:1")
	sys := writeKernel(t, kernel)
	for _, tt := range []struct {
		netdev string
		addrs  []netip.Addr
		want   []string
	}{
		{"eth0", []netip.Addr{ip4}, []string{"mlx5_0", "rxe0"}},
		{"eth0", []netip.Addr{ip6}, []string{"mlx5_0", "mlx5_3"}},
		{"eth0", []netip.Addr{ip4, ip6}, []string{"mlx5_0", "mlx5_3", "rxe0"}},
		{"eth0", nil, nil},
		{"eth1", []netip.Addr{ip4}, []string{"mlx5_2"}},
		{"eth2", []netip.Addr{ip6}, nil},
		{"lo", []netip.Addr{ip4, ip6}, nil},
		{"eth", []netip.Addr{ip4}, nil},
	} {
		if got := rivals(sys, tt.netdev, tt.addrs); !slices.Equal(got, tt.want) {
			t.Errorf("rivals on %s with %v: got %q, want %q", tt.netdev, tt.addrs, got, tt.want)
		}
	}
	addrs := []netip.Addr{ip4}
	if got := rivals(nil, "eth0", addrs); got != nil {
		t.Errorf("rivals on a system that does not list them: got %q, want none", got)
	}
	if got := rivals(os.DirFS(filepath.Join(t.TempDir(), "absent")), "eth0", addrs); got != nil {
		t.Errorf("rivals under a kernel without RDMA: got %q, want none", got)
	}
}

// An open device tells the rivals that Devices lists for it, and has no name in the kernel.
func TestInfo(t *testing.T) {
	infos, err := verbs.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(infos) == 0 {
		t.Skip("no network interface with an address")
	}
	listed := infos[len(infos)-1]
	d, err := verbs.Open(listed.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got := d.Info()
	if !slices.Equal(got.SharesUDPPort, listed.SharesUDPPort) || got.Provider != listed.Provider || got.NodeGUID != listed.NodeGUID {
		t.Errorf("the open device is %+v, want what Devices lists: %+v", got, listed)
	}
	if got.KernelName != "" || got.KernelDevice != "" {
		t.Errorf("a software device has names %q and %q in the kernel, want none", got.KernelName, got.KernelDevice)
	}
	if _, err := d.GSI(); err != nil {
		t.Errorf("the GSI of the open device: %v, want no error", err)
	}
}
