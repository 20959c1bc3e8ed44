//go:build unix

package embeddedpg

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgwake/pgwake/internal/wait"
)

// startOwner runs this test binary as a process that owns a server, and returns that with the server.
func startOwner(t *testing.T, dir string) (*exec.Cmd, owned) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), ownerVariable+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal("the owner told nothing:", err)
	}
	var o owned
	if err := json.Unmarshal(line, &o); err != nil {
		t.Fatal(err)
	}
	return cmd, o
}

func killOwner(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

func TestOwnerKilled(t *testing.T) {
	t.Parallel()
	cmd, o := startOwner(t, "")
	query(t, o.URL, "select ''")
	backends := children(o.PID)
	// The server must not take the end of some thread of its owner for the owner's.
	if wait.For(t.Context(), 200*time.Millisecond) != nil || gone(o.PID) {
		t.Fatal("the server ended before its owner")
	}
	killOwner(t, cmd)
	if runtime.GOOS == "linux" {
		waitUntil(t, "the orphaned server to end", func() bool { return gone(o.PID) })
		for _, pid := range backends {
			waitUntil(t, "its backends to end", func() bool { return gone(pid) })
		}
	}
	start(t, Config{})
	waitUntil(t, "its directory to be removed", func() bool { return !exists(o.Dir) }) // maybe by another test's Start
	if !gone(o.PID) {
		t.Error("the orphaned server is there after another Start")
	}
}

func TestOwnerOfKeptDirKilled(t *testing.T) {
	t.Parallel()
	dir := keptDir(t)
	cmd, o := startOwner(t, dir)
	execute(t, o.URL, "create table kept as select 'here' as v")
	if s, err := Start(t.Context(), Config{Dir: dir}); err == nil {
		stop(t, s)
		t.Error("Start in a directory that is in use")
	}
	killOwner(t, cmd)
	s := start(t, Config{Dir: dir}) // while the old server may still be shutting down
	if got := query(t, s.URL(""), "select v from kept"); got != "here" {
		t.Errorf("got %s", got)
	}
}

// A server whose owner died where the kernel tells nobody.
func TestOrphanIsEnded(t *testing.T) {
	t.Parallel()
	dir := keptDir(t)
	s := start(t, Config{Dir: dir})
	execute(t, s.URL(""), "create table kept as select 'here' as v")
	if err := s.dir.lock.Close(); err != nil { // as the owner's death does
		t.Fatal(err)
	}
	pid := s.PID()
	next := start(t, Config{Dir: dir})
	if !gone(pid) {
		t.Error("the orphan is there")
	}
	if got := query(t, next.URL(""), "select v from kept"); got != "here" {
		t.Errorf("got %s", got)
	}
	if err := s.halt(fast); err != nil { // it is, so this only takes note
		t.Error(err)
	}
	s.stopped = true // its lock is closed
}

// After a reboot some other program may have the number in the pid file.
func TestStalePidFile(t *testing.T) {
	t.Parallel()
	dir := keptDir(t)
	s := start(t, Config{Dir: dir})
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	file := filepath.Join(dir, "data", "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%d\n%s", other.Process.Pid, rest), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, Config{Dir: dir})
	if gone(other.Process.Pid) {
		t.Error("Start ended a program that is no server")
	}
}

func TestSweepSpares(t *testing.T) {
	t.Parallel()
	base := keptDir(t)
	mkdir := func(name string, age time.Duration) string {
		path := filepath.Join(base, temporaryPrefix+name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		when := time.Now().Add(-age)
		if err := os.Chtimes(path, when, when); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, err := chooseAccount("")
	if err != nil {
		t.Fatal(err)
	}
	live, err := makeTemporaryIn(base, a, func(string) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	young, old := mkdir("young", 0), mkdir("old", time.Hour)
	pipe := mkdir("pipe", time.Hour)
	if err := syscall.Mkfifo(filepath.Join(pipe, "lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	dead := mkdir("dead", 0)
	if err := os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sweep(t.Context(), base)
	for path, want := range map[string]bool{live.path: true, young: true, old: false, dead: false} {
		if exists(path) != want {
			t.Errorf("%s: there is %v, want %v", path, !want, want)
		}
	}
	if err := live.close(); err != nil || exists(live.path) {
		t.Errorf("close: %v", err)
	}
	if os.Geteuid() == 0 {
		foreign := mkdir("foreign", time.Hour)
		if err := os.Chown(foreign, 1234, 1234); err != nil {
			t.Fatal(err)
		}
		sweep(t.Context(), base)
		if !exists(foreign) {
			t.Error("another user's directory is removed")
		}
	}
}

// Root's TMPDIR is often closed to others.
func TestClosedTemporaryDirectory(t *testing.T) {
	closed := filepath.Join(keptDir(t), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", closed)
	s := start(t, Config{})
	inside := filepath.Dir(s.Dir()) == closed
	if root := os.Geteuid() == 0; inside == root {
		t.Errorf("directory is %s, root: %v", s.Dir(), root)
	}
	if left, err := os.ReadDir(closed); err != nil || !inside && len(left) > 0 {
		t.Errorf("left in the closed directory: %v, %v", left, err)
	}
	if os.Geteuid() == 0 {
		if _, err := Start(t.Context(), Config{Dir: filepath.Join(closed, "kept")}); err == nil {
			t.Error("Start in a directory the server cannot enter")
		}
	}
}

// All of this as an ordinary user, if this one is root.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := keptDir(t)
	copied := filepath.Join(dir, "test") // the original may be where only root can go
	if err := copyFile(copied, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, copied, "-test.run=^(TestStartStop|TestRestart|TestKeptDir|TestOwner.*|TestOrphan.*|TestStalePidFile|TestSweepSpares|TestClosed.*)$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME=/nonexistent")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func copyFile(to, from string, perm os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}
