package embeddedpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// initialise makes the data directory unless the directory has one. It is made beside its place and renamed, so that one that is there
// is complete. There is no cache of initialised directories: initdb takes 0.6 s, a copy 0.2 s.
func (s *Server) initialise(ctx context.Context, cfg Config) error {
	if err := os.Truncate(s.LogFile(), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if have, err := os.ReadFile(filepath.Join(s.dir.data(), "PG_VERSION")); err == nil {
		version, _, _ := strings.Cut(s.programs.version, ".")
		if major := strings.TrimSpace(string(have)); major != version {
			return fmt.Errorf("it was made by PostgreSQL %s, and the programs in %s are version %s: set PGWAKE_POSTGRES_BIN to the folder of PostgreSQL %s, or choose another directory",
				major, s.programs.dir, s.programs.version, major)
		}
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}

	fresh := s.dir.join("data.new")
	// UTF8 by a locale that sorts by code point: the same order on every machine. Not every system has C.UTF-8.
	var failed error
	for _, locale := range []string{"C.UTF-8", "C"} {
		if err := os.RemoveAll(fresh); err != nil {
			return err
		}
		if err := s.account.mkdir(fresh, 0o700); err != nil {
			return err
		}
		args := []string{"-D", fresh, "-E", "UTF8", "--locale=" + locale, "-A", "trust", "-U", "postgres"}
		if s.dir.temporary || !cfg.Durable {
			args = append(args, "--no-sync")
		}
		cmd := exec.CommandContext(ctx, s.programs.path("initdb"), args...)
		cmd.Dir = s.dir.path
		out, err := s.programs.run(cmd, s.account)
		if err == nil {
			return os.Rename(fresh, s.dir.data())
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		failed = fmt.Errorf("initdb: %w:\n%s", err, bytes.TrimSpace(out))
		if bytes.Contains(out, []byte("could not look up effective user ID")) {
			return fmt.Errorf("%w\nPostgreSQL needs this user to have an entry in /etc/passwd", failed)
		}
	}
	return failed
}

// defaults are the settings of every server, which Config.Settings may change.
func (p programs) defaults(durable bool, port int, socketDir string) map[string]string {
	settings := map[string]string{
		"listen_addresses":          "127.0.0.1",
		"port":                      strconv.Itoa(port),
		"unix_socket_directories":   socketDir,
		"max_connections":           "400",
		"max_prepared_transactions": "20",
		"shared_buffers":            "128MB",
		"timezone":                  "UTC",
		"log_timezone":              "UTC",
		"log_destination":           "stderr",
		"logging_collector":         "off",
		"log_min_messages":          "warning",
		"log_line_prefix":           "%m [%p] %q%u@%d %a ",
	}
	durability := "on"
	if !durable {
		durability = "off"
		settings["max_wal_size"] = "256MB" // it may lie in memory
	}
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		settings[name] = durability
	}
	if p.hasLibrary("pg_stat_statements") {
		settings["shared_preload_libraries"] = "pg_stat_statements"
	}
	return settings
}

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// writeSettings writes postgres.conf. It includes the data directory's own postgresql.conf first, and the server reads
// postgresql.auto.conf last by itself, so ALTER SYSTEM works.
func (s *Server) writeSettings() error {
	quote := strings.NewReplacer(`'`, `''`, `\`, `\\`, "\n", `\n`)
	var b strings.Builder
	b.WriteString("# written at every start\ninclude 'data/postgresql.conf'\n")
	names := make([]string, 0, len(s.settings))
	for name := range s.settings {
		if !settingName.MatchString(name) {
			return fmt.Errorf("setting %q: not a name", name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s = '%s'\n", name, quote.Replace(s.settings[name]))
	}
	// Readable by the server's account, whoever that is; there is no secret in it.
	path := s.dir.join("postgres.conf")
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return os.Chmod(path, 0o644)
}

// serverEnv is this process's environment without the PG… variables, which would change the server's defaults, and with messages in English.
func serverEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "PGWAKE_") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	})
	if runtime.GOOS == "windows" {
		return env
	}
	return append(env, "LC_ALL=C")
}
