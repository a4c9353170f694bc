package lab

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
)

// packages are what the lab needs, by name; apt-get adds what they depend on.
var packages = []string{
	"linux-image-amd64", // not the cloud flavour: that kernel has no rdma_rxe
	"busybox-static",
	"bash",
	"coreutils",
	"iproute2", // ip and rdma
	"ibverbs-utils",
	"rdmacm-utils",
	"perftest",
	"python3-pyverbs",
	"qemu-system-x86",
	"xz-utils", // for the kernel and its modules, as is
	"zstd",
}

// buildPackages are what siw is built with: Debian's kernels come without it. Their versions are those of
// linux-image-amd64, with which they are released.
var buildPackages = []string{
	"linux-headers-amd64", // brings the compiler of the kernel
	"linux-source",
	"make",
	"busybox-static", // what else a build runs
	"dash",
	"xz-utils",
}

// modules are what a guest loads, in this order; what they depend on comes before each, and that of its
// RDMA device after all.
var modules = []string{
	"virtio_pci",
	"virtio_net",
	"9pnet_virtio",
	"9p",
	"ib_uverbs",
	"rdma_ucm",
}

// Types of RDMA devices, as "rdma link add" spells them, and their modules. Both ask for a checksum by the name of its
// algorithm, which no list of dependencies shows.
const (
	deviceRxe = "rxe"
	deviceSiw = "siw"
)

var deviceModules = map[string][]string{
	deviceRxe: {"crc32_generic", "rdma_rxe"},
	deviceSiw: {"crc32c_generic", "siw"},
}

// moduleDirs hold the modules that are unpacked, below kernel/.
var moduleDirs = []string{"crypto", "lib", "net", "drivers/infiniband", "drivers/net", "drivers/virtio", "fs"}

// builtinFile lists the modules that are part of a kernel, which has no files of them.
const builtinFile = "modules.builtin"

// unwanted is what no guest reads, below the root.
var unwanted = []string{
	"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/perl",
	"usr/share/i18n", "usr/share/zoneinfo", "usr/share/iso-codes", "usr/share/xml", "usr/share/icons",
	"usr/share/bash-completion", "usr/share/lintian", "usr/share/common-licenses",
	"usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/udev", "usr/lib/systemd",
	"boot/System.map",
}

//go:embed init.sh
var initScript []byte

// recipeVersion is part of the cache's key: to be raised when prepare makes something else of the
// same packages.
const recipeVersion = 3

// recipeKey names what prepare makes of archives, which are file names with versions.
func recipeKey(archives []string) string {
	h := sha256.New()
	fmt.Fprintln(h, recipeVersion, moduleDirs, unwanted)
	for _, a := range archives {
		fmt.Fprintln(h, a)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// treePath returns where a file of a package goes in the tree, or "" for nowhere. Packages name
// directories that Debian has merged into usr by their old names, too.
func treePath(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if first, rest, _ := strings.Cut(name, "/"); first == "bin" || first == "sbin" || strings.HasPrefix(first, "lib") {
		name = strings.TrimSuffix("usr/"+first+"/"+rest, "/")
	}
	if rest, ok := strings.CutPrefix(name, "usr/lib/modules/"); ok {
		_, rest, _ := strings.Cut(rest, "/") // the kernel's version
		module, isModule := strings.CutPrefix(rest, "kernel/")
		if rest != builtinFile && !(isModule && below(module, moduleDirs)) {
			return ""
		}
	}
	if name == "" || below(name, unwanted) {
		return ""
	}
	return name
}

// below says whether name is one of the paths, or lies below one.
func below(name string, paths []string) bool {
	for _, p := range paths {
		if rest, ok := strings.CutPrefix(name, p); ok && (rest == "" || rest[0] == '/' || rest[0] == '-') {
			return true
		}
	}
	return false
}
