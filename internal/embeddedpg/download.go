package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// downloadVersion is what is downloaded where no PostgreSQL is installed.
const downloadVersion = embedded.V17

// downloadPrograms returns the folder of programs the embedded-postgres library downloads, from its usual place (Maven Central) or
// from repository, into cache or the usual cache directory. Only the first call downloads. The library has no call for only this: it
// is made to start a server of its own, in a directory that is removed, and what it unpacked for that is kept. For root its initdb
// refuses, after the unpacking.
//
// The library takes no context, so ctx is only looked at before.
func downloadPrograms(ctx context.Context, cache, repository string, log *slog.Logger) (string, error) {
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if cache == "" {
		var err error
		if cache, err = cacheDir(); err != nil {
			return "", err
		}
	}
	home := filepath.Join(cache, "postgres-"+string(downloadVersion))
	bin := filepath.Join(home, "bin")
	if hasPrograms(bin) {
		return bin, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	log.Info("downloading PostgreSQL", "version", string(downloadVersion), "into", home)
	work, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	unpacked := filepath.Join(work, "programs")
	port, err := choosePort("")
	if err != nil {
		return "", err
	}
	config := embedded.DefaultConfig().
		Version(downloadVersion).
		CachePath(filepath.Join(work, "archive")).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(work, "runtime")).
		DataPath(filepath.Join(work, "data")).
		Port(uint32(port)).
		Logger(io.Discard)
	if repository != "" {
		config = config.BinaryRepositoryURL(repository)
	}
	server := embedded.NewDatabase(config)
	switch err := server.Start(); {
	case err == nil:
		if err := server.Stop(); err != nil {
			return "", err
		}
	case strings.Contains(err.Error(), "unable to extract"), !hasPrograms(filepath.Join(unpacked, "bin")):
		return "", err
	}
	// Another process may have been first, with the same.
	if err := os.Rename(unpacked, home); err != nil && !hasPrograms(bin) {
		return "", err
	}
	if err := os.Chmod(home, 0o755); err != nil {
		return "", err
	}
	if !hasPrograms(bin) {
		return "", fmt.Errorf("download into %s: %w", home, errors.New("no initdb and postgres in it"))
	}
	return bin, nil
}

// cacheDir is where the download is kept. Root's cache directory is closed to the account the server runs as.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/pgwake", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "pgwake"), nil
}
