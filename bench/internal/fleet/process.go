package fleet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	readyLimit  = time.Minute      // until a process works
	answerLimit = 10 * time.Second // until it answers
	endLimit    = 40 * time.Second // until it has drained
	lastWords   = 2 << 10          // of its log in an error
)

// Process is a process from its parent's side.
type Process struct {
	Job   Job
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan []byte   // of its output; closed with it
	log   tail          // what it wrote to standard error
	done  chan struct{} // closed when it has ended and been waited for
}

// Launch starts processes, one a job, and returns when all are ready. If one fails all are ended.
func Launch(ctx context.Context, jobs ...Job) (Fleet, error) {
	var f Fleet
	for _, job := range jobs {
		p, err := launch(job)
		if err != nil {
			return nil, errors.Join(err, f.Stop())
		}
		f = append(f, p)
	}
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for _, p := range f {
		line, err := p.line(ctx)
		if err == nil && string(line) != readyLine {
			err = fmt.Errorf("%s: unexpected %q", p.Job.Name, line)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start: %w", err), f.Stop())
		}
	}
	return f, nil
}

func launch(job Job) (*Process, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	program := job.Program
	if len(program) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		program = []string{exe}
	}
	p := &Process{Job: job, cmd: exec.Command(program[0], program[1:]...), lines: make(chan []byte, 16), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), Variable+"="+string(text))
	p.cmd.SysProcAttr = attributes()
	p.cmd.Stderr = &p.log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	// Ends with the process. It keeps its thread until then: Linux sends a parent's death signal when the thread that
	// forked ends.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		defer close(p.lines)
		for r := bufio.NewReader(stdout); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				break
			}
			p.lines <- bytes.TrimSpace(line)
		}
		_ = p.cmd.Wait() // the state tells all
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", job.Name, err)
	}
	return p, nil
}

// line is the next line of the process's output.
func (p *Process) line(ctx context.Context) ([]byte, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.done
			return nil, fmt.Errorf("%s ended by itself: %s; its last words:\n%s", p.Job.Name, p.cmd.ProcessState, p.log.String())
		}
		return line, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s does not answer: %w; its last words:\n%s", p.Job.Name, context.Cause(ctx), p.log.String())
	}
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Fleet is a set of processes.
type Fleet []*Process

// Starts returns the starts since the last call, of all processes.
func (f Fleet) Starts(ctx context.Context) ([]Start, error) {
	answers, err := ask[[]Start](ctx, f)
	return slices.Concat(answers...), err
}

// Tally returns how often tasks ran, all processes taken together, since their start. Their jobs ask for one.
func (f Fleet) Tally(ctx context.Context) (Tally, error) {
	answers, err := ask[Tally](ctx, f)
	var all Tally
	for _, t := range answers {
		all = Tally{Ran: all.Ran + t.Ran, Distinct: all.Distinct + t.Distinct, Most: max(all.Most, t.Most)}
	}
	return all, err
}

// ask sends all processes a line and returns what each answers.
func ask[T any](ctx context.Context, f Fleet) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for _, p := range f {
		if _, err := io.WriteString(p.stdin, "report\n"); err != nil {
			return nil, fmt.Errorf("ask %s: %w; its last words:\n%s", p.Job.Name, err, p.log.String())
		}
	}
	answers := make([]T, len(f))
	for i, p := range f {
		line, err := p.line(ctx)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(line, &answers[i]); err != nil {
			return nil, fmt.Errorf("read the answer of %s: %w", p.Job.Name, err)
		}
	}
	return answers, nil
}

// Log is what the processes wrote to standard error, warnings and errors alone.
func (f Fleet) Log() string {
	var all bytes.Buffer
	for _, p := range f {
		all.WriteString(p.log.String())
	}
	return all.String()
}

// Stop lets the processes drain and returns when all are gone. One that does not end well is an error.
func (f Fleet) Stop() error {
	for _, p := range f {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails only if it is gone
	}
	limit, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	var errs []error
	for _, p := range f {
		select {
		case <-p.done:
		case <-limit.Done():
			p.kill()
		}
		_ = p.stdin.Close()
		if !p.cmd.ProcessState.Success() {
			errs = append(errs, fmt.Errorf("%s ended with %s; its last words:\n%s", p.Job.Name, p.cmd.ProcessState, p.log.String()))
		}
	}
	return errors.Join(errs...)
}

// Kill ends the processes by SIGKILL and returns when they are gone.
func (f Fleet) Kill() {
	for _, p := range f {
		p.kill()
		_ = p.stdin.Close()
	}
}

func (p *Process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it is gone
	<-p.done
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
	if n := len(t.text) - lastWords; n > 0 {
		t.text = bytes.Clone(t.text[n:])
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
