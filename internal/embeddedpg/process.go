package embeddedpg

import (
	"os"
	"os/exec"
	"runtime"
	"time"
)

// mode is how the server is to end.
type mode int

const (
	fast      mode = iota // SIGINT: disconnects everybody, makes a checkpoint
	immediate             // SIGQUIT: ends at once, the next start recovers
	killed                // SIGKILL
)

func (m mode) String() string { return [...]string{"fast", "immediate", "kill"}[m] }

// process is a postmaster this process has started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and been waited for
}

// launch starts cmd. Its goroutine ends with the program, and keeps its thread until then: on Linux a parent's death signal is sent
// when the thread that forked ends, and Go ends idle threads that a goroutine has left locked.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the state tells all
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
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

// wait tells whether the program ended within limit.
func (p *process) wait(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

func (p *process) kill() error { return p.cmd.Process.Kill() }

// state is how the program ended; only after done.
func (p *process) state() *os.ProcessState { return p.cmd.ProcessState }
