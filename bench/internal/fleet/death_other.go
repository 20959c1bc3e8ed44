//go:build !linux

package fleet

import "syscall"

// attributes are none: the end of its input tells a process that its parent is gone.
func attributes() *syscall.SysProcAttr { return nil }
