package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// bom is a bill of materials in CycloneDX 1.6's JSON: what is in the programs of a release. It has what this project
// can vouch for, and no more: modules with their versions and sums, Go's library, and the files with their hashes.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"` // application, library or file
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Licenses   []licenses `json:"licenses,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type licenses struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// license is that of this project.
const license = "Apache-2.0"

// purl is the package URL of a module. Its form has lower case only.
func purl(path, version string) string { return "pkg:golang/" + strings.ToLower(path) + "@" + version }

// sbom makes the bill of materials of programs. version is the release's, and at its time. The same programs make the
// same bill.
func sbom(version string, at time.Time, files []string) (*bom, error) {
	b := &bom{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{Timestamp: at.Format(time.RFC3339)}}
	modules := map[string]component{}
	for _, name := range files {
		info, err := buildinfo.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read what %s was built from: %w", name, err)
		}
		main := module(info.Main.Path, version, "")
		main.Type = "application"
		main.Licenses = make([]licenses, 1)
		main.Licenses[0].License.ID = license
		if b.Metadata.Component.Ref != "" && b.Metadata.Component.Ref != main.Ref {
			return nil, fmt.Errorf("%s is of the module %s, and others are of %s: programs of one module are needed", name, main.Ref, b.Metadata.Component.Ref)
		}
		b.Metadata.Component = main
		f, err := file(name)
		if err != nil {
			return nil, err
		}
		parts := []component{module("std", strings.TrimPrefix(info.GoVersion, "go"), "")}
		for _, m := range info.Deps {
			if m.Replace != nil {
				return nil, fmt.Errorf("%s has %s in place of %s: a release replaces no module", name, m.Replace.Path, m.Path)
			}
			parts = append(parts, module(m.Path, m.Version, m.Sum))
		}
		d := dependency{Ref: f.Ref}
		for _, p := range parts {
			modules[p.Ref] = p
			d.DependsOn = append(d.DependsOn, p.Ref)
		}
		slices.Sort(d.DependsOn)
		b.Components, b.Dependencies = append(b.Components, f), append(b.Dependencies, d)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("make a bill of materials: no program is named")
	}
	all := dependency{Ref: b.Metadata.Component.Ref}
	for ref, m := range modules {
		b.Components = append(b.Components, m)
		all.DependsOn = append(all.DependsOn, ref)
		b.Dependencies = append(b.Dependencies, dependency{Ref: ref, DependsOn: []string{}})
	}
	slices.Sort(all.DependsOn)
	b.Dependencies = append(b.Dependencies, all)
	slices.SortFunc(b.Components, func(x, y component) int { return strings.Compare(x.Ref, y.Ref) })
	slices.SortFunc(b.Dependencies, func(x, y dependency) int { return strings.Compare(x.Ref, y.Ref) })
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	b.Serial = serial(text)
	return b, b.check()
}

func module(path, version, sum string) component {
	c := component{Type: "library", Ref: purl(path, version), Name: path, Version: version, PURL: purl(path, version)}
	if sum != "" {
		c.Properties = []property{{"go.sum", sum}}
	}
	return c
}

func file(name string) (component, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return component{}, err
	}
	sum := sha256.Sum256(text)
	base := filepath.Base(name)
	return component{Type: "file", Ref: "file:" + base, Name: base, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}}, nil
}

// serial is a UUID that follows from the text: of version 8, whose bits are of one's own choice.
func serial(text []byte) string {
	u := sha256.Sum256(text)
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// check returns what is wrong with a bill: the parts that a JSON schema cannot see.
func (b *bom) check() error {
	refs := map[string]bool{b.Metadata.Component.Ref: true}
	for _, c := range b.Components {
		if refs[c.Ref] {
			return fmt.Errorf("bill of materials: %s is there twice", c.Ref)
		}
		refs[c.Ref] = true
		if c.Type == "library" && (c.Version == "" || c.Version == "(devel)") {
			return fmt.Errorf("bill of materials: the version of %s is not known", c.Name)
		}
	}
	of := map[string]bool{}
	for _, d := range b.Dependencies {
		for _, r := range append(d.DependsOn, d.Ref) {
			if !refs[r] {
				return fmt.Errorf("bill of materials: %s is named, and is no component", r)
			}
		}
		of[d.Ref] = true
	}
	for r := range refs {
		if !of[r] {
			return fmt.Errorf("bill of materials: what %s depends on is missing", r)
		}
	}
	return nil
}

// stamped checks that a program knows the version that it is released as.
func stamped(name, version string) error {
	info, err := buildinfo.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read what %s was built from: %w", name, err)
	}
	if info.Main.Version != version || modified(info) {
		return fmt.Errorf("%s says that it is %s, and is to be %s: build it from a clean checkout of the tag %s, without -buildvcs=false",
			name, info.Main.Version, version, version)
	}
	return nil
}

func modified(info *debug.BuildInfo) bool {
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.modified" && s.Value == "true" })
}
