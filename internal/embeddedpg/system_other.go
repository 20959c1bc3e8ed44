//go:build !unix

package embeddedpg

import (
	"io/fs"
	"os"
	"os/exec"
)

// Without file locks the directories of owners that died stay; the server's own pid file guards a kept one.
const (
	haveSockets = false
	haveLocks   = false
)

// account is the user the server programs run as, here always this process's.
type account struct {
	name  string
	other bool
}

func chooseAccount(string) (account, error) { return account{name: os.Getenv("USERNAME")}, nil }

func (a account) dirMode() fs.FileMode { return 0o700 }

func (a account) mkdir(path string, perm fs.FileMode) error { return os.MkdirAll(path, perm) }

func runAs(*exec.Cmd, account, mode) {}

// signal asks by pg_ctl, since the system has no signals.
func (s *Server) signal(_ *process, m mode) error {
	return exec.Command(s.programs.path("pg_ctl"), "stop", "-W", "-D", s.dir.data(), "-m", m.String()).Run()
}

func freeze(*process) {}

func children(int) []int { return nil }

func kill(int) {}

func interrupt(int) error { return nil }

// gone says yes, so that a pid file is left to the server to judge.
func gone(int) bool { return true }

func runsIn(int, string) bool { return false }

func tryLock(*os.File) bool { return true }

func openLock(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) }

func mine(fs.FileInfo) bool { return false }

func freeMemory() uint64 { return 0 }
