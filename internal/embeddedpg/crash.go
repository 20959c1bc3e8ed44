package embeddedpg

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgwake/pgwake/internal/wait"
)

// crash stops the postmaster first, so that it can neither start another backend nor tell the others, and then kills all. The
// caller holds mu.
func (s *Server) crash() error {
	p := s.process
	if p == nil {
		return nil
	}
	freeze(p)
	backends := children(p.pid())
	s.crashed = true
	for _, pid := range backends {
		kill(pid)
	}
	if err := p.kill(); err != nil && !p.ended() {
		return fmt.Errorf("kill postgres: %w", err)
	}
	if !p.wait(goneLimit) {
		return fmt.Errorf("kill postgres: process %d is still there after %s", p.pid(), goneLimit)
	}
	s.process = nil
	ctx, cancel := context.WithTimeout(context.Background(), goneLimit)
	defer cancel()
	for _, pid := range backends {
		for !gone(pid) {
			if err := wait.For(ctx, gonePoll); err != nil {
				return fmt.Errorf("kill postgres: backend %d is still there after %s", pid, goneLimit)
			}
		}
	}
	s.log.Debug("postgres killed", "dir", s.dir.path, "backends", len(backends))
	return nil
}

// releaseMemory starts a killed server once more and ends it at once, before its directory is removed. Its shared memory outlived it,
// and only a server of the same directory knows its names. What cannot be released is small, and stays until the system
// restarts. The caller holds mu.
func (s *Server) releaseMemory() {
	ctx, cancel := context.WithTimeout(context.Background(), fastLimit)
	defer cancel()
	err := s.start(ctx)
	if err = errors.Join(err, s.halt(immediate)); err != nil {
		s.log.Debug("shared memory of a killed postgres not released", "err", err)
	}
}
