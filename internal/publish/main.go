// Command publish makes what a release has beside its programs. CONTRIBUTING.md says how a release is made.
//
//	publish prepare VERSION DATE          writes the version where the tree has to name it, for a commit
//	publish check VERSION                 fails unless the tree names the version wherever it has to
//	publish notes VERSION                 prints the version's section of CHANGELOG.md
//	publish stamped VERSION FILE...       fails unless the programs know their version
//	publish sbom VERSION TIME FILE...     prints a bill of materials of programs, in CycloneDX's JSON
//
// It runs in the root of the repository. TIME is in RFC 3339.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("want prepare VERSION DATE, check VERSION, notes VERSION, stamped VERSION FILE... or sbom VERSION TIME FILE... as arguments")

func run(args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	command, version, rest := args[0], args[1], args[2:]
	switch {
	case command == "prepare" && len(rest) == 1:
		return prepare(os.DirFS("."), version, rest[0], func(name, text string) error { return os.WriteFile(name, []byte(text), 0o644) })
	case command == "check" && len(rest) == 0:
		return check(os.DirFS("."), version)
	case command == "notes" && len(rest) == 0:
		text, err := notes(os.DirFS("."), version)
		fmt.Print(text)
		return err
	case command == "stamped" && len(rest) > 0:
		var errs []error
		for _, name := range rest {
			errs = append(errs, stamped(name, version))
		}
		return errors.Join(errs...)
	case command == "sbom" && len(rest) > 1:
		at, err := time.Parse(time.RFC3339, rest[0])
		if err != nil {
			return err
		}
		b, err := sbom(version, at, rest[1:])
		if err != nil {
			return err
		}
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", " ")
		return e.Encode(b)
	}
	return errUsage
}
