package worker

import (
	"log/slog"
	"time"
)

// stateLog logs a loop's troubles once a change of state, not once a failure.
type stateLog struct {
	log    *slog.Logger
	what   string
	failed time.Time // since when; zero: all is well
}

func (s *stateLog) note(err error) {
	switch {
	case err != nil && s.failed.IsZero():
		s.failed = time.Now()
		s.log.Warn(s.what+" has trouble with the database and goes on trying", "error", err)
	case err == nil && !s.failed.IsZero():
		s.log.Info(s.what+" is well again", "after", time.Since(s.failed).Round(time.Millisecond))
		s.failed = time.Time{}
	}
}
