package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// rawClaimSQL takes the first due row of type $2 for holder $1, by the due index, in one conditional update.
const rawClaimSQL = `
update ` + RawTable + `
set
  status = 'running', retry_at = clock_timestamp() + interval '15 s', fence = fence + 1, holder = $1, attempt = attempt + 1,
  started_at = clock_timestamp()
where id = (
  select id
  from ` + RawTable + `
  where type = $2 and status = 'queued' and retry_at <= now()
  order by priority, retry_at, id
  limit 1
  for update skip locked
)
returning id, fence, attempt, payload, metadata, created_at, due_at`

const rawDeleteSQL = `delete from ` + RawTable + ` where id = $1`

// rawNextSQL tells in how many seconds the next row falls due.
const rawNextSQL = `
select (extract(epoch from min(retry_at)) - extract(epoch from clock_timestamp()))::float8
from ` + RawTable + `
where status = 'queued'`

// rawMain listens on one connection and claims on another, with the settings that are cheapest there.
func rawMain(ctx context.Context, job Job, rec *Recorder, _ *slog.Logger) error {
	listen, err := pgx.Connect(ctx, job.URL)
	if err != nil {
		return err
	}
	defer listen.Close(context.Background())
	claims, err := pgx.Connect(ctx, job.URL)
	if err != nil {
		return err
	}
	defer claims.Close(context.Background())
	for _, sql := range []string{`set synchronous_commit = off`, `set jit = off`, `set plan_cache_mode = force_generic_plan`, `set enable_seqscan = off`} {
		if _, err := claims.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := listen.Exec(ctx, `listen `+RawChannel); err != nil {
		return err
	}

	rings, failed := make(chan struct{}, 1000), make(chan error, 1)
	go func() { // ends with the connection, or this process
		for {
			if _, err := listen.WaitForNotification(ctx); err != nil {
				failed <- err
				return
			}
			rings <- struct{}{}
		}
	}()
	rec.Ready()

	q := &rawQueue{claims: claims, holder: uuid.New(), typ: job.Type, rec: rec}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case err = <-failed:
		case <-rings:
			err = q.claim(ctx)
		case <-timer.C:
			err = q.claim(ctx)
		}
		if err == nil && job.Timed {
			var next time.Duration
			next, err = q.next(ctx)
			timer.Reset(next)
		}
		if ended(ctx, err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("raw: %w", err)
		}
	}
}

type rawQueue struct {
	claims *pgx.Conn
	holder uuid.UUID
	typ    string
	rec    *Recorder
}

// claim takes a row, if there is one, and settles it once its start has been noted.
func (q *rawQueue) claim(ctx context.Context) error {
	var id uuid.UUID
	var fence int64
	var attempt int
	var payload, metadata []byte
	var createdAt, dueAt time.Time
	err := q.claims.QueryRow(ctx, rawClaimSQL, q.holder, q.typ).Scan(&id, &fence, &attempt, &payload, &metadata, &createdAt, &dueAt)
	at := time.Now()
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	var p Payload
	if err := json.Unmarshal(payload, &p); err != nil {
		return err
	}
	q.rec.note(p.Sent, at, attempt)
	_, err = q.claims.Exec(ctx, rawDeleteSQL, id)
	return err
}

func (q *rawQueue) next(ctx context.Context) (time.Duration, error) {
	var seconds *float64
	if err := q.claims.QueryRow(ctx, rawNextSQL).Scan(&seconds); err != nil {
		return 0, err
	}
	if seconds == nil {
		return time.Hour, nil
	}
	return time.Duration(math.Max(*seconds, 0) * float64(time.Second)), nil
}
