// Package report writes what a run has found for people: a page with tables and how they were made, and plots.
package report

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/pgwake/pgwake/bench/internal/server"
)

// Environment is what figures depend on that no suite decides.
type Environment struct {
	Command    string           `json:"command"`
	Began      time.Time        `json:"began"`
	CPU        string           `json:"cpu"`
	Cores      int              `json:"cores"`
	Memory     string           `json:"memory"`
	OS         string           `json:"os"`
	Go         string           `json:"go"`
	PostgreSQL string           `json:"postgresql"`
	Settings   []server.Setting `json:"settings"` // of the server, other than its built-in defaults
}

// Describe reads what there is to know of this machine and the server.
func Describe(ctx context.Context, on *server.Server, args []string) (e Environment, err error) {
	e = Environment{
		Command: "go run . " + strings.Join(args, " "), Began: time.Now().UTC().Truncate(time.Second),
		CPU: proc("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Memory: proc("/proc/meminfo", "MemTotal"),
		OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		e.OS += " " + strings.TrimSpace(string(text))
	}
	if e.PostgreSQL, err = on.Version(ctx); err != nil {
		return e, fmt.Errorf("describe the server: %w", err)
	}
	if e.Settings, err = on.Settings(ctx); err != nil {
		return e, fmt.Errorf("describe the server: %w", err)
	}
	return e, nil
}

// proc is the value of a key in a file of the kernel's; "unknown" where there is none.
func proc(file, key string) string {
	text, _ := os.ReadFile(file) // no file, no key
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
