//go:build !unix

package demo

import "os/exec"

func detach(*exec.Cmd) {}

// freeze and thaw do nothing: a worker may finish what it holds between the look and the kill.
func (p *process) freeze() {}

func (p *process) thaw() {}
