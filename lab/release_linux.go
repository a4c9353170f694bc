package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Release is the Debian release that the guests are made of, such as "trixie". "" is that of this
// system, whose lists of packages apt-get has. Set it before Enter. Config.Release makes an exception.
var Release string

// listsLast is how long the lists of a release's packages are good for.
const listsLast = 24 * time.Hour

// Debian's keys, and what names this system's release.
const (
	keyring   = "/usr/share/keyrings/debian-archive-keyring.gpg"
	osRelease = "/etc/os-release"
)

// checkRelease refuses a text that is no release's name, since the name becomes the name of a
// directory.
func checkRelease(release string) error {
	if strings.Trim(release, "abcdefghijklmnopqrstuvwxyz") != "" {
		return fmt.Errorf("release %q: Debian's releases have names such as bookworm and trixie", release)
	}
	return nil
}

// sourcesFile is the file with a release's sources in apt-get's directory.
const sourcesFile = "release.sources"

// releaseOptions returns apt-get's options for the lists of a release by name, which updateRelease has put
// below dir. For this system's release there are none.
func releaseOptions(dir string) []string {
	if _, err := os.Stat(filepath.Join(dir, sourcesFile)); err != nil {
		return nil
	}
	return []string{
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(dir, sourcesFile),
		"-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + filepath.Join(dir, "lists"),
	}
}

// updateRelease fetches the lists of packages of a release by name, unless they are new. dir is
// apt-get's.
func updateRelease(ctx context.Context, dir, release string) error {
	if release == "" {
		return nil
	}
	if _, err := os.Stat(keyring); err != nil {
		return fmt.Errorf("packages of %s: %w (apt-get install debian-archive-keyring)", release, err)
	}
	stamp := filepath.Join(dir, "updated")
	if info, err := os.Stat(stamp); err == nil && time.Since(info.ModTime()) < listsLast {
		return nil
	}
	if err := os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755); err != nil {
		return err
	}
	sources, err := sourcesOf(ctx, release)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, sourcesFile), []byte(sources), 0o644); err != nil {
		return err
	}
	if _, err := apt(ctx, dir, "update", "-o", "APT::Update::Error-Mode=any"); err != nil {
		return err
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// sourcesOf returns apt's sources of a release, of this system's own where the name is empty.
func sourcesOf(ctx context.Context, release string) (string, error) {
	own, err := os.ReadFile(osRelease)
	if err != nil {
		return "", err
	}
	list, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(ORIGIN) $(CREATED_BY) $(COMPONENT) $(REPO_URI) $(RELEASE)").Output()
	if err != nil {
		return "", fmt.Errorf("list apt's sources: %w", err)
	}
	if release == "" {
		release = codename(string(own))
	}
	return releaseSources(release, string(own), string(list))
}

// releaseSources returns apt's sources of a release: those of this system, with one name in place of the
// other. own is the text of os-release, and list is the output of apt-get indextargets.
func releaseSources(release, own, list string) (string, error) {
	codename := codename(own)
	var sources strings.Builder
	for line := range strings.Lines(list) {
		f := strings.Fields(line)
		if len(f) != 5 || f[0] != "Debian" || f[1] != "Packages" || f[2] != "main" {
			continue
		}
		if suite, ok := strings.CutPrefix(f[4], codename); ok && codename != "" { // bookworm, bookworm-updates, bookworm-security
			fmt.Fprintf(&sources, "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n", f[3], release+suite, keyring)
		}
	}
	if sources.Len() == 0 {
		return "", fmt.Errorf("packages of %s: apt has no source of %q, this system's release, whose mirror could serve: is this Debian, and has apt-get update run?", release, codename)
	}
	return sources.String(), nil
}

// codename returns the name of this system's release, by the text of os-release.
func codename(own string) (codename string) {
	for line := range strings.Lines(own) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			codename = strings.Trim(name, `"`)
		}
	}
	return codename
}

// releaseImages are the images of releases by name, which are made when the first guest of one is.
var releaseImages struct {
	sync.Mutex
	made map[string]*image
}

// releaseImage returns the image of a release. That of the variable Release is there when the lab has been entered.
func releaseImage(ctx context.Context, release string) (*image, error) {
	if release == "" || release == Release {
		return imageAt(os.Getenv(imageEnv)), nil
	}
	r := &releaseImages
	r.Lock()
	defer r.Unlock()
	if img := r.made[release]; img != nil {
		return img, nil
	}
	img, err := prepare(ctx, release)
	if err == nil {
		err = img.writeInitrd(os.TempDir())
	}
	if err != nil {
		return nil, fmt.Errorf("make guests of %s: %w", release, err)
	}
	if r.made == nil {
		r.made = make(map[string]*image)
	}
	r.made[release] = img
	return img, nil
}
