package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// newTestCrawler makes the demo's tables and a crawler of a site with that much room.
func newTestCrawler(t *testing.T, room int) (*crawler, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.New(t)
	ctx := t.Context()
	if _, err := pool.Exec(ctx, schemaSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `insert into demo.site (seed, robots, gap, room) values ('', '', '0', $1)`, room); err != nil {
		t.Fatal(err)
	}
	c, err := newCrawler(ctx, pool, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c, pool
}

func discover(t *testing.T, c *crawler, addresses ...string) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error { return c.discover(t.Context(), tx, addresses) }); err != nil {
		t.Error(err)
	}
}

func number(t *testing.T, pool *pgxpool.Pool, query string) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestDiscoverTogether has many pages find overlapping addresses at once: each becomes known once, with one task, and the
// room is used up exactly.
func TestDiscoverTogether(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name            string
		room, addresses int
		want            int
	}{
		{"more addresses than room", 150, 400, 150},
		{"exactly as many", 400, 400, 400},
		{"fewer addresses than room", 1000, 400, 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, pool := newTestCrawler(t, tc.room)
			var pages sync.WaitGroup
			for range 8 {
				pages.Go(func() {
					for part := range 10 {
						// All find all, in an order of their own, in parts.
						var found []string
						for _, i := range rand.Perm(tc.addresses) {
							if i%10 == part {
								found = append(found, fmt.Sprintf("http://example.com/%d", i))
							}
						}
						discover(t, c, found...)
					}
				})
			}
			pages.Wait()
			if got := number(t, pool, `select count(*) from demo.url`); got != tc.want {
				t.Errorf("%d addresses are known, want %d", got, tc.want)
			}
			if got := number(t, pool, `select room from demo.site`); got != tc.room-tc.want {
				t.Errorf("there is room for %d, want %d", got, tc.room-tc.want)
			}
			if got := number(t, pool, `
				select count(*) from pgwake.tasks as t
				join demo.url as u on u.url = t.payload ->> 'url' and t.type = 'crawl.page'`); got != tc.want {
				t.Errorf("%d addresses have their task, want %d", got, tc.want)
			}
			if got := number(t, pool, `select count(*) from pgwake.tasks`); got != tc.want {
				t.Errorf("there are %d tasks, want %d", got, tc.want)
			}
		})
	}
}

// TestDiscoverInOrder sees that what is first on a page becomes known first.
func TestDiscoverInOrder(t *testing.T) {
	t.Parallel()
	c, pool := newTestCrawler(t, 3)
	for range 2 {
		discover(t, c, "http://example.com/c", "http://example.com/b", "http://example.com/a", "http://example.com/d")
	}
	if got := number(t, pool, `select count(*) from demo.url where url ~ '/[abc]$'`); got != 3 {
		t.Errorf("%d of the page's first three addresses are known", got)
	}
	if got := number(t, pool, `select count(*) from demo.url`); got != 3 {
		t.Errorf("%d addresses are known, want 3", got)
	}
}

// TestFindingsSee breaks the archive in every way that the proof is to notice.
func TestFindingsSee(t *testing.T) {
	t.Parallel()
	c, pool := newTestCrawler(t, 10)
	ctx := t.Context()
	discover(t, c, "http://example.com/")
	for _, tc := range []struct {
		what  string
		list  []finding
		wreck string
	}{
		{"known addresses without a stored page", lostFindings, ``},
		{"tasks that were not settled", lostFindings, ``},
		{"pages whose text was not extracted", lostFindings, `
			insert into demo.page (url, status, content_type, bytes, sha256, body) values ('x', 200, 'text/html', 0, sha256(''), '')`},
		{"bodies that do not have the hash of what was fetched", lostFindings, `
			insert into demo.page (url, status, content_type, bytes, sha256, body) values ('x', 200, '', 1, sha256('b'), 'a')`},
		{"bodies that do not have the hash of what was fetched", lostFindings, `
			insert into demo.page (url, status, content_type, bytes, sha256) values ('x', 200, '', 1, sha256('b'))`},
		{"known addresses whose task is neither live nor archived", lostFindings, `insert into demo.url (url) values ('x')`},
		{"settled tasks that had no effect", lostFindings, archiveSQL},
		{"tasks archived twice", duplicateFindings, archiveSQL + `;` + archiveSQL},
		{"addresses enqueued twice", duplicateFindings, archiveSQL + `;` + archiveSQL},
		{"pages extracted twice", duplicateFindings, strings.ReplaceAll(archiveSQL+`;`+archiveSQL, "crawl.page", "crawl.extract")},
		{"pages stored twice", duplicateFindings, `
			insert into demo.page (url, status, content_type, bytes) values ('x', 200, '', 0), ('x', 200, '', 0)`},
		{"documents stored twice", duplicateFindings, `
			insert into demo.document (url, words, links) values ('x', 0, 0), ('x', 0, 0)`},
		{"effects beyond one of each task", duplicateFindings, effectsSQL},
		{"effects of tasks that are not settled", duplicateFindings, effectsSQL},
	} {
		t.Run(tc.what, func(t *testing.T) {
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			if _, err := tx.Exec(ctx, tc.wreck, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			_, lines, err := countFindings(ctx, tx, tc.list)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(lines, "\n"), tc.what) {
				t.Errorf("not seen; seen are %q", lines)
			}
		})
	}
	if n, lines, err := countFindings(ctx, pool, duplicateFindings); n != 0 || err != nil {
		t.Errorf("%d duplicates where there are none: %q, %v", n, lines, err)
	}
}

const (
	archiveSQL = `
		insert into pgwake.task_archive (
		  id, type, status, due_at, priority, attempt, fence, payload, payload_bytes, metadata, created_at, finished_at, errors)
		values ('00000000-0000-7000-8000-000000000000', 'crawl.page', 'succeeded', now(), 5, 1, 1, '{"url": "x"}', 1, '{}', now(), clock_timestamp(), '[]')`
	effectsSQL = `
		insert into demo.effect (task_id, type, attempt, fence, pid, worker, started, finished)
		select '00000000-0000-7000-8000-000000000001', 'crawl.page', 1, 1, 1, '', now(), now() from generate_series(1, 2)`
)
