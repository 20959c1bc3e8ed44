package lease_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/lease"
)

func (f *fixture) renew(t *testing.T, holder string, leases []*lease.Lease, d time.Duration) []string {
	t.Helper()
	renewed, err := f.Renew(t.Context(), f.pool, holder, leases, d)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]string, 0, len(renewed))
	for _, r := range renewed {
		keys = append(keys, r.Key)
		for _, l := range leases {
			if l.Key == r.Key && l.Holder == holder {
				if f.table.Fence != "" && r.Fence != l.Fence || f.table.Fence == "" && r.Fence == l.Fence {
					t.Errorf("fence %d, was %d", r.Fence, l.Fence)
				}
				l.Fence = r.Fence
			}
		}
	}
	return keys
}

func (f *fixture) settle(t *testing.T, holder string, batch ...lease.Settlement) []string {
	t.Helper()
	done, err := f.Settle(t.Context(), f.pool, holder, batch)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func (f *fixture) lost(t *testing.T, leases ...*lease.Lease) map[string]*lease.LostError {
	t.Helper()
	lost, err := f.Lost(t.Context(), f.pool, leases)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]*lease.LostError{}
	for _, l := range lost {
		m[l.Key] = l
	}
	return m
}

func TestRenew(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		leases := f.holdMany(t, 6)
		paused, frozen, stale, gone := leases[2], leases[3], leases[4], leases[5]
		if err := f.Pause(t.Context(), f.pool, paused.Key); err != nil {
			t.Fatal(err)
		}
		f.exec(t, "update :T set :S = $1, :R = null where :K::text = $2", f.table.States.Frozen, frozen.Key)
		f.expire(t, stale.Key)
		again, err := f.claimExpired(t.Context(), f.pool, f.opts(10))
		if err != nil || len(again) != 1 {
			t.Fatal(again, err)
		}
		f.exec(t, "delete from :T where :K::text = $1", gone.Key)
		before := map[string]string{}
		for _, l := range leases[2:] {
			before[l.Key] = f.row(t, l.Key)
		}

		wantKeys(t, f.renew(t, holderA, leases, time.Hour), keysOf(leases[:2]))
		for _, l := range leases[:2] {
			between(t, "renewed lease ends", f.remaining(t, l.Key), time.Hour)
		}
		for _, l := range leases[2:] {
			if after := f.row(t, l.Key); after != before[l.Key] {
				t.Errorf("changed\n%s\n%s", before[l.Key], after)
			}
		}
		lost := f.lost(t, leases...)
		wantKeys(t, slices.Collect(maps.Keys(lost)), keysOf(leases[2:]))
		wantLost(t, lost[paused.Key], f.table.States.Paused)
		wantLost(t, lost[frozen.Key], f.table.States.Frozen)
		wantLost(t, lost[stale.Key], f.table.States.Running)
		wantLost(t, lost[gone.Key], "")
		if found := lost[stale.Key].Found; found.Fence != again[0].Fence {
			t.Errorf("found fence %d, want %d", found.Fence, again[0].Fence)
		}

		// A shorter renewal does not take away what was promised, and every value is new.
		f.renew(t, holderA, leases[:1], time.Second)
		between(t, "lease ends", f.remaining(t, leases[0].Key), time.Hour)
		if got := f.renew(t, holderA, nil, time.Hour); len(got) != 0 {
			t.Error(got)
		}
		if f.table.Holder != "" {
			if got := f.renew(t, holderB, leases[:2], 2*time.Hour); len(got) != 0 {
				t.Errorf("another holder renewed %v", got)
			}
			between(t, "lease ends", f.remaining(t, leases[0].Key), time.Hour)
		}
	})
}

// One row that somebody keeps locked stops neither the renewal nor the settlement of others, and it is not lost.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		leases := f.holdMany(t, 100)
		tx := f.lock(t, leases[50].Key)
		others := keysOf(slices.Concat(leases[:50], leases[51:]))
		// The lock is kept for as long as the test: waiting for it would never end.
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		renewed, err := f.Renew(ctx, f.pool, holderA, leases, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for _, r := range renewed {
			keys = append(keys, r.Key)
			for _, l := range leases {
				if l.Key == r.Key {
					l.Fence = r.Fence
				}
			}
		}
		wantKeys(t, keys, others)
		var batch []lease.Settlement
		for i, l := range leases {
			s := lease.Settlement{Lease: l, Status: f.table.States.Final[0]}
			if i%2 == 0 {
				s.Status = f.table.States.Queued
			}
			batch = append(batch, s)
		}
		done, err := f.Settle(ctx, f.pool, holderA, batch)
		if err != nil {
			t.Fatal(err)
		}
		wantKeys(t, done, others)
		if lost := f.lost(t, leases[50]); len(lost) != 0 {
			t.Errorf("locked row taken for lost: %v", lost)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKeys(t, f.renew(t, holderA, leases[50:51], time.Hour), []string{leases[50].Key})
		wantKeys(t, f.settle(t, holderA, lease.Settlement{Lease: leases[50], Status: f.table.States.Final[0]}), []string{leases[50].Key})
	})
}

// Two batches over the same rows in opposite order: the last word on lock order is the statement's.
func TestNoDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	const rows, rounds = 500, 50
	leases := f.holdMany(t, rows)
	opposite := slices.Clone(leases)
	slices.Reverse(opposite)
	batch := func(leases []*lease.Lease) []lease.Settlement {
		list := make([]lease.Settlement, len(leases))
		for i, l := range leases {
			list[i] = lease.Settlement{Lease: l, Status: f.table.States.Frozen}
		}
		return list
	}
	settle := map[bool][]lease.Settlement{false: batch(leases), true: batch(opposite)}
	for round := range rounds {
		var both [2][]string
		start := make(chan struct{}) // closed below, so that both begin at once
		group, ctx := errgroup.WithContext(t.Context())
		for i := range both {
			conn, err := f.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() (err error) {
				defer conn.Release()
				<-start
				if _, err := f.Renew(ctx, conn, holderA, [][]*lease.Lease{leases, opposite}[i], time.Hour); err != nil {
					return err
				}
				both[i], err = f.Settle(ctx, conn, holderA, settle[i == 1])
				return err
			})
		}
		close(start)
		if err := group.Wait(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		// Both passed over what the other had locked or just renewed; what is left is settled now, and nothing twice.
		rest := f.settle(t, holderA, settle[false]...)
		if n := len(both[0]) + len(both[1]) + len(rest); n != rows {
			t.Fatalf("round %d: settled %d + %d + %d", round, len(both[0]), len(both[1]), len(rest))
		}
		f.exec(t, "update :T set status = 'running', holder = $1, retry_at = clock_timestamp() + interval '1 min'", holderA)
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		states := f.table.States
		leases := f.holdMany(t, 7)
		succeeded, last, retried, snoozed, frozen, untouched, stale := leases[0], leases[1], leases[2], leases[3], leases[4], leases[5], leases[6]
		outdated := *stale
		outdated.Fence--
		before := f.row(t, untouched.Key) + f.row(t, stale.Key)
		done := f.settle(t, holderA,
			lease.Settlement{Lease: snoozed, Status: states.Queued, Delay: 3 * time.Hour, Unspent: true, Started: true},
			lease.Settlement{Lease: succeeded, Status: states.Final[0], Started: true},
			lease.Settlement{Lease: retried, Status: states.Queued, Delay: 2 * time.Hour, Started: true, Error: "oops", Entry: []byte(`{"error": "oops", "n": 1}`)},
			lease.Settlement{Lease: last, Status: states.Final[len(states.Final)-1], Started: true, Error: "no"},
			lease.Settlement{Lease: &outdated, Status: states.Final[0]},
			lease.Settlement{Lease: frozen, Status: states.Frozen, Error: "stuck", Entry: []byte(`{"error": "stuck"}`)},
		)
		wantKeys(t, done, keysOf(leases[:5]))
		if after := f.row(t, untouched.Key) + f.row(t, stale.Key); after != before {
			t.Errorf("changed\n%s\n%s", before, after)
		}
		if lost := f.lost(t, &outdated, untouched, stale); len(lost) != 1 || lost[stale.Key] == nil {
			t.Errorf("lost %v", lost)
		}
		want := map[*lease.Lease]string{retried: states.Queued, snoozed: states.Queued, frozen: states.Frozen}
		if f.table.Archive == nil {
			want[succeeded], want[last] = states.Final[0], states.Final[len(states.Final)-1]
		} else {
			for _, l := range []*lease.Lease{succeeded, last} {
				if row := f.row(t, l.Key); row != "null" {
					t.Errorf("still there: %s", row)
				}
			}
		}
		for l, status := range want {
			if got := f.column(t, l.Key, f.table.Status); got != status {
				t.Errorf("status %q, want %q", got, status)
			}
			if at := f.column(t, l.Key, f.table.RetryAt); (at == "") != (status != states.Queued) {
				t.Errorf("%s: retry_at %q", status, at)
			}
		}
		between(t, "retried", f.remaining(t, retried.Key), 2*time.Hour)
		between(t, "snoozed", f.remaining(t, snoozed.Key), 3*time.Hour)
		if f.table.Attempt != "" {
			for l, want := range map[*lease.Lease]string{retried: "1", snoozed: "0", frozen: "1"} {
				if n := f.column(t, l.Key, f.table.Attempt); n != want {
					t.Errorf("attempt %s, want %s", n, want)
				}
			}
		}
		if f.table.LastError != "" {
			for l, want := range map[*lease.Lease]string{retried: "oops", snoozed: "", frozen: "stuck"} {
				if got := f.column(t, l.Key, f.table.LastError); got != want {
					t.Errorf("last error %q, want %q", got, want)
				}
			}
		}
		if f.table.Holder != "" {
			for l := range want {
				if h := f.column(t, l.Key, f.table.Holder); h != "" {
					t.Errorf("holder %s", h)
				}
			}
			if got := f.settle(t, holderB, lease.Settlement{Lease: untouched, Status: states.Final[0]}); len(got) != 0 {
				t.Error("another holder settled", got)
			}
		}
		// Nothing is settled twice.
		if got := f.settle(t, holderA, lease.Settlement{Lease: retried, Status: states.Final[0]}, lease.Settlement{Lease: frozen, Status: states.Final[0]}, lease.Settlement{Lease: succeeded, Status: states.Final[0]}); len(got) != 0 {
			t.Errorf("settled twice: %v", got)
		}
		if got := f.settle(t, holderA); len(got) != 0 {
			t.Error(got)
		}
	})
}

// The archive has what the task had, column by column, and what the settlement adds.
func TestArchived(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	keys := f.addMany(t, make([]item, 3))
	f.exec(t, `update :T set priority = 7, max_attempts = 9, unique_key = id::text, metadata = '{"m": [1]}', attempt = 2,
		last_error = 'before', errors = '[{"error": "before"}]', payload = '{"p": "ü"}'`)
	// Compressed, a payload may take much less than its text; these are random.
	f.exec(t, "update :T set payload = to_jsonb((select string_agg(md5(random()::text), '') from generate_series(1, 250))) where :K::text = $1", keys[1]) // 8,000 bytes
	f.exec(t, "update :T set payload = to_jsonb((select string_agg(md5(random()::text), '') from generate_series(1, 1000))) where :K::text = $1", keys[2])
	leases := map[string]*lease.Lease{}
	for _, l := range f.claim(t, 3) {
		leases[l.Key] = l
	}
	before := map[string]map[string]any{}
	for _, key := range keys {
		before[key] = decode(t, f.row(t, key))
		before[key]["payload_bytes"] = one[float64](t, f, "select pg_column_size(payload)::float8 from :T where :K::text = $1", key)
	}
	started := one[time.Time](t, f, "select clock_timestamp()")
	done := f.settle(t, holderA,
		lease.Settlement{Lease: leases[keys[0]], Status: "succeeded", Started: true},
		lease.Settlement{Lease: leases[keys[1]], Status: "cancelled", Error: "not wanted", Entry: []byte(`{"error": "not wanted"}`)},
		lease.Settlement{Lease: leases[keys[2]], Status: "succeeded", Unspent: true})
	wantKeys(t, done, keys)

	var columns []string
	for i, key := range keys {
		row := decode(t, one[string](t, f, "select to_jsonb(x)::text from pgwake.task_archive as x where id::text = $1", key))
		columns = slices.Sorted(maps.Keys(row))
		want := maps.Clone(before[key])
		want["status"] = []string{"succeeded", "cancelled", "succeeded"}[i]
		want["attempt"] = []float64{3, 3, 2}[i]
		if i == 1 {
			want["last_error"] = "not wanted"
			entry := row["errors"].([]any)[1].(map[string]any)
			at, err := time.Parse(time.RFC3339Nano, entry["at"].(string))
			if err != nil || at.Before(started) || at.After(started.Add(patience)) {
				t.Errorf("entry at %v, %v", entry["at"], err)
			}
			want["errors"] = append(want["errors"].([]any), map[string]any{"error": "not wanted", "at": entry["at"]})
		}
		if i == 2 {
			want["payload"] = nil // too large
		}
		finished, err := time.Parse(time.RFC3339Nano, row["finished_at"].(string))
		if err != nil || finished.Before(started) || finished.After(started.Add(patience)) {
			t.Errorf("finished at %v, %v", row["finished_at"], err)
		}
		delete(row, "finished_at")
		for column, got := range row {
			if fmt.Sprint(got) != fmt.Sprint(want[column]) {
				t.Errorf("%d: %s is %.200v, want %.200v", i, column, got, want[column])
			}
		}
	}
	wantColumns := []string{"attempt", "created_at", "due_at", "errors", "fence", "finished_at", "id", "last_error", "max_attempts", "metadata", "payload",
		"payload_bytes", "priority", "started_at", "status", "type", "unique_key", "worker"}
	if !slices.Equal(columns, wantColumns) {
		t.Errorf("columns %v", columns)
	}
}

func TestErrorsKeepTheLastTen(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"own", "odd"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, kind)
			key := f.add(t, item{due: -time.Minute})
			for n := 1; n <= 13; n++ {
				l := f.claim(t, 1)
				if len(l) != 1 {
					t.Fatal(l)
				}
				entry, _ := json.Marshal(map[string]any{"n": n})
				f.settle(t, holderA, lease.Settlement{Lease: l[0], Status: f.table.States.Queued, Error: fmt.Sprint(n), Entry: entry})
				var got []struct{ N int }
				if err := json.Unmarshal([]byte(f.column(t, key, f.table.Errors)), &got); err != nil {
					t.Fatal(err)
				}
				first := max(1, n-9)
				if len(got) != n-first+1 || got[0].N != first || got[len(got)-1].N != n {
					t.Errorf("after %d: %v", n, got)
				}
			}
		})
	}
}

// A hand-back that does not count never makes a negative count, which the table would refuse with all of the batch.
func TestUnspentAttemptOfEditedRow(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	leases := f.holdMany(t, 3)
	f.exec(t, "update :T set attempt = 0")
	wantKeys(t, f.settle(t, holderA,
		lease.Settlement{Lease: leases[0], Status: "queued", Unspent: true},
		lease.Settlement{Lease: leases[1], Status: "succeeded", Unspent: true},
		lease.Settlement{Lease: leases[2], Status: "queued"}), keysOf(leases))
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		l := f.hold(t)
		old := *l
		if err := f.Requeue(t.Context(), f.pool, l, time.Hour); err != nil {
			t.Fatal(err)
		}
		between(t, "due", f.remaining(t, l.Key), time.Hour)
		if s := f.column(t, l.Key, f.table.Status); s != f.table.States.Queued {
			t.Errorf("status %q", s)
		}
		if f.table.Attempt != "" && f.column(t, l.Key, f.table.Attempt) != "1" {
			t.Error("the attempt came back")
		}
		if f.table.DueAt != "" {
			if d := one[time.Duration](t, f, "select due_at - retry_at from :T"); d.Abs() > time.Second {
				t.Errorf("due_at is %s from retry_at", d)
			}
		}
		wantLost(t, f.Requeue(t.Context(), f.pool, &old, 0), f.table.States.Queued)
		wantLost(t, f.Requeue(t.Context(), f.pool, l, 0), f.table.States.Queued)

		// Without delay it is due at once, long before the lease would have ended.
		l = f.hold(t)
		if err := f.Requeue(t.Context(), f.pool, l, 0); err != nil {
			t.Fatal(err)
		}
		next := f.claim(t, 1)
		if len(next) != 1 || next[0].Key != l.Key {
			t.Fatalf("not due: %v", next)
		}
		if l := next[0]; l.Fence <= old.Fence {
			t.Errorf("fence %d", l.Fence)
		}
		wantLost(t, f.Bump(t.Context(), f.pool, l, time.Hour), f.table.States.Running)
	})
}

func TestBump(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		l := f.hold(t)
		if err := f.Bump(t.Context(), f.pool, l, time.Hour); err != nil {
			t.Fatal(err)
		}
		between(t, "lease ends", f.remaining(t, l.Key), time.Hour)
		if err := f.Bump(t.Context(), f.pool, l, lease.DefaultBump); err != nil {
			t.Fatal(err)
		}
		between(t, "lease ends", f.remaining(t, l.Key), time.Hour)
		// The token follows.
		wantKeys(t, f.renew(t, holderA, []*lease.Lease{l}, 2*time.Hour), []string{l.Key})
		if err := f.Pause(t.Context(), f.pool, l.Key); err != nil {
			t.Fatal(err)
		}
		wantLost(t, f.Bump(t.Context(), f.pool, l, time.Hour), f.table.States.Paused)
		f.exec(t, "delete from :T")
		wantLost(t, f.Bump(t.Context(), f.pool, l, time.Hour), "")
	})
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "odd")
	l := f.hold(t)
	if err := f.Update(t.Context(), f.pool, l, map[string]any{"$1": "new", "last'error": "e", "{{.Key}}": 5}); err != nil {
		t.Fatal(err)
	}
	if got := f.column(t, l.Key, "$1") + f.column(t, l.Key, "last'error") + f.column(t, l.Key, "{{.Key}}"); got != "newe5" {
		t.Error(got)
	}
	for _, columns := range []map[string]any{{"State": "x"}, {"due--@x": time.Now()}, {"a.b": 1}, {"order": "x"}, {}} {
		if err := f.Update(t.Context(), f.pool, l, columns); err == nil {
			t.Errorf("%v accepted", columns)
		}
	}
	stale := *l
	stale.Fence--
	wantLost(t, f.Update(t.Context(), f.pool, &stale, map[string]any{"$1": "stale"}), f.table.States.Running)
	if got := f.column(t, l.Key, "$1"); got != "new" {
		t.Error(got)
	}
	own := newFixture(t, "own")
	l = own.hold(t)
	if err := own.Update(t.Context(), own.pool, l, map[string]any{"holder": holderB}); err == nil {
		t.Error("holder accepted")
	}
	if err := own.Update(t.Context(), own.pool, l, map[string]any{"metadata": `{"a": 1}`, "payload": "[1]"}); err != nil {
		t.Error(err)
	}
	if got := own.column(t, l.Key, "metadata") + own.column(t, l.Key, "payload"); got != `{"a": 1}[1]` {
		t.Error(got)
	}
}
