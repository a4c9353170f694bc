package lab

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"path"
	"strings"
)

// packages are the names of the packages that the lab needs. Apt-get adds the packages that these
// depend on.
var packages = []string{
	"linux-image-amd64", // the kernel of the cloud flavour has no rdma_rxe
	"busybox-static",
	"bash",
	"coreutils",
	"iproute2", // ip and rdma
	"ibverbs-utils",
	"rdmacm-utils",
	"perftest",
	"python3-pyverbs",
	"qemu-system-x86",
	"xz-utils", // for the kernel and its modules, like zstd
	"zstd",
}

// buildPackages are what siw is built with, since Debian's kernels come without it. Their versions
// must be that of linux-image-amd64. Debian releases them together.
var buildPackages = []string{
	"linux-headers-amd64", // depends on the compiler that built the kernel
	"linux-source",
	"make",
	"busybox-static", // the other programs that a build runs
	"dash",
	"xz-utils",
}

// modules are the kernel modules that a guest loads, in this order. Each comes after those that it
// depends on. The modules of the guest's RDMA device come last.
var modules = []string{
	"virtio_pci",
	"virtio_net",
	"9pnet_virtio",
	"9p",
	"ib_uverbs",
	"rdma_ucm",
}

// These are types of RDMA devices, as "rdma link add" spells them. The list of modules for each
// begins with a checksum. The device's module asks for it by the name of the algorithm, so no list
// of dependencies shows it.
const (
	deviceRxe = "rxe"
	deviceSiw = "siw"
)

var deviceModules = map[string][]string{
	deviceRxe: {"crc32_generic", "rdma_rxe"},
	deviceSiw: {"crc32c_generic", "siw"},
}

// moduleDirs are the directories below kernel/ whose modules are unpacked.
var moduleDirs = []string{"crypto", "lib", "net", "drivers/infiniband", "drivers/net", "drivers/virtio", "fs"}

// builtinFile is the name of the file that lists the modules linked into a kernel. They have no
// files of their own.
const builtinFile = "modules.builtin"

// unwanted are files and directories below the root that no guest reads.
var unwanted = []string{
	"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/perl",
	"usr/share/i18n", "usr/share/zoneinfo", "usr/share/iso-codes", "usr/share/xml", "usr/share/icons",
	"usr/share/bash-completion", "usr/share/lintian", "usr/share/common-licenses",
	"usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/udev", "usr/lib/systemd",
	"boot/System.map",
}

//go:embed init.sh
var initScript []byte

// recipeVersion is part of the cache's key. Raise it when prepare makes something else of the
// same packages.
const recipeVersion = 3

// recipeKey returns a name for the image that prepare makes of archives. Their file names contain
// their versions.
func recipeKey(archives []string) string {
	h := sha256.New()
	fmt.Fprintln(h, recipeVersion, moduleDirs, unwanted)
	for _, a := range archives {
		fmt.Fprintln(h, a)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// treePath returns the place in the tree for a file of a package, or "" if the file is to be left
// out. Some packages still use the old names of directories that Debian has merged into usr.
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

// below reports whether name is one of the paths, or lies below one.
func below(name string, paths []string) bool {
	for _, p := range paths {
		if rest, ok := strings.CutPrefix(name, p); ok && (rest == "" || rest[0] == '/' || rest[0] == '-') {
			return true
		}
	}
	return false
}
