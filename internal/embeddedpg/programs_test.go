package embeddedpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// install makes a folder with programs that only fail.
func install(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		if err := os.WriteFile(programs{dir: dir}.path(name), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var errNone = errors.New("there is none")

// nowhere is a finder that finds nothing.
func nowhere() finder {
	none := func(context.Context) (string, error) { return "", errNone }
	return finder{
		getenv:   func(string) string { return "" },
		lookPath: func(string) (string, error) { return "", errNone },
		pgConfig: none,
		download: none,
		goos:     "linux",
	}
}

func TestFindOrder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, filepath.FromSlash(name)) }
	for _, name := range []string{"named", "env", "path", "config", "usr/9/bin", "usr/16/bin", "usr/15/bin", "opt/pg@17/bin", "fetched"} {
		install(t, at(name))
	}
	if err := os.MkdirAll(at("usr/18/bin"), 0o755); err != nil { // client programs only
		t.Fatal(err)
	}
	f := nowhere()
	check := func(binDir, want string) {
		t.Helper()
		p, err := f.find(t.Context(), binDir)
		if err != nil || p.dir != at(want) {
			t.Errorf("%s, %v; want %s", p.dir, err, at(want))
		}
	}
	f.download = func(context.Context) (string, error) { return at("fetched"), nil }
	check("", "fetched")
	f.folders = []string{at("usr/*/bin")}
	check("", "usr/16/bin")
	f.folders = []string{at("none/*"), at("usr/*/bin"), at("opt/pg@*/bin")}
	check("", "opt/pg@17/bin")
	f.pgConfig = func(context.Context) (string, error) { return at("usr/18/bin"), nil }
	check("", "opt/pg@17/bin")
	f.pgConfig = func(context.Context) (string, error) { return at("config"), nil }
	check("", "config")
	f.lookPath = func(string) (string, error) { return at("usr/18/bin/postgres"), nil }
	check("", "config")
	f.lookPath = func(string) (string, error) { return at("path/postgres"), nil }
	check("", "path")
	if runtime.GOOS != "windows" {
		if err := os.Symlink(at("usr/15/bin/postgres"), at("usr/postgres")); err != nil {
			t.Fatal(err)
		}
		f.lookPath = func(string) (string, error) { return at("usr/postgres"), nil }
		real, err := filepath.EvalSymlinks(at("usr/15/bin"))
		if err != nil {
			t.Fatal(err)
		}
		if p, err := f.find(t.Context(), ""); err != nil || p.dir != real {
			t.Errorf("%s, %v; want %s", p.dir, err, real)
		}
	}
	f.getenv = func(name string) string { return map[string]string{"PGWAKE_POSTGRES_BIN": at("env")}[name] }
	check("", "env")
	check(at("named"), "named")
	// Who names a folder gets that or an error.
	if p, err := f.find(t.Context(), at("usr/18/bin")); err == nil || !strings.Contains(err.Error(), "BinDir "+at("usr/18/bin")) {
		t.Errorf("%v, %v", p, err)
	}
}

func TestProgramsError(t *testing.T) {
	t.Parallel()
	f := nowhere()
	f.folders = []string{"/usr/lib/postgresql/*/none"}
	for name, tc := range map[string]struct{ goos, osRelease, want string }{
		"debian":  {"linux", "NAME=\"Debian GNU/Linux\"\nID=debian\n", "apt-get install postgresql"},
		"mint":    {"linux", "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "apt-get install postgresql"},
		"fedora":  {"linux", "ID=fedora\n", "dnf install postgresql-server"},
		"rocky":   {"linux", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install postgresql-server"},
		"arch":    {"linux", "ID=arch\n", "pacman -S postgresql"},
		"alpine":  {"linux", "ID=alpine\n", "apk add postgresql"},
		"suse":    {"linux", "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "zypper install postgresql-server"},
		"unknown": {"linux", "", "https://www.postgresql.org/download/"},
		"macos":   {"darwin", "", "brew install postgresql"},
	} {
		t.Run(name, func(t *testing.T) {
			f := f
			f.goos, f.osRelease = tc.goos, filepath.Join(t.TempDir(), "os-release")
			if err := os.WriteFile(f.osRelease, []byte(tc.osRelease), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := f.find(t.Context(), "")
			var missing *ProgramsError
			if !errors.As(err, &missing) || !errors.Is(err, errNone) {
				t.Fatalf("error %v", err)
			}
			for _, want := range []string{tc.want, "PGWAKE_POSTGRES_BIN", "PGWAKE_DATABASE_URL", "/usr/lib/postgresql/*/none", errNone.Error()} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
		})
	}
}

func TestProbeTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the programs here are shell scripts")
	}
	dir := install(t, filepath.Join(keptDir(t), "bin"))
	if _, err := Start(t.Context(), Config{BinDir: dir}); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("programs that fail: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chmod(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{BinDir: dir}); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "open to that user") {
		t.Errorf("programs out of reach: %v", err)
	}
}

// The library downloads a jar, a zip with a tar of the programs.
func TestDownload(t *testing.T) {
	t.Parallel()
	xz, err := exec.LookPath("xz")
	if err != nil {
		t.Skip(err)
	}
	dir := keptDir(t)
	install(t, filepath.Join(dir, "made", "bin"))
	archive := filepath.Join(dir, "postgres.txz")
	if out, err := exec.Command("tar", "-c", "-I", xz, "-f", archive, "-C", filepath.Join(dir, "made"), "bin").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	w, err := z.Create("postgres-any.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	requests := 0
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			fmt.Fprintf(w, "%x", sha256.Sum256(jar.Bytes()))
			return
		}
		_, _ = w.Write(jar.Bytes())
	}))
	defer repository.Close()
	defer http.DefaultClient.CloseIdleConnections()

	cache := filepath.Join(dir, "cache")
	for range 2 {
		bin, err := downloadPrograms(t.Context(), cache, repository.URL, slog.New(slog.DiscardHandler))
		if err != nil || !hasPrograms(bin) {
			t.Fatalf("%s, %v", bin, err)
		}
	}
	if requests != 2 { // the jar and its sum, once
		t.Errorf("%d requests", requests)
	}
	left, err := os.ReadDir(cache)
	if err != nil || len(left) != 1 {
		t.Errorf("left in the cache: %v, %v", left, err)
	}

	repository.Close()
	if _, err := downloadPrograms(t.Context(), filepath.Join(dir, "other"), repository.URL, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), repository.URL) {
		t.Errorf("no repository: %v", err)
	}
}
