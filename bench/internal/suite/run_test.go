package suite

import (
	"testing"
	"time"

	"github.com/pgwake/pgwake/bench/internal/fleet"
	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Each suite runs to its end, small, and has the figures that goals are set for.
func TestRun(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		suite   Suite
		figures []string
	}{
		{drain, []string{"of raw"}},
		{handlers, []string{"1 ms, of what is possible"}},
		{enqueueBulk, []string{"1 client, of COPY", "4 clients, of COPY"}},
		{enqueueSingle, []string{"16 clients, of insert"}},
		{processes, []string{"16 processes, of one", "16 processes, most tasks of a process, of least"}},
		{archive, []string{"full archive, of empty"}},
		{crash, []string{"all run again, at most"}},
		{snapshot, []string{"2,000/s, p99 of start", "planned empty, full speed, rate"}},
		{latency100, []string{"p99, of raw", "rate, of the one wanted"}},
	} {
		t.Run(tc.suite.Name, func(t *testing.T) {
			t.Parallel()
			r := tc.suite.Run(t.Context(), shared, Options{
				Rounds: 1, Window: 300 * time.Millisecond, Drain: 300 * time.Millisecond, Archived: 10_000,
				Only:    []string{"raw", "pgwake"},
				Memory:  &Memory{raw: &fleet.Drain{Shape: fleet.ByID, Batch: 500, Connections: 2}},
				Minutes: 2, minute: 1200 * time.Millisecond,
				Progress: func(line string) { t.Log(line) },
			})
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			for _, name := range tc.figures {
				if f, ok := r.Figure(name); !ok || !(f.Median > 0) {
					t.Errorf("%s: %+v", name, f)
				}
			}
			t.Log(r.Figures, r.Notes)
		})
	}
}

// Whatever the shape of the claim, raw runs each task once.
func TestShapes(t *testing.T) {
	t.Parallel()
	for _, shape := range []fleet.Shape{fleet.ByJoin, fleet.ByID, fleet.ByCTID} {
		t.Run(string(shape), func(t *testing.T) {
			t.Parallel()
			b := &bench{server: shared}
			system := newRawSystem()
			system.how = fleet.Drain{Shape: shape, Batch: 50, Connections: 3}
			s, err := b.stand(t.Context(), system)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.close(); err != nil {
					t.Error(err)
				}
			}()
			if _, err := s.drain(t.Context(), peer.WorkerOptions{}, 5_000); err != nil {
				t.Fatal(err)
			}
			archived, err := server.Scan[int](t.Context(), s.Database, `select count(*) from pgwake.task_archive where status = 'succeeded' and attempt = 1`)
			if err != nil || archived != 5_000 {
				t.Errorf("%d archived, %v", archived, err)
			}
		})
	}
}
