//go:build unix && !linux

package demo

import "syscall"

// dieWithParent does nothing: the end of its input tells the worker.
func dieWithParent(*syscall.SysProcAttr) {}
