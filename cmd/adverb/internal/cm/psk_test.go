package cm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/rdmacm"
)

func TestReadPSK(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(" 0123456789abcdef\r\n")
	s, err := ReadPSK(file)
	if err != nil || string(s.PSK) != " 0123456789abcdef" {
		t.Errorf("got %+v, %v, want the file without the end of the line", s, err)
	}
	id, err := rdmacm.NewID(rdmacm.NewEventChannel(), rdmacm.PortSpaceTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := id.SetSecurity(&rdmacm.Security{PSK: make([]byte, secure.MinPSK)}); err != nil {
		t.Errorf("a key of %d bytes: got error %v, want none", secure.MinPSK, err)
	}
	write("0123456789abcde\n\n")
	if _, err := ReadPSK(file); err == nil || !strings.Contains(err.Error(), "15 bytes, want 16") {
		t.Errorf("a short key: got error %v, want the lengths", err)
	}
	write(strings.Repeat("0", maxPSKFile))
	if s, err := ReadPSK(file); err != nil || len(s.PSK) != maxPSKFile {
		t.Errorf("a key as long as can be: got error %v, want none", err)
	}
	write(strings.Repeat("0", maxPSKFile+1))
	if _, err := ReadPSK(file); err == nil || !strings.Contains(err.Error(), "is it another file?") {
		t.Errorf("a file that is no key: got error %v, want its length", err)
	}
	if _, err := ReadPSK(file + "x"); err == nil || !strings.Contains(err.Error(), "--psk") {
		t.Errorf("no file: got error %v, want --psk named", err)
	}
}
