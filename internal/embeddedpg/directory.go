package embeddedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/pgwake/pgwake/internal/wait"
)

const (
	temporaryPrefix = "pgwake-pg-"
	socketPathLimit = 103              // bytes of a socket's path: 107 on Linux, 103 on macOS and the BSDs
	memoryDir       = "/dev/shm"       // a file system in memory, on Linux
	memoryNeeded    = 4 << 30          // bytes free in memoryDir to put a server there; test packages run side by side
	sweepLimit      = 10 * time.Second // for the servers that owners left running
	unlockedGrace   = time.Minute      // a temporary directory without a lock is being made, or its maker died before it locked it
)

// directory is the place of one server, owned by this process through its lock file.
type directory struct {
	path      string
	temporary bool
	lock      *os.File // flock-ed; the system lets go of it however this process ends
}

func (d *directory) join(name string) string { return filepath.Join(d.path, name) }
func (d *directory) data() string            { return d.join("data") }

// socketDir is the folder of the Unix socket, "" if its path is too long for one.
func (d *directory) socketDir() string {
	dir := d.join("run")
	if !haveSockets || len(dir)+len("/.s.PGSQL.65535") > socketPathLimit {
		return ""
	}
	return dir
}

// deathSignal is what the kernel sends the postmaster when this process dies: a shutdown with a checkpoint if the data is to be kept.
func (d *directory) deathSignal() mode {
	if d.temporary {
		return immediate
	}
	return fast
}

// close gives the directory up, and removes it if it is temporary.
func (d *directory) close() error {
	var err error
	if d.temporary {
		err = os.RemoveAll(d.path)
	}
	return errors.Join(err, d.lock.Close())
}

// openDirectory returns the directory to keep, or a new temporary one, locked. No server runs in it. reach tells whether the
// server's account can enter a directory.
func openDirectory(ctx context.Context, keep string, durable bool, a account, reach func(string) error) (*directory, error) {
	open := func() (*directory, error) { return makeTemporary(ctx, durable, a, reach) }
	if keep != "" {
		open = func() (*directory, error) { return openKept(ctx, keep, a, reach) }
	}
	d, err := open()
	if err != nil {
		return nil, err
	}
	if dir := d.socketDir(); dir != "" {
		if err := a.mkdir(dir, 0o755); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

func openKept(ctx context.Context, path string, a account, reach func(string) error) (*directory, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, "PG_VERSION")); err == nil {
		return nil, fmt.Errorf("%s is itself a PostgreSQL data directory: give an empty or new one", path)
	}
	if err := os.MkdirAll(path, a.dirMode()); err != nil {
		return nil, fmt.Errorf("make the server's directory: %w", err)
	}
	if err := reach(path); err != nil {
		return nil, fmt.Errorf("%w: choose one outside root's home, or run as another user than root", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the server's directory: %w", err)
	}
	if !tryLock(lock) {
		owner, _ := os.ReadFile(lock.Name()) // only for the message
		return nil, errors.Join(fmt.Errorf("%s is in use by the server of process %s", path, owner), lock.Close())
	}
	d := &directory{path: path, lock: lock}
	if err := d.writeOwner(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if err := endOrphan(ctx, d.data()); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *directory) writeOwner() error {
	if err := d.lock.Truncate(0); err != nil {
		return err
	}
	_, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return err
}

// makeTemporary makes a directory where the server's account can enter it: root's TMPDIR may be closed to others. On the way it
// removes the directories that dead processes left.
func makeTemporary(ctx context.Context, durable bool, a account, reach func(string) error) (*directory, error) {
	bases := []string{os.TempDir()}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if !slices.Contains(bases, dir) && exists(dir) {
			bases = append(bases, dir)
		}
	}
	for _, base := range append(slices.Clone(bases), memoryDir) {
		sweep(ctx, base)
	}
	// A server without durability belongs in memory if there is plenty: a database is made in 10 ms there, and in 300 ms on a disk
	// whose file system is slow to make files.
	if !durable && os.Getenv("TMPDIR") == "" && freeMemory() >= memoryNeeded {
		bases = slices.Insert(bases, 0, memoryDir)
	}
	var failed error
	for _, base := range bases {
		d, err := makeTemporaryIn(base, a, reach)
		if err == nil {
			return d, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, fmt.Errorf("make a temporary directory: %w", failed)
}

func makeTemporaryIn(base string, a account, reach func(string) error) (*directory, error) {
	path, err := os.MkdirTemp(base, temporaryPrefix)
	if err != nil {
		return nil, err
	}
	d, err := func() (*directory, error) {
		if err := os.Chmod(path, a.dirMode()); err != nil {
			return nil, err
		}
		if err := reach(path); err != nil {
			return nil, err
		}
		// Locked before it has its name, so that no sweep ever sees a lock file that is free while its owner lives.
		lock, err := os.OpenFile(filepath.Join(path, "lock.new"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		d := &directory{path: path, temporary: true, lock: lock}
		if !tryLock(lock) {
			return nil, errors.Join(fmt.Errorf("lock %s: refused", lock.Name()), lock.Close())
		}
		if err := errors.Join(d.writeOwner(), os.Rename(lock.Name(), d.join("lock"))); err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		return d, nil
	}()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(path))
	}
	return d, nil
}

// sweep removes the temporary directories in base whose owner is gone, and ends servers that still run in them. Only this user's: a
// directory of another could hold anything. What fails is left to the next sweep.
func sweep(ctx context.Context, base string) {
	if !haveLocks {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	paths, _ := filepath.Glob(filepath.Join(base, temporaryPrefix+"*")) // the pattern is well-formed
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !mine(info) {
			continue
		}
		lock, err := openLock(filepath.Join(path, "lock"))
		if errors.Is(err, os.ErrNotExist) && time.Since(info.ModTime()) > unlockedGrace {
			_ = os.RemoveAll(path)
		}
		if err != nil {
			continue
		}
		if d := (&directory{path: path, temporary: true, lock: lock}); !tryLock(lock) {
			_ = lock.Close()
		} else if err := endOrphan(ctx, d.data()); err != nil {
			_ = lock.Close()
		} else {
			_ = d.close()
		}
	}
}

// endOrphan ends a server that outlived its owner in a data directory whose lock this process holds, or waits for it to end if the kernel
// has told it to already. A pid file left by a crash, whose number some other program has now, is removed: the server would not
// start.
func endOrphan(ctx context.Context, data string) error {
	file, err := readPidFile(data)
	if err != nil {
		return nil // no server; an unreadable file is the server's to judge
	}
	if gone(file.pid) {
		return nil
	}
	if !runsIn(file.pid, data) {
		return os.Remove(filepath.Join(data, "postmaster.pid"))
	}
	if err := interrupt(file.pid); err != nil && !gone(file.pid) {
		return fmt.Errorf("end the server that still runs in %s, process %d: %w", data, file.pid, err)
	}
	for !gone(file.pid) {
		if err := wait.For(ctx, gonePoll); err != nil {
			return fmt.Errorf("end the server that still runs in %s, process %d: %w", data, file.pid, err)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
