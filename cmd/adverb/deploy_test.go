package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The commands of the Kubernetes example are ones that the tool has, with flags that it knows.
func TestKubernetesExample(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ +args: (\[.*\])$`).FindAllSubmatch(text, -1)
	if len(lines) != 2 {
		t.Fatalf("%d containers with arguments, want a server and a client", len(lines))
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
