package embeddedpg

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// freeMemory is how many bytes memoryDir has room for, 0 if it is not in memory.
func freeMemory() uint64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(memoryDir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0
	}
	return fs.Bavail * uint64(fs.Bsize)
}

// processState returns the state letter and the parent of a process, as proc_pid_stat(5) has them; ok is false if there is none.
func processState(pid int) (state byte, parent int, ok bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, false
	}
	// The second field is the program's name in parentheses, and may hold anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 2 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0][0], parent, err == nil
}

func children(parent int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, p, ok := processState(pid); ok && p == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gone tells whether a process has ended. A zombie has: init may be slow to collect those it inherits, or never do.
func gone(pid int) bool {
	state, _, ok := processState(pid)
	return !ok || state == 'Z' || state == 'X'
}

// runsIn tells whether a process is a server of this data directory, which a postmaster has as its working directory.
func runsIn(pid int, data string) bool {
	cwd, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil {
		return false
	}
	want, err := filepath.EvalSymlinks(data)
	return err == nil && cwd == want
}
