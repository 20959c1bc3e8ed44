package pgwake

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/settled"
	"github.com/pgwake/pgwake/lease"
)

// DefaultSchema is where pgwake's tables are unless a Config says otherwise.
const DefaultSchema = "pgwake"

// Status is the state of a task.
type Status string

// The states of a task. Succeeded and cancelled are final.
const (
	Queued    Status = "queued"
	Running   Status = "running"
	Paused    Status = "paused"
	Frozen    Status = "frozen" // kept until somebody retries, edits or discards it
	Succeeded Status = "succeeded"
	Cancelled Status = "cancelled"
)

// ArchivedPayload is the size in bytes up to which the archive keeps a payload; of a larger one only the size is kept.
const ArchivedPayload = 8192

// Table describes the task table of a schema to package lease.
func Table(schema string) lease.Table {
	copied := []string{"id", "type", "due_at", "priority", "max_attempts", "fence", "worker", "unique_key", "metadata", "created_at", "started_at"}
	values := make([]string, len(copied))
	for i, c := range copied {
		values[i] = "t." + c
	}
	return lease.Table{
		Name: pgx.Identifier{schema, "tasks"},
		Key:  "id", KeyType: "uuid", Status: "status", RetryAt: "retry_at",
		States: lease.States{
			Queued: string(Queued), Running: string(Running), Paused: string(Paused), Frozen: string(Frozen),
			Final: []string{string(Succeeded), string(Cancelled)},
		},
		Type: "type", Priority: "priority", Fence: "fence", Holder: "holder", Worker: "worker",
		DueAt: "due_at", Attempt: "attempt", MaxAttempts: "max_attempts", Lost: "lost", StartedAt: "started_at", FinishedAt: "finished_at",
		LastError: "last_error", Errors: "errors",
		Columns: []string{"max_attempts", "unique_key", "payload", "metadata", "created_at"},
		Archive: &lease.Archive{
			Name:    pgx.Identifier{schema, "task_archive"},
			Columns: append(copied, "payload", "payload_bytes"),
			Values: append(values,
				fmt.Sprintf("case when pg_column_size(t.payload) <= %d then t.payload end", ArchivedPayload),
				"pg_column_size(t.payload)"),
		},
		ClaimTurn:   pgx.Identifier{schema, "claim_turn"},
		SettledLock: settled.Lock(schema),
	}
}
