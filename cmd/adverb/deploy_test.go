package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands of the Kubernetes examples are ones that the tool has, with flags that it knows.
func TestKubernetesExamples(t *testing.T) {
	for file, containers := range map[string]int{"kubernetes.yaml": 2, "kubernetes-card.yaml": 1} {
		t.Run(file, func(t *testing.T) { testKubernetesExample(t, file, containers) })
	}
}

func testKubernetesExample(t *testing.T, file string, containers int) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ +args: (\[.*\])$`).FindAllSubmatch(text, -1)
	if len(lines) != containers {
		t.Fatalf("%d containers with arguments, want %d", len(lines), containers)
	}
	for _, line := range lines {
		var args []string
		plain := bytes.ReplaceAll(line[1], []byte("adverb-server"), []byte("127.0.0.1")) // a name of the cluster
		if err := json.Unmarshal(plain, &args); err != nil {
			t.Fatal(err)
		}
		// The help ends the run before the command does anything.
		if code, _, stderr := tool(t.Context(), append(append([]string{"adverb"}, args...), "--help")...); code != 0 || stderr != "" {
			t.Errorf("%q: status %d, %s, want status 0 and no stderr", args, code, stderr)
		}
	}
}

// TestCardGuide: the lines of the pod with a card that the guide shows are in the example.
func TestCardGuide(t *testing.T) {
	read := func(names ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{"..", ".."}, names...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, block, ok := strings.Cut(read("docs", "guide", "cards.md"), "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	if !ok || block == "" {
		t.Fatal("docs/guide/cards.md has no block of YAML")
	}
	example := read("deploy", "kubernetes-card.yaml")
	for line := range strings.Lines(block) {
		line, _, _ = strings.Cut(line, " # ")
		if line = strings.TrimSpace(line); !strings.Contains(example, line+"\n") {
			t.Errorf("deploy/kubernetes-card.yaml has no line %q, which docs/guide/cards.md shows", line)
		}
	}
}
