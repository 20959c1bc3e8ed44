//go:build unix && !linux

package embeddedpg

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// setDeathSignal does nothing: the server outlives an owner that is killed, until the next Start.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

func children(parent int) []int {
	out, err := exec.Command("ps", "-axo", "pid=,ppid=").Output()
	if err != nil {
		return nil
	}
	var pids []int
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(fields[0]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// runsIn tells whether a process is a server of this data directory: Start gives it in the arguments.
func runsIn(pid int, data string) bool {
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), data)
}

func freeMemory() uint64 { return 0 }
