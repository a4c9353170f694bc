package main

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Files of the tree that name a version.
const (
	changelog = "CHANGELOG.md"
	promMod   = "adverbprom/go.mod"
	apiNext   = "api/next.txt"
	apiExcept = "api/except.txt"
)

var (
	// versions are those that a release may have. A version 2 would need another module path.
	versions   = regexp.MustCompile(`^v[01]\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9a-z.-]+)?$`)
	dates      = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
	unreleased = "\n## Unreleased\n"
	require    = regexp.MustCompile(`(?m)^(\s*github\.com/adverb-rdma/adverb )v\S+$`)
)

func valid(version string) error {
	if !versions.MatchString(version) {
		return fmt.Errorf("%q is no version such as v0.1.0", version)
	}
	return nil
}

func apiOf(version string) string { return "api/" + version + ".txt" }

// prepare writes a version into the tree: the heading of CHANGELOG.md, the file of the API, and what adverbprom
// requires. It refuses what is there already.
func prepare(tree fs.FS, version, date string, write func(name, text string) error) error {
	if err := valid(version); err != nil {
		return err
	}
	if !dates.MatchString(date) {
		return fmt.Errorf("%q is no date such as 2026-12-31", date)
	}
	text := map[string]string{}
	for _, name := range []string{changelog, promMod, apiNext, apiExcept} {
		b, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		text[name] = string(b)
	}
	if _, err := fs.Stat(tree, apiOf(version)); err == nil {
		return fmt.Errorf("%s is there already: is %s released?", apiOf(version), version)
	}
	before, after, ok := strings.Cut(text[changelog], unreleased)
	switch {
	case !ok:
		return fmt.Errorf("%s has no section Unreleased: what is new in %s?", changelog, version)
	case len(require.FindAllString(text[promMod], -1)) != 1:
		return fmt.Errorf("%s does not require this module once", promMod)
	}
	return errors.Join(
		write(changelog, before+unreleased+"\nNothing yet.\n\n## "+version+", "+date+"\n"+after),
		write(apiOf(version), text[apiNext]),
		write(apiExcept, head(strings.SplitAfter(text[apiExcept], "\n"))),
		write(promMod, require.ReplaceAllString(text[promMod], "${1}"+version)),
	)
}

// head returns the comment that begins the list of exceptions, which is what a release leaves of it.
func head(lines []string) string {
	n := 0
	for n < len(lines) && strings.HasPrefix(lines[n], "#") {
		if n++; strings.Contains(lines[n-1], "A release empties this file.") {
			break
		}
	}
	return strings.Join(lines[:n], "")
}

// check reports where the tree does not name a version that is to be released.
func check(tree fs.FS, version string) error {
	if err := valid(version); err != nil {
		return err
	}
	read := func(name string) string {
		b, err := fs.ReadFile(tree, name)
		if err != nil {
			return ""
		}
		return string(b)
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := notes(tree, version); err != nil {
		errs = append(errs, err)
	}
	if api := read(apiOf(version)); api == "" || api != read(apiNext) {
		fault("%s is not what %s is", apiOf(version), apiNext)
	}
	if m := require.FindString(read(promMod)); !strings.HasSuffix(m, " "+version) {
		fault("%s does not require %s of this module", promMod, version)
	}
	if len(errs) > 0 {
		fault("make prepare VERSION=%s writes these: commit them, and tag that commit", version)
	}
	return errors.Join(errs...)
}

// notes returns a version's section of CHANGELOG.md, without its heading.
func notes(tree fs.FS, version string) (string, error) {
	b, err := fs.ReadFile(tree, changelog)
	if err != nil {
		return "", err
	}
	_, text, ok := strings.Cut(string(b), "\n## "+version+", ")
	if !ok {
		return "", fmt.Errorf("%s has no section %s", changelog, version)
	}
	_, text, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, "\n## ")
	if text = strings.TrimSpace(text); text == "" {
		return "", fmt.Errorf("the section %s of %s is empty", version, changelog)
	}
	return text + "\n", nil
}
