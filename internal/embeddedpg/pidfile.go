package embeddedpg

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pidFile is what the server tells in postmaster.pid (PostgreSQL's src/include/utils/pidfile.h).
type pidFile struct {
	pid   int
	ready bool // accepts connections
}

func readPidFile(data string) (pidFile, error) {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(b), "\n")
	var f pidFile
	if f.pid, err = strconv.Atoi(strings.TrimSpace(lines[0])); err != nil || f.pid <= 1 {
		return pidFile{}, fmt.Errorf("postmaster.pid: no process id in %q", lines[0])
	}
	f.ready = len(lines) > 7 && strings.TrimSpace(lines[7]) == "ready"
	return f, nil
}

// logTail returns the last lines the server wrote after offset from.
func logTail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err.Error()
	}
	var lines []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if lines = append(lines, sc.Text()); len(lines) > 20 {
			lines = lines[1:]
		}
	}
	return strings.Join(lines, "\n")
}
