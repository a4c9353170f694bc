package adverb_test

import (
	"errors"
	"fmt"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The directory api holds what the packages for users export, a line for each name. next.txt is of this tree: a change
// of the API is a change of that file, which a reviewer reads. v0.1.0.txt and so on are of releases. What a release had
// and this tree has not is an incompatible change: of a stable package it has to be in except.txt, with its reason.
// docs/STABILITY.md says what users may rely on.
const (
	apiNext   = "api/next.txt"
	apiExcept = "api/except.txt"
)

// stable are the packages whose incompatible changes are counted. others may change in each release before version 1.
var (
	stable = []string{"verbs", "rdmacm", "rsocket", "rdmatest"}
	others = []string{"provider/soft", "rdmaio", "rdmamsg", "rdmapool", "rdmatest/cmtest", "verbs/verbstest"}
)

// forImplementers matches what those use who write a provider, which is not stable.
var forImplementers = regexp.MustCompile(`^pkg verbs, (type Provider|method \(\*?Provider|func Register\()`)

// TestAPI: next.txt is what the packages export, and breaks nothing of the last release's that is not listed.
func TestAPI(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("api/next.txt is of linux/amd64")
	}
	dirs := slices.Concat(stable, others)
	l := loadTypes(t, dirs)
	var lines []string
	for _, dir := range dirs {
		pkg, err := l.imp.Import(modulePath + "/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, exported(dir, pkg)...)
	}
	slices.Sort(lines)
	if *update {
		if err := os.WriteFile(apiNext, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written := apiFile(t, apiNext)
	for _, l := range missing(lines, written) {
		t.Errorf("%s has no line %q: run make api, and look at what it changes", apiNext, l)
	}
	for _, l := range missing(written, lines) {
		t.Errorf("%s has %q, which is no more: run make api, and look at what it changes", apiNext, l)
	}
	releases, err := filepath.Glob("api/v*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(releases) == 0 {
		t.Log("there is no release yet, so nothing can break")
	}
	for _, fault := range breaks(lastRelease(t, releases), lines, apiFile(t, apiExcept)) {
		t.Error(fault)
	}
}

// breaks returns what is wrong with the API now, as it was released, with these exceptions.
func breaks(released, now, except []string) (faults []string) {
	gone := slices.DeleteFunc(missing(released, now), func(l string) bool {
		pkg, _, _ := strings.Cut(strings.TrimPrefix(l, "pkg "), ",")
		return !slices.Contains(stable, pkg) || forImplementers.MatchString(l)
	})
	for _, l := range missing(gone, except) {
		faults = append(faults, fmt.Sprintf("%q was in the last release, and is no more: keep it, or give the reason in %s and in CHANGELOG.md", l, apiExcept))
	}
	for _, l := range missing(except, gone) {
		faults = append(faults, fmt.Sprintf("%s has %q, which breaks nothing: take it off", apiExcept, l))
	}
	return faults
}

// missing returns the lines of a that are not in b.
func missing(a, b []string) (list []string) {
	for _, l := range a {
		if !slices.Contains(b, l) {
			list = append(list, l)
		}
	}
	return list
}

// apiFile returns the lines of a file, without comments. One that is not there has none.
func apiFile(t *testing.T, name string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// lastRelease returns the lines of the file of the highest version.
func lastRelease(t *testing.T, names []string) []string {
	t.Helper()
	if len(names) == 0 {
		return nil
	}
	return apiFile(t, slices.MaxFunc(names, func(a, b string) int { return slices.Compare(versionOf(a), versionOf(b)) }))
}

func versionOf(name string) (numbers []int) {
	for _, s := range regexp.MustCompile(`\d+`).FindAllString(name, -1) {
		n, _ := strconv.Atoi(s)
		numbers = append(numbers, n)
	}
	return numbers
}

// exported returns a line for each name that a package exports: constants, variables, functions, types with their
// fields and methods. Names of parameters are left out.
func exported(dir string, pkg *types.Package) (lines []string) {
	add := func(format string, args ...any) {
		lines = append(lines, "pkg "+dir+", "+fmt.Sprintf(format, args...))
	}
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		switch obj := obj.(type) {
		case *types.Const:
			add("const %s %s = %s", name, typeText(obj.Type()), obj.Val().ExactString())
		case *types.Var:
			add("var %s %s", name, typeText(obj.Type()))
		case *types.Func:
			add("func %s%s", name, signatureText(obj.Signature()))
		case *types.TypeName:
			exportedType(obj, add)
		}
	}
	return lines
}

func exportedType(obj *types.TypeName, add func(format string, args ...any)) {
	name := obj.Name()
	if obj.IsAlias() {
		add("type %s = %s", name, typeText(types.Unalias(obj.Type())))
		return
	}
	named := obj.Type().(*types.Named)
	if n := named.TypeParams().Len(); n > 0 {
		name = strings.TrimPrefix(typeText(named), obj.Pkg().Name()+".")
	}
	switch u := named.Underlying().(type) {
	case *types.Struct:
		add("type %s struct", name)
		for f := range u.Fields() {
			switch {
			case f.Exported() && f.Embedded():
				add("type %s struct, embedded %s", name, typeText(f.Type()))
			case f.Exported():
				add("type %s struct, %s %s", name, f.Name(), typeText(f.Type()))
			}
		}
	case *types.Interface: // who implements it has to have each method, so one more breaks it
		var methods []string
		for m := range u.Methods() {
			if m.Exported() {
				methods = append(methods, m.Name()+signatureText(m.Signature()))
			} else {
				methods = append(methods, "unexported")
			}
		}
		add("type %s interface { %s }", name, strings.Join(slices.Compact(methods), "; "))
		return
	default:
		add("type %s %s", name, typeText(u))
	}
	values := types.NewMethodSet(named)
	for m := range types.NewMethodSet(types.NewPointer(named)).Methods() {
		if f := m.Obj().(*types.Func); f.Exported() {
			star := "*"
			if values.Lookup(f.Pkg(), f.Name()) != nil {
				star = ""
			}
			add("method (%s%s) %s%s", star, name, f.Name(), signatureText(m.Type().(*types.Signature)))
		}
	}
}

func byName(p *types.Package) string { return p.Name() }

func typeText(t types.Type) string { return types.TypeString(t, byName) }

// signatureText is a function's type without the word func and without names.
func signatureText(s *types.Signature) string {
	unnamed := func(vars *types.Tuple) *types.Tuple {
		var list []*types.Var
		for v := range vars.Variables() {
			list = append(list, types.NewVar(v.Pos(), v.Pkg(), "", v.Type()))
		}
		return types.NewTuple(list...)
	}
	text := strings.TrimPrefix(typeText(types.NewSignatureType(nil, nil, nil, unnamed(s.Params()), unnamed(s.Results()), s.Variadic())), "func")
	var params []string
	for p := range s.TypeParams().TypeParams() {
		params = append(params, p.Obj().Name()+" "+typeText(p.Constraint()))
	}
	if len(params) > 0 {
		text = "[" + strings.Join(params, ", ") + "]" + text
	}
	return text
}

func TestAPIBreaks(t *testing.T) {
	released := []string{"pkg verbs, func Open(string) (*verbs.Device, error)", "pkg verbs, const MTU256 verbs.MTU = 1",
		"pkg verbs, type ProviderQP interface { Close() error }", "pkg rdmaio, func Read()"}
	now := []string{"pkg verbs, const MTU256 verbs.MTU = 2", "pkg verbs, func Open(string) (*verbs.Device, error)", "pkg verbs, func New()"}
	for _, c := range []struct {
		except []string
		want   int
	}{
		{nil, 1}, // the constant's value; not what implementers use, and not what is no stable package's
		{released[1:2], 0},
		{released[:2], 1}, // Open is still there
	} {
		if got := breaks(released, now, c.except); len(got) != c.want {
			t.Errorf("with the exceptions %q: %q, want %d faults", c.except, got, c.want)
		}
	}
	if a, b := versionOf("api/v0.9.0.txt"), versionOf("api/v0.10.0.txt"); slices.Compare(a, b) >= 0 {
		t.Errorf("v0.9.0 is %v and v0.10.0 %v, want the second to be higher", a, b)
	}
}
