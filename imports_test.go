package mq

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/pocketmq/mq"

// importRules is the table of DESIGN.md: what the files of a directory that are
// not tests may import beside the standard library.
var importRules = []struct {
	dir     string
	allowed []string
}{
	{"transport", []string{"github.com/hashicorp/go-msgpack/v2"}},
	{"storage", []string{"github.com/cockroachdb/pebble/v2", "github.com/hashicorp/go-msgpack/v2"}},
	{"internal/wire", []string{"github.com/klauspost/compress", "github.com/pierrec/lz4/v4"}},
	{"examples", []string{modulePath, modulePath + "/transport"}},
	{".", []string{modulePath + "/storage", modulePath + "/transport", modulePath + "/internal/wire",
		"golang.org/x/sync", "github.com/hashicorp/go-msgpack/v2"}},
}

func TestImportsPointDownwards(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (isNestedModule(path) || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		checked++
		checkImports(t, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 10 {
		t.Fatalf("only %d files seen, is this the root of the module?", checked)
	}
}

func isNestedModule(dir string) bool {
	found, err := filepath.Glob(filepath.Join(dir, "go.mod"))
	return err == nil && len(found) > 0
}

func checkImports(t *testing.T, path string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Error(err)
		return
	}
	dir := filepath.ToSlash(filepath.Dir(path))
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if name == "testing" || !mayImport(dir, name) {
			t.Errorf("%s imports %s, which the rules of DESIGN.md forbid", path, name)
		}
	}
}

func mayImport(dir, name string) bool {
	if host, _, _ := strings.Cut(name, "/"); !strings.Contains(host, ".") {
		return true // standard library
	}
	for _, rule := range importRules {
		if dir != rule.dir && !strings.HasPrefix(dir, rule.dir+"/") && rule.dir != "." {
			continue
		}
		for _, a := range rule.allowed {
			if name == a || strings.HasPrefix(name, a+"/") && a != modulePath {
				return true
			}
		}
		return false
	}
	return false
}

func TestImportRulesForbidWhatTheyMust(t *testing.T) {
	for _, tc := range []struct {
		dir, name string
		want      bool
	}{
		{".", "github.com/cockroachdb/pebble/v2", false},
		{".", modulePath + "/storage", true},
		{"transport", modulePath + "/internal/wire", false},
		{"storage", "github.com/cockroachdb/pebble/v2/vfs", true},
		{"internal/wire", modulePath + "/transport", false},
		{"examples/durable", modulePath + "/storage", false},
		{"examples/durable", modulePath, true},
		{"examples/durable", "net/http", true},
	} {
		if got := mayImport(tc.dir, tc.name); got != tc.want {
			t.Errorf("%s importing %s: %v, want %v", tc.dir, tc.name, got, tc.want)
		}
	}
}
