package fleet

import "syscall"

// attributes make a process one that Ctrl-C does not reach, and that dies with its parent.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
