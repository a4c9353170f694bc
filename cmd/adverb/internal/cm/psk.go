package cm

import (
	"bytes"
	"fmt"
	"io"

	"github.com/adverb-rdma/adverb/cmd/adverb/internal/cli"
	"github.com/adverb-rdma/adverb/cmd/adverb/internal/clib"
	"github.com/adverb-rdma/adverb/internal/secure"
	"github.com/adverb-rdma/adverb/rdmacm"
)

// PSKFlag is a flag of ours. The programs have it whose connections are the connection manager's.
var PSKFlag = cli.Flag{Long: "psk", Arg: "<file>", Ours: true, Values: cli.Files,
	Help: "encrypt all packets; <file> has the key, at both ends the same"}

// maxPSKFile is more than any key has, in bytes. A longer file is another one, given by mistake.
const maxPSKFile = 64 << 10

// ReadPSK reads a key: all that is in the file, but for space at its end. The file must be a regular one that nobody else
// may write or replace, so that nobody else chooses the key.
func ReadPSK(file string) (*rdmacm.Security, error) {
	key, err := readKey(file)
	if err != nil {
		return nil, fmt.Errorf("read the pre-shared key of --psk: %w", err)
	}
	return &rdmacm.Security{PSK: key}, nil
}

func readKey(file string) ([]byte, error) {
	f, err := clib.OpenRegular(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkWriters(f, file); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPSKFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxPSKFile {
		return nil, fmt.Errorf("%s has more than %d bytes: is it another file?", file, maxPSKFile)
	}
	key := bytes.TrimRight(b, " \t\r\n")
	if len(key) < secure.MinPSK {
		return nil, fmt.Errorf("%s has %d bytes, want %d at least: \"openssl rand -hex 32\" prints a key", file, len(key), secure.MinPSK)
	}
	return key, nil
}
