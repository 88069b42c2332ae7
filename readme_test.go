package mq

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program in the README works as printed.
func TestReadmeProgramRuns(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "<!-- readme-program")
	_, rest, fence := strings.Cut(rest, "```go\n")
	program, _, closed := strings.Cut(rest, "```")
	if !found || !fence || !closed {
		t.Fatal("README.md has no program behind its mark")
	}
	// Inside the module, so that it builds against this source and no other.
	dir, err := os.MkdirTemp("testdata", "readme-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
	if err != nil || string(out) != "hello\n" {
		t.Errorf("the program printed %q, %v, want hello", out, err)
	}
	if formatted, err := exec.CommandContext(t.Context(), "gofmt", "-l", file).CombinedOutput(); err == nil && len(formatted) > 0 {
		t.Errorf("the program is not formatted")
	}
}

// DESIGN.md says which file to open; a new file has its place there.
func TestDesignNamesEveryFile(t *testing.T) {
	design, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") && !strings.Contains(string(design), "`"+file+"`") {
			t.Errorf("DESIGN.md does not say what %s is for", file)
		}
	}
}
