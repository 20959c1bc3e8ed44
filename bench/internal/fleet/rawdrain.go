package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake"
)

// RawDrain is a process that claims and settles the rows of pgwake's own tables by bare statements, many at a time: the
// limit of what PostgreSQL can do for the same rows, columns and indexes. It knows nothing of fences, locks and failures.
const RawDrain Kind = "raw drain"

// Shape is how a claim finds its rows.
type Shape string

// The shapes of a claim: a join with the rows found, or an array of their keys, or of their places in the table.
const (
	ByJoin Shape = "join"
	ByID   Shape = "id"
	ByCTID Shape = "ctid"
)

// Drain says how a [RawDrain] process works.
type Drain struct {
	Shape       Shape
	Batch       int // rows of a claim, and of a settlement
	Connections int // each of which claims a batch, then settles it
	// Look is how long a connection that has found nothing waits for a notification; 100 ms by default.
	Look time.Duration
}

func (d Drain) String() string {
	return fmt.Sprintf("batches of %d by %d connections, found by %s", d.Batch, d.Connections, d.Shape)
}

// rawFound finds due rows by the due index; it is the place of the rest.
const rawFound = `
    select %[1]s
    from ` + rawTasks + `
    where type = $2 and status = 'queued' and retry_at <= now()
    order by priority, retry_at, id
    limit %[2]d
    for update skip locked`

const rawTasks = pgwake.DefaultSchema + ".tasks"

// rawTakenSQL claims the rows found for holder $1, and sets the columns that pgwake's claim sets. It commits
// asynchronously, as that does.
const rawTakenSQL = `
update ` + rawTasks + ` as t
set
  status = 'running', retry_at = clock_timestamp() + interval '15 s', due_at = t.retry_at,
  fence = (extract(epoch from clock_timestamp()) * 1000000)::bigint, holder = $1, worker = 'raw', attempt = t.attempt + 1,
  started_at = clock_timestamp(), finished_at = null
%s
  and (select set_config('synchronous_commit', 'off', true)) = 'off'
returning t.id, t.fence, t.attempt, t.due_at, t.payload, t.metadata, t.created_at`

func (d Drain) claimSQL() string {
	column := "id"
	if d.Shape == ByCTID {
		column = "ctid"
	}
	found := fmt.Sprintf(rawFound, column, d.Batch)
	if d.Shape == ByJoin {
		return fmt.Sprintf(rawTakenSQL, "from ("+found+") as due\nwhere t.id = due.id")
	}
	return fmt.Sprintf(rawTakenSQL, "where t."+column+" = any (array ("+found+"))")
}

// rawSettleSQL moves the rows with the ids $1 to the archive, durably, with the columns that pgwake keeps.
const rawSettleSQL = `
with gone as (
  delete from ` + rawTasks + `
  where id = any ($1::uuid[])
  returning *
)
insert into ` + pgwake.DefaultSchema + `.task_archive (
  id, type, status, due_at, priority, attempt, max_attempts, fence, worker, unique_key, payload, payload_bytes, metadata,
  created_at, started_at, finished_at, last_error, errors)
select
  id, type, 'succeeded', due_at, priority, attempt, max_attempts, fence, worker, unique_key,
  case when pg_column_size(payload) <= 8192 then payload end, pg_column_size(payload), metadata,
  created_at, started_at, clock_timestamp(), last_error, errors
from gone`

// rawDrainMain claims and settles on some connections, and has one more that listens for the next time there is something.
func rawDrainMain(ctx context.Context, job Job, rec *Recorder, _ *slog.Logger) error {
	conns := make([]*pgx.Conn, job.Drain.Connections+1)
	for i := range conns {
		var err error
		if conns[i], err = pgx.Connect(ctx, job.URL); err != nil {
			return err
		}
		defer conns[i].Close(context.Background())
		for _, sql := range []string{`set jit = off`, `set plan_cache_mode = force_generic_plan`, `set enable_seqscan = off`} {
			if _, err := conns[i].Exec(ctx, sql); err != nil {
				return err
			}
		}
	}
	listen, conns := conns[0], conns[1:]
	if _, err := listen.Exec(ctx, `listen `+RawChannel); err != nil {
		return err
	}
	rec.Ready()

	rings := make(chan struct{}, len(conns))
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			if _, err := listen.WaitForNotification(running); err != nil {
				return err
			}
			select {
			case rings <- struct{}{}:
			default: // all are told
			}
		}
	})
	for _, conn := range conns {
		d := &rawDrain{
			conn: conn, claim: job.Drain.claimSQL(), holder: uuid.New(), typ: job.Type,
			look: cmp.Or(job.Drain.Look, 100*time.Millisecond), rec: rec,
		}
		group.Go(func() error { return d.run(running, rings) })
	}
	if err := group.Wait(); !ended(ctx, err) {
		return fmt.Errorf("raw drain: %w", err)
	}
	return nil
}

// rawDrain is one connection's loop.
type rawDrain struct {
	conn   *pgx.Conn
	claim  string
	holder uuid.UUID
	typ    string
	look   time.Duration
	rec    *Recorder
}

func (d *rawDrain) run(ctx context.Context, rings <-chan struct{}) error {
	for {
		ids, err := d.take(ctx)
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			if _, err := d.conn.Exec(ctx, rawSettleSQL, ids); err != nil {
				return err
			}
			continue
		}
		timer := time.NewTimer(d.look)
		select {
		case <-rings:
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// take claims a batch and runs it: no more than the payload is read.
func (d *rawDrain) take(ctx context.Context) ([]uuid.UUID, error) {
	rows, err := d.conn.Query(ctx, d.claim, d.holder, d.typ)
	if err != nil {
		return nil, err
	}
	var (
		id                uuid.UUID
		fence             int64
		attempt           int
		dueAt, createdAt  time.Time
		payload, metadata []byte
		ids               []uuid.UUID
		payloads          []Payload
		attempts          []int
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &fence, &attempt, &dueAt, &payload, &metadata, &createdAt}, func() error {
		var p Payload
		if err := json.Unmarshal(payload, &p); err != nil {
			return err
		}
		ids, payloads, attempts = append(ids, id), append(payloads, p), append(attempts, attempt)
		return nil
	})
	if err != nil {
		return nil, err
	}
	at := time.Now() // the claim is committed
	for i, p := range payloads {
		d.rec.note(p.Sent, at, attempts[i])
	}
	return ids, nil
}
