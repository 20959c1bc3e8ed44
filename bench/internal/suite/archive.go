package suite

import (
	"context"
	"fmt"

	"github.com/pgwake/pgwake/bench/internal/peer"
	"github.com/pgwake/pgwake/bench/internal/server"
)

// Archive: what a long history costs a drain. Both databases are drained as in the drain suite; one has ten million settled
// tasks in today's partition of the archive, into which all settlements go.
var archive = Suite{
	Name: "archive", Rounds: 3,
	About: "a drain with an empty archive and with 10 million archived tasks",
	run: func(ctx context.Context, b *bench) error {
		empty, err := b.stand(ctx, peer.Pgwake())
		if err != nil {
			return err
		}
		full, err := b.stand(ctx, peer.Pgwake())
		if err != nil {
			return err
		}
		b.progress("archiving %d tasks", b.Archived)
		if _, err := full.Pool.Exec(ctx, archivedSQL, taskType, b.Archived); err != nil {
			return fmt.Errorf("fill the archive: %w", err)
		}
		if err := b.size(ctx, empty, peer.WorkerOptions{}); err != nil {
			return err
		}
		n := empty.tasks
		// What was archived is on disk, vacuumed and out of the way; then each once unmeasured, since the first change of a
		// page after a checkpoint writes all of it to the WAL.
		if err := full.Exec(ctx, `vacuum (analyze)`, `checkpoint`); err != nil {
			return err
		}
		for _, s := range []*stand{empty, full} {
			if _, err := s.drain(ctx, peer.WorkerOptions{}, n); err != nil {
				return err
			}
		}
		c, err := b.compare(ctx, plan{limits: map[string]float64{"drained": 0.15}}, []side{
			{name: "empty archive", measure: func(ctx context.Context) (sample, error) {
				if err := empty.Exec(ctx, `truncate `+server.Schema+`.task_archive`); err != nil {
					return sample{}, err
				}
				return empty.drain(ctx, peer.WorkerOptions{}, n)
			}, values: drainValues},
			{name: fmt.Sprintf("%d archived", b.Archived), measure: func(ctx context.Context) (sample, error) {
				return full.drain(ctx, peer.WorkerOptions{}, n)
			}, values: drainValues},
		})
		if err != nil {
			return err
		}
		b.figure("full archive, of empty", "×", c.noisy, c.ratios("drained", 1, 0)...)
		size, err := server.Scan[float64](ctx, full.Database, archiveSizeSQL)
		if err != nil {
			return err
		}
		b.measurement("full archive", "size with indexes", "MB", size/1e6)
		return nil
	},
}

// archivedSQL archives $2 tasks of type $1 as of a day ago, or of the day's beginning: their ids rise with time, as those
// that clients make.
const archivedSQL = `
insert into ` + server.Schema + `.task_archive (
  id, type, status, due_at, priority, attempt, max_attempts, fence, worker, unique_key, payload, payload_bytes, metadata,
  created_at, started_at, finished_at, last_error, errors)
select
  (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(i % 4096), 3, '0') || '8' || left(md5(i::text), 15))::uuid,
  $1, 'succeeded', at, 5, 1, null, i, 'bench', null, jsonb_build_object('sent', i), 25, '{}',
  at, at, at, null, '[]'
from generate_series(1, $2::integer) as i
cross join lateral (
  select today.begin + i * (now() - today.begin) / ($2 + 1) as at
  from (select date_trunc('day', now() at time zone 'utc') at time zone 'utc' as begin) as today
) as t`

const archiveSizeSQL = `
select sum(pg_total_relation_size(inhrelid))::float8
from pg_inherits
where inhparent = '` + server.Schema + `.task_archive'::regclass`
