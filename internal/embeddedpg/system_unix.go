//go:build unix

package embeddedpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	haveSockets = true
	haveLocks   = true
)

var signals = map[mode]syscall.Signal{fast: syscall.SIGINT, immediate: syscall.SIGQUIT, killed: syscall.SIGKILL}

// account is the user the server programs run as.
type account struct {
	name     string
	uid, gid int
	other    bool // not the user of this process, which is root then
}

// chooseAccount returns this process's user, or for root, whom PostgreSQL refuses, the owner of the data directory kept before, else
// postgres, else one that every system has. It needs an entry in the system's user database: initdb insists.
func chooseAccount(keep string) (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "id " + strconv.Itoa(os.Geteuid()), uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	if keep != "" {
		if info, err := os.Lstat(filepath.Join(keep, "data")); err == nil && info.IsDir() {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != 0 {
				return account{name: "id " + strconv.Itoa(int(stat.Uid)), uid: int(stat.Uid), gid: int(stat.Gid), other: true}, nil
			}
		}
	}
	for _, name := range []string{"postgres", "nobody", "daemon"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{name: name, uid: uid, gid: gid, other: true}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and this system has no user postgres, nobody or daemon to run it as")
}

// dirMode is the mode of the server's directory, which belongs to this process's user: others may pass through, but not look.
func (a account) dirMode() fs.FileMode {
	if a.other {
		return 0o711
	}
	return 0o700
}

// mkdir makes a directory that belongs to the account. One that is there stays.
func (a account) mkdir(path string, perm fs.FileMode) error {
	if err := os.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !a.other {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// runAs prepares cmd to run as the account, in a session of its own, and to get a signal when this process dies, where the system
// can. Go asks for that signal after it has changed the user, which would undo it.
func runAs(cmd *exec.Cmd, a account, atParentDeath mode) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	setDeathSignal(cmd.SysProcAttr, signals[atParentDeath])
}

func (s *Server) signal(p *process, m mode) error { return p.cmd.Process.Signal(signals[m]) }

// freeze stops a process so that it can do nothing until it is killed. If that fails, it is not there.
func freeze(p *process) { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// kill ends a backend. One that is gone is what was wanted.
func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }

func interrupt(pid int) error { return syscall.Kill(pid, syscall.SIGINT) }

// tryLock takes the lock of an open file for this process, or tells that another has it.
func tryLock(f *os.File) bool {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// openLock opens an existing lock file, and nothing else that lies there under its name.
func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// mine tells whether a file belongs to this process's user.
func mine(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
