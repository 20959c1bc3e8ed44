package pgwake_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport says which packages of the module each layer may import, tests left out. Whatever is not listed may import
// anything but cmd and examples, which nothing imports.
var mayImport = map[string][]string{
	"internal/sqlstate":   {},
	"lease":               {},
	"internal/wait":       {},
	"notify":              {"internal/wait"},
	"migrations":          {},
	"internal/dial":       {"notify"},
	"internal/settled":    {"notify", "internal/dial"},
	"":                    {"lease", "migrations", "internal/settled", "internal/sqlstate", "internal/wait"},
	"registry":            {"", "lease"},
	"worker":              {"", "lease", "migrations", "notify", "registry", "internal/dial", "internal/settled", "internal/wait", "internal/sqlstate"},
	"internal/doctor":     {"migrations", "internal/wait", "internal/sqlstate"},
	"internal/embeddedpg": {"internal/wait"},
	"internal/pgtest":     {"internal/embeddedpg", "migrations"},
	"internal/tcpproxy":   {},
}

func TestImportsGoOneWay(t *testing.T) {
	t.Parallel()
	const module = "github.com/pgwake/pgwake"
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	inModule := func(path string) (string, bool) {
		if path == module {
			return "", true
		}
		return strings.CutPrefix(path, module+"/")
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name, ok := inModule(fields[0])
		if !ok {
			t.Fatalf("unexpected package %q", fields[0])
		}
		seen[name] = true
		allowed, listed := mayImport[name]
		for _, path := range fields[1:] {
			imported, ok := inModule(path)
			if !ok {
				continue
			}
			if strings.HasPrefix(imported, "cmd/") || strings.HasPrefix(imported, "examples/") || listed && !slices.Contains(allowed, imported) {
				t.Errorf("%q must not import %q", name, imported)
			}
		}
	}
	for name := range mayImport {
		if !seen[name] {
			t.Errorf("the rules name %q, which is not there", name)
		}
	}
}
