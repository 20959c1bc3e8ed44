package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	stopLimit = drainTimeout + 5*time.Second // a worker that takes longer to drain is killed
	logKept   = 4 << 10
)

// process is one worker process.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser // its end tells the worker to stop
	log   *tail
	done  chan struct{} // closed when the process has ended and been waited for

	mu       sync.Mutex
	expected bool // it was told to end, or killed
}

// fleet is the worker processes.
type fleet struct {
	processes []*process
	failed    chan error // an unexpected end; cap: one for each process
}

// startFleet starts the workers. The caller stops the fleet even if it gets an error with it.
func startFleet(cfg Config, databaseURL string) (*fleet, error) {
	f := &fleet{failed: make(chan error, cfg.Workers)}
	for i := range cfg.Workers {
		p, err := f.start(cfg, databaseURL, "worker-"+strconv.Itoa(i+1))
		if err != nil {
			return f, err
		}
		f.processes = append(f.processes, p)
	}
	return f, nil
}

func (f *fleet) start(cfg Config, databaseURL, name string) (*process, error) {
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
	cmd.Env = append(os.Environ(), urlVariable+"="+databaseURL, nameVariable+"="+name, slotsVariable+"="+strconv.Itoa(cfg.Slots))
	p := &process{name: name, cmd: cmd, log: &tail{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	detach(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.stdin = stdin

	started := make(chan error)
	// Ends with the process. It keeps its thread until then: Linux sends a parent's death signal when the thread that
	// forked ends.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the state tells all
		if !p.isExpected() {
			f.failed <- fmt.Errorf("%s ended by itself: %s; its last words:\n%s", name, cmd.ProcessState, p.log)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// alive counts the processes that run.
func (f *fleet) alive() int {
	n := 0
	for _, p := range f.processes {
		if !p.ended() {
			n++
		}
	}
	return n
}

func (f *fleet) find(name string) *process {
	for _, p := range f.processes {
		if p.name == name {
			return p
		}
	}
	return nil
}

// stop lets all workers drain and returns when they are gone.
func (f *fleet) stop() {
	for _, p := range f.processes {
		p.expect()
		_ = p.stdin.Close() // it is closed if the process is gone
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	for _, p := range f.processes {
		select {
		case <-p.done:
		case <-ctx.Done():
			p.kill()
		}
	}
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process by SIGKILL and returns when it is gone.
func (p *process) kill() {
	p.expect()
	_ = p.cmd.Process.Kill() // fails only if the process is gone
	<-p.done
}

func (p *process) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = true
}

func (p *process) isExpected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expected
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text) - logKept; n > 0 {
		t.text = bytes.Clone(t.text[n:])
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
