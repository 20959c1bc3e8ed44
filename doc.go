// Package pgwake enqueues and inspects tasks of the pgwake worker framework: background work in PostgreSQL that runs the
// moment it is committed, because a notification wakes a worker, not because one polls.
//
// A task is a row. Enqueue it with a [Client], alone or inside the transaction that makes the work necessary; handle it
// with a function registered in package registry and run by package worker. PostgreSQL is the only moving part: leases,
// retries, history and the fleet itself are in its tables, readable by plain SQL.
//
// # Life of a task
//
//	            enqueue
//	               │
//	               ▼     claim: lease, attempt + 1
//	┌──────────► queued ──────────────────────────► running ───► succeeded ──┐
//	│              │ ▲                              │ │ │ │                  ├──► archive
//	│        pause │ │ resume          error, snooze│ │ │ └────► cancelled ──┘
//	│              ▼ │                     (requeue)│ │ │
//	│            paused ◄───────────────────────────┼─┘ └──────► frozen
//	│                               pause           │   out of attempts, Freeze, bad payload
//	└───────────────────────────────────────────────┘
//
// A running task whose worker dies is claimable again when its lease ends, 15 s after the last heartbeat by default. A
// task may so run more than once; [Run.CompleteTx] makes its effects in the same database happen exactly once, and
// [Run.Fence] lets other systems refuse a stale run.
//
// # Defaults
//
// The field names are those of [EnqueueOptions], registry.Options and worker.Config.
//
//	MaxAttempts   4: one run and three retries; 1 means no retry
//	Retry         30 s, 1 min, 2 min, … with 10 % jitter, at most 1 h
//	Timeout       300 s a run; registry.NoTimeout for none
//	Priority      5, of 0 (first) to 9 (last)
//	Lease         15 s, renewed every 5 s
//	Bump          10 s
//	Sweep         5 s
//	Slots         10 for each core
//	DrainTimeout  30 s
//	History       14 days
package pgwake
