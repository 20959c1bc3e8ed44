// Package fleet runs the processes that suites measure: real ones, each this program executed again, or another that
// speaks the same protocol. It has both sides, the parent's ([Launch], [Process]) and the process's own ([Main]).
//
// A process says "ready" on its standard output once it works, and answers each line on its standard input with a line of
// JSON: the starts since the last one, or a [Tally]. It ends at SIGTERM, and when its parent is gone: by the parent's
// death signal on Linux, by the end of its input elsewhere.
package fleet

import "time"

// Variable holds a [Job] as JSON; a program that finds it set must call [Main] and do nothing else. An environment, as
// the URL in it may hold a password, which arguments would show to everybody.
const Variable = "PGWAKE_BENCH_JOB"

// Kind is what a process is.
type Kind string

const (
	// Worker is a pgwake worker with one task type.
	Worker Kind = "worker"
	// Raw is the least that does the same: a LISTEN, a claim of one row of [RawTable] a notification, no lease kept.
	Raw Kind = "raw"
	// River and the others are workers of those systems, which package peer has.
	River    Kind = "river"
	Gue      Kind = "gue"
	Graphile Kind = "graphile"
	PgBoss   Kind = "pgboss"
)

// NoHistory is the setting of a worker whose tasks are deleted when they are done.
const NoHistory = "no history"

// Job is what a process is to do.
type Job struct {
	Kind     Kind
	URL      string
	Name     string
	Type     string        // of its tasks
	Slots    int           // 0: the default
	Work     time.Duration // that a handler takes
	PollOnly bool          // do without notifications
	Timed    bool          // Raw: claims at due instants too
	Setting  string        // of a peer: "best" or "default"; of a worker: [NoHistory] or none
	Drain    Drain         // of a RawDrain

	// Tally is the highest number of a task: the process counts how often each ran, instead of when each began. 0: it notes
	// starts.
	Tally int
	// Program is another executable that speaks the protocol, with its arguments; empty: this one.
	Program []string
}

// TaskType is that of every task which a process runs. A worker of another type has nothing to do.
const TaskType = "bench.task"

// RawTable and RawChannel are those of the Raw kind. Suites make them.
const (
	RawTable   = "bench_raw"
	RawChannel = "bench_raw"
)

// Payload is that of every task and raw row: something known to who enqueued it, usually the instant, or a number from 1
// to [Job.Tally].
type Payload struct {
	Sent int64 `json:"sent"`
}

// TaskType is [TaskType].
func (Payload) TaskType() string { return TaskType }

// Start is the first line of a handler.
type Start struct {
	Sent    int64 // of the payload
	At      int64 // Unix nanoseconds
	Attempt int
}

// Latency is the time from Sent to the handler's first line.
func (s Start) Latency() time.Duration { return time.Duration(s.At - s.Sent) }

// Tally is how often the tasks numbered from 1 to [Job.Tally] ran.
type Tally struct {
	Ran      int64 // runs
	Distinct int64 // tasks that ran; one that ran in two processes counts twice, as in Ran
	Most     int64 // runs of one task in one process
}
