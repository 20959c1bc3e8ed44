//go:build unix

package demo

import (
	"os/exec"
	"syscall"
)

// detach keeps Ctrl-C in a terminal from the worker, so that the parent decides when it stops.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// freeze stops the process where it is, until thaw. It fails only if the process is gone.
func (p *process) freeze() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

func (p *process) thaw() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }
