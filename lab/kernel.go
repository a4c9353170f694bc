package lab

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// kernelPayload returns the compressed vmlinux in a bzImage, and the name of the program that
// uncompresses it. QEMU can start a vmlinux at its PVH entry. A bzImage would be uncompressed by
// the guest, which takes seconds under emulation.
func kernelPayload(bzImage []byte) (payload []byte, program string, err error) {
	const ( // as the x86 boot protocol defines them
		offSetupSects    = 0x1f1
		offMagic         = 0x202
		offPayloadOffset = 0x248
		offPayloadLength = 0x24c
		headerEnd        = 0x250
		sector           = 512
		sizeTrailer      = 4 // the uncompressed size follows the stream
	)
	if len(bzImage) < headerEnd || string(bzImage[offMagic:offMagic+4]) != "HdrS" {
		return nil, "", errors.New("read kernel: not a bzImage")
	}
	setup := int64(bzImage[offSetupSects])
	if setup == 0 {
		setup = 4
	}
	from := (setup+1)*sector + int64(binary.LittleEndian.Uint32(bzImage[offPayloadOffset:]))
	n := int64(binary.LittleEndian.Uint32(bzImage[offPayloadLength:]))
	if n < sizeTrailer || from+n > int64(len(bzImage)) {
		return nil, "", fmt.Errorf("read kernel: payload of %d bytes at %d in a file of %d", n, from, len(bzImage))
	}
	payload = bzImage[from : from+n-sizeTrailer]
	for program, magic := range map[string]string{"xz": "\xfd7zXZ\x00", "zstd": "\x28\xb5\x2f\xfd"} { // Debian 12, 13
		if bytes.HasPrefix(payload, []byte(magic)) {
			return payload, program, nil
		}
	}
	return nil, "", fmt.Errorf("read kernel: payload begins with %x, as neither xz nor zstd does", payload[:min(6, len(payload))])
}

// moduleName returns a module's name. File names may have dashes where the module's name has
// underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// moduleDepends returns the names of the modules that must be loaded before the given one.
func moduleDepends(ko []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// loadOrder returns the wanted modules with their dependencies. Each module comes once, and after
// all that it depends on.
func loadOrder(wanted []string, depends func(name string) ([]string, error)) (order []string, err error) {
	seen := make(map[string]bool)
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		before, err := depends(name)
		if err != nil {
			return err
		}
		for _, d := range before {
			if err := visit(d); err != nil {
				return fmt.Errorf("%s needs %w", name, err)
			}
		}
		order = append(order, name)
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, fmt.Errorf("order kernel modules: %w", err)
		}
	}
	return order, nil
}
