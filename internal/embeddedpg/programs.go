package embeddedpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// binDirVariable names the folder of initdb and postgres, if they are not where they usually are.
const binDirVariable = "PGWAKE_POSTGRES_BIN"

// programs are the server programs of one PostgreSQL installation.
type programs struct {
	dir     string // holds initdb and postgres
	version string // such as 15.14; set by probe
}

// ProgramsError says that no PostgreSQL server programs were found, and how to get some.
type ProgramsError struct {
	Looked   []string // places looked at, in order
	Download error    // why the download did not work, nil if it was not tried
	Advice   string   // how to install PostgreSQL on this system
}

func (e *ProgramsError) Error() string {
	var b strings.Builder
	b.WriteString("no PostgreSQL server programs (initdb, postgres) found")
	if e.Download != nil {
		fmt.Fprintf(&b, ", and the download did not work (%v)", e.Download)
	}
	fmt.Fprintf(&b, ".\nInstall PostgreSQL: %s\nor set %s to the folder that holds initdb and postgres,\nor set PGWAKE_DATABASE_URL to a server that runs already.", e.Advice, binDirVariable)
	if len(e.Looked) > 0 {
		fmt.Fprintf(&b, "\nLooked in: %s", strings.Join(e.Looked, ", "))
	}
	return b.String()
}

func (e *ProgramsError) Unwrap() error { return e.Download }

// finder looks for the programs. Its fields are the outside world, so that tests can have another.
type finder struct {
	getenv    func(string) string
	lookPath  func(string) (string, error)
	pgConfig  func(context.Context) (string, error) // prints the folder of programs
	folders   []string                              // patterns of the usual folders
	download  func(context.Context) (string, error) // returns the folder of programs
	osRelease string                                // path of os-release(5)
	goos      string
}

func findPrograms(ctx context.Context, binDir string, log *slog.Logger) (programs, error) {
	f := finder{
		getenv:    os.Getenv,
		lookPath:  exec.LookPath,
		pgConfig:  pgConfigBinDir,
		folders:   usualFolders,
		osRelease: "/etc/os-release",
		goos:      runtime.GOOS,
		download: func(ctx context.Context) (string, error) {
			return downloadPrograms(ctx, "", "", log)
		},
	}
	return f.find(ctx, binDir)
}

// usualFolders are where distributions and installers put the programs of a major version.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // PostgreSQL's own packages for RHEL, Fedora, SLES
	"/usr/lib/postgresql*/bin",  // openSUSE
	"/usr/libexec/postgresql*",  // Alpine
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/opt/local/lib/postgresql*/bin", // MacPorts
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/Library/PostgreSQL/*/bin",
	"/usr/local/pgsql/bin", // built from source
	"/opt/postgresql*/bin",
	`C:\Program Files\PostgreSQL\*\bin`,
}

// find returns the programs of the first source that has them. A folder that was asked for by name must have them.
func (f finder) find(ctx context.Context, binDir string) (programs, error) {
	for _, named := range []struct{ dir, by string }{{binDir, "BinDir"}, {f.getenv(binDirVariable), binDirVariable}} {
		if named.dir == "" {
			continue
		}
		dir, err := filepath.Abs(named.dir)
		if err != nil {
			return programs{}, fmt.Errorf("%s: %w", named.by, err)
		}
		if !hasPrograms(dir) {
			return programs{}, fmt.Errorf("%s %s: no executable initdb and postgres in it", named.by, dir)
		}
		return programs{dir: dir}, nil
	}

	looked := []string{"PATH"}
	if path, err := f.lookPath("postgres"); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			dirs := []string{filepath.Dir(path)}
			// A link in a folder of links: better the folder it points to, where the libraries lie beside.
			if target, err := filepath.EvalSymlinks(path); err == nil {
				dirs = []string{filepath.Dir(target), dirs[0]}
			}
			if i := slices.IndexFunc(dirs, hasPrograms); i >= 0 {
				return programs{dir: dirs[i]}, nil
			}
		}
	}
	looked = append(looked, "pg_config --bindir")
	if dir, err := f.pgConfig(ctx); err == nil && hasPrograms(dir) {
		return programs{dir: dir}, nil
	}
	var found []string
	for _, pattern := range f.folders {
		dirs, _ := filepath.Glob(pattern) // the patterns are well-formed
		found = append(found, dirs...)
	}
	looked = append(looked, f.folders...)
	if found = slices.DeleteFunc(found, func(dir string) bool { return !hasPrograms(dir) }); len(found) > 0 {
		slices.SortStableFunc(found, func(a, b string) int { return majorIn(b) - majorIn(a) })
		return programs{dir: found[0]}, nil
	}
	dir, err := f.download(ctx)
	if err != nil {
		return programs{}, &ProgramsError{Looked: looked, Download: err, Advice: installAdvice(f.goos, f.osRelease)}
	}
	return programs{dir: dir}, nil
}

func pgConfigBinDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	return strings.TrimSpace(string(out)), err
}

// hasPrograms tells whether dir has both programs, executable by somebody; whether by the server's account, probe finds out.
func hasPrograms(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(programs{dir: dir}.path(name))
		if err != nil || !info.Mode().IsRegular() || runtime.GOOS != "windows" && info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

var number = regexp.MustCompile(`\d+`)

// majorIn is the major version a folder's path speaks of, its last number; 0 if there is none.
func majorIn(dir string) int {
	all := number.FindAllString(dir, -1)
	if len(all) == 0 {
		return 0
	}
	major, _ := strconv.Atoi(all[len(all)-1])
	return major
}

func (p programs) path(name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(p.dir, name)
}

// run runs a program that ends by itself as the server's account, and returns what it wrote. It dies with this process, where the
// system allows that, which needs the thread that started it to stay.
func (p programs) run(cmd *exec.Cmd, a account) ([]byte, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Env = serverEnv()
	runAs(cmd, a, killed)
	return cmd.CombinedOutput()
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\S+)`)

// probe runs postgres to learn its version and whether the server's account can: it may not reach the folder, or its libraries.
func (p *programs) probe(ctx context.Context, a account) error {
	cmd := exec.CommandContext(ctx, p.path("postgres"), "--version")
	cmd.Dir = filepath.VolumeName(p.dir) + string(filepath.Separator)
	out, err := p.run(cmd, a)
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("run %s as user %s: %w: every folder above must be open to that user; move the programs, or run as another user than root", cmd.Path, a.name, err)
	}
	if err != nil {
		return fmt.Errorf("run %s as user %s: %w: %s", cmd.Path, a.name, err, bytes.TrimSpace(out))
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("run %s: no version in %q", cmd.Path, out)
	}
	p.version = string(m[1])
	return nil
}

// reach tells whether the server's account can enter dir, by trying: mode bits do not tell all of it.
func (p programs) reach(ctx context.Context, a account, dir string) error {
	if !a.other {
		return nil
	}
	cmd := exec.CommandContext(ctx, p.path("postgres"), "--version")
	cmd.Dir = dir
	if _, err := p.run(cmd, a); err != nil {
		return fmt.Errorf("user %s, who is to run the server, cannot enter %s: %w", a.name, dir, err)
	}
	return nil
}

// hasLibrary tells whether the server can preload a library. One at an unusual place is not found, so not loaded.
func (p programs) hasLibrary(name string) bool {
	for _, lib := range []string{"lib", "lib/postgresql", "lib64/pgsql"} {
		for _, suffix := range []string{".so", ".dylib", ".dll"} {
			if _, err := os.Stat(filepath.Join(p.dir, "..", lib, name+suffix)); err == nil {
				return true
			}
		}
	}
	return false
}

// installAdvice says how PostgreSQL is installed on this system, by what os-release(5) calls it.
func installAdvice(goos, osRelease string) string {
	switch goos {
	case "darwin":
		return "brew install postgresql@17"
	case "windows":
		return "winget install PostgreSQL.PostgreSQL.17"
	}
	ids := map[string]string{
		"debian": "apt-get install postgresql",
		"ubuntu": "apt-get install postgresql",
		"fedora": "dnf install postgresql-server postgresql-contrib",
		"rhel":   "dnf install postgresql-server postgresql-contrib",
		"centos": "dnf install postgresql-server postgresql-contrib",
		"arch":   "pacman -S postgresql",
		"alpine": "apk add postgresql postgresql-contrib",
		"suse":   "zypper install postgresql-server postgresql-contrib",
	}
	text, _ := os.ReadFile(osRelease) // none: the general advice
	var like []string
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"'`); key {
		case "ID":
			like = append([]string{value}, like...)
		case "ID_LIKE":
			like = append(like, strings.Fields(value)...)
		}
	}
	for _, id := range like {
		if advice, ok := ids[id]; ok {
			return advice
		}
	}
	return "see https://www.postgresql.org/download/"
}
