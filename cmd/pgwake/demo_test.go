//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgwake/pgwake/internal/demo"
)

const demoLimit = 2 * time.Minute

// buildProgram builds the command, since the demo runs it as its workers.
func buildProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pgwake")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// startDemo runs the demo with standard output a pipe. It is killed if the test ends first.
func startDemo(t *testing.T, args ...string) (cmd *exec.Cmd, stdout io.Reader, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), buildProgram(t), append([]string{"demo"}, args...)...)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(demoLimit, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { stop.Stop() })
	return cmd, stdout, stderr
}

func TestDemo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs for some 10 s")
	}
	cmd, stdout, stderr := startDemo(t, "--max-pages", "60", "--json")
	var report demo.Report
	decodeErr := json.NewDecoder(stdout).Decode(&report)
	if err := cmd.Wait(); err != nil || decodeErr != nil {
		t.Fatalf("%v, %v; %s", err, decodeErr, stderr)
	}
	if !report.OK || report.Pages != 60 || report.Lost != 0 || report.Duplicates != 0 || report.Content.Same != 60 {
		t.Errorf("report is %+v", report)
	}
	if k := report.Killed; k == nil || k.Running < 1 || k.Recovered < 1 || k.Recovered != k.Running {
		t.Errorf("killed is %+v", report.Killed)
	}
	// Nobody else may run the tasks before the lease is over, and then somebody must soon.
	if k := report.Killed; k != nil && (k.FirstSeconds < report.LeaseSeconds/2 || k.LastSeconds > 30) {
		t.Errorf("tasks were recovered %.1f to %.1f s after the kill, with leases of %.0f s", k.FirstSeconds, k.LastSeconds, report.LeaseSeconds)
	}
}

// TestDemoInterrupted sees that SIGINT in the middle leaves neither processes nor files.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs for some seconds")
	}
	cmd, stdout, stderr := startDemo(t)
	var text strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "workers alive") {
			break
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
	}
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("it ended with %v, want exit code 130; stderr: %s", err, stderr)
	}
	workers := regexp.MustCompile(`worker-\d+ +process (\d+)`).FindAllStringSubmatch(text.String(), -1)
	if len(workers) != demo.DefaultWorkers {
		t.Fatalf("there were %d workers, want %d: %s", len(workers), demo.DefaultWorkers, text.String())
	}
	for _, w := range workers {
		pid, err := strconv.Atoi(w[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("worker process %d is still there: %v", pid, err)
		}
	}
	dir := regexp.MustCompile(`started for this demo in (\S+),`).FindStringSubmatch(text.String())
	if dir == nil {
		t.Fatalf("no directory is named in %s", text.String())
	}
	if _, err := os.Stat(dir[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory is still there: %v", err)
	}
}

func TestDemoUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"nobody left", []string{"--workers", "1"}, "leaves nobody"},
		{"negative", []string{"--max-pages", "-1"}, "--max-pages -1 is negative"},
		{"no address", []string{"--url", "example.com"}, "give it as https://host/path"},
		{"two places", []string{"--keep", "x", "--database-url", "postgres://localhost/"}, "use one of them"},
		{"argument", []string{"x"}, "unknown command"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), append([]string{"demo"}, tc.args...), strings.NewReader(""), &stdout, &stderr)
			if code != exitUsage || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("exit code %d, %q; want 2 and %q", code, stderr.String(), tc.want)
			}
		})
	}
}
