package pgwake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Inspector reads tasks and workers. It changes nothing.
type Inspector struct {
	pool   *pgxpool.Pool
	schema string
}

// TaskInfo is a task as the database has it, live or archived.
type TaskInfo struct {
	ID           uuid.UUID       `json:"id" db:"id"`
	Type         string          `json:"type" db:"type"`
	Status       Status          `json:"status" db:"status"`
	RetryAt      *time.Time      `json:"retry_at" db:"retry_at"` // queued: due at; running: leased until
	DueAt        time.Time       `json:"due_at" db:"due_at"`     // the planned instant of the last or next run
	Priority     int             `json:"priority" db:"priority"`
	Attempt      int             `json:"attempt" db:"attempt"`
	MaxAttempts  int             `json:"max_attempts" db:"max_attempts"` // its own, else its type's as last registered, else 4
	Fence        int64           `json:"fence" db:"fence"`
	Worker       *string         `json:"worker" db:"worker"`
	UniqueKey    *string         `json:"unique_key" db:"unique_key"`
	Payload      json.RawMessage `json:"payload" db:"payload"` // nil: archived without, being too large
	PayloadBytes int             `json:"payload_bytes" db:"payload_bytes"`
	Metadata     json.RawMessage `json:"metadata" db:"metadata"`
	CreatedAt    time.Time       `json:"created_at" db:"created_at"`
	StartedAt    *time.Time      `json:"started_at" db:"started_at"`
	FinishedAt   *time.Time      `json:"finished_at" db:"finished_at"`
	LastError    *string         `json:"last_error" db:"last_error"`
	Errors       []TaskError     `json:"errors" db:"errors"`
}

// TaskError is one failed run.
type TaskError struct {
	Attempt int       `json:"attempt"`
	At      time.Time `json:"at"`
	Error   string    `json:"error"`
	Worker  string    `json:"worker,omitempty"`
	Stack   string    `json:"stack,omitempty"` // of a panic
}

const taskColumns = `
  id, type, status, retry_at, due_at, priority, attempt, max_attempts, fence, worker, unique_key,
  payload, payload_bytes, metadata, created_at, started_at, finished_at, last_error, errors`

// query needs a pool, which the inspector of a client without one has not.
func (i *Inspector) query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if i.pool == nil {
		return nil, errNoPool
	}
	return i.pool.Query(ctx, sql, args...)
}

func (i *Inspector) name(object string) string { return pgx.Identifier{i.schema, object}.Sanitize() }

// Task returns one task, or [ErrNotFound]. Of several that had the id, one after another, it is the live one, else the last.
func (i *Inspector) Task(ctx context.Context, id uuid.UUID) (*TaskInfo, error) {
	rows, err := i.query(ctx, `select `+taskColumns+` from `+i.name("all_tasks")+` where id = $1 order by live desc, finished_at desc limit 1`, id)
	if err != nil {
		return nil, fmt.Errorf("read task %s: %w", id, err)
	}
	task, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[TaskInfo])
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("task %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read task %s: %w", id, err)
	}
	return task, nil
}

// TaskFilter chooses tasks; the zero value is the newest 100 of all.
type TaskFilter struct {
	Types     []string
	Statuses  []Status
	UniqueKey string
	Before    uuid.UUID // only tasks with smaller ids, which were made earlier: the last id of the page before
	Limit     int       // 100 by default, 10,000 at most
}

// listSQL pages through tasks by descending id, which for UUIDv7 is newest first. The primary keys of the live table
// and of each partition serve it in order. @live alone leaves the archive out.
const listSQL = `
select ` + taskColumns + `
from %s
where (@types::text[] is null or type = any (@types))
  and (@statuses::text[] is null or status = any (@statuses))
  and (@key::text is null or unique_key = @key)
  and (@before::uuid is null or id < @before)
  and (live or not @live)
order by id desc
limit @limit`

// Tasks lists tasks, those with the newest ids first.
func (i *Inspector) Tasks(ctx context.Context, filter TaskFilter) ([]*TaskInfo, error) {
	switch {
	case filter.Limit == 0:
		filter.Limit = 100
	case filter.Limit < 0 || filter.Limit > 10_000:
		return nil, fmt.Errorf("list tasks: limit %d is not between 1 and 10000", filter.Limit)
	}
	args := pgx.NamedArgs{"types": filter.Types, "statuses": filter.Statuses, "limit": filter.Limit, "live": filter.live()}
	if filter.UniqueKey != "" {
		args["key"] = filter.UniqueKey
	}
	if filter.Before != uuid.Nil {
		args["before"] = filter.Before
	}
	rows, err := i.query(ctx, fmt.Sprintf(listSQL, i.name("all_tasks")), args)
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	tasks, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[TaskInfo])
	if err != nil {
		return nil, fmt.Errorf("list tasks: %w", err)
	}
	return tasks, nil
}

// live reports whether no archived task can match.
func (f TaskFilter) live() bool {
	return len(f.Statuses) > 0 && !slices.ContainsFunc(f.Statuses, func(s Status) bool { return s == Succeeded || s == Cancelled })
}

// TypeCount is the number of live tasks of a type in a state.
type TypeCount struct {
	Type   string `json:"type"`
	Status Status `json:"status"`
	Count  int64  `json:"count"`
}

// Counts returns how many live tasks there are of each type and state. It reads the whole live table.
func (i *Inspector) Counts(ctx context.Context) ([]TypeCount, error) {
	rows, err := i.query(ctx, `select type, status, count(*) from `+i.name("tasks")+` group by 1, 2 order by 1, 2`)
	if err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TypeCount])
	if err != nil {
		return nil, fmt.Errorf("count tasks: %w", err)
	}
	return counts, nil
}

// WorkerInfo is a worker process as it last reported itself.
type WorkerInfo struct {
	ID        uuid.UUID `json:"id" db:"id"`
	Name      string    `json:"name" db:"name"`
	Version   string    `json:"version" db:"version"`
	Types     []string  `json:"types" db:"types"`
	Slots     int       `json:"slots" db:"slots"`
	Running   int       `json:"running" db:"running"`
	StartedAt time.Time `json:"started_at" db:"started_at"`
	SeenAt    time.Time `json:"seen_at" db:"seen_at"`
	Draining  bool      `json:"draining" db:"draining"`
}

// Workers lists the workers that have reported within the time given, by name.
func (i *Inspector) Workers(ctx context.Context, within time.Duration) ([]*WorkerInfo, error) {
	rows, err := i.query(ctx, `
		select id, name, version, types, slots, running, started_at, seen_at, draining
		from `+i.name("workers")+`
		where seen_at > clock_timestamp() - $1::interval
		order by name, started_at`, within)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	workers, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[WorkerInfo])
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}
