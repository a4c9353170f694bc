package adverb_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/SECURITY.md says which test shows what. Each of them must be there.
func TestSecurityTests(t *testing.T) {
	doc, err := os.ReadFile("docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		all.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cited := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`").FindAllStringSubmatch(string(doc), -1)
	if len(cited) < 20 {
		t.Errorf("docs/SECURITY.md cites %d tests, want 20 at least", len(cited))
	}
	for _, c := range cited {
		if !strings.Contains(all.String(), "\nfunc "+c[1]+"(") {
			t.Errorf("docs/SECURITY.md cites %s: no test has the name, want one", c[1])
		}
	}
}
