package lease_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/lease"
)

// expected is the brute-force claim: it reads all rows and sorts them in Go.
func (f *fixture) expected(t *testing.T, types []string, limit int) []string {
	t.Helper()
	type due struct {
		key, typ string
		priority int16
		at       time.Time
		number   int64 // order of the keys, by the database
	}
	typ, priority := "''", "0::smallint"
	if f.table.Type != "" {
		typ = quote(f.table.Type)
	}
	if f.table.Priority != "" {
		priority = quote(f.table.Priority)
	}
	rows, _ := f.pool.Query(t.Context(), f.sql("select :K::text, "+typ+", "+priority+", :R, row_number() over (order by :K) from :T where :S = $1 and :R < now()"), f.table.States.Queued)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d due, err error) {
		return d, row.Scan(&d.key, &d.typ, &d.priority, &d.at, &d.number)
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.table.Type != "" {
		all = slices.DeleteFunc(all, func(d due) bool { return !slices.Contains(types, d.typ) })
	}
	slices.SortFunc(all, func(a, b due) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority),
			cmp.Compare(slices.Index(types, a.typ), slices.Index(types, b.typ)), a.at.Compare(b.at), cmp.Compare(a.number, b.number))
	})
	keys := make([]string, 0, limit)
	for _, d := range all[:min(limit, len(all))] {
		keys = append(keys, d.key)
	}
	return keys
}

func TestClaimOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		items := make([]item, 300)
		for i := range items {
			// Far enough from now that the test's own time does not matter; some share an instant.
			due := time.Duration(rand.IntN(60)+10) * time.Minute
			if rand.IntN(3) > 0 {
				due = -due
			}
			items[i] = item{typ: string(rune('a' + rand.IntN(4))), priority: rand.IntN(10), due: due}
		}
		f.addMany(t, items)
		f.exec(t, "update :T set :R = date_trunc('hour', :R) - interval '1 h' where :R < now()")
		f.exec(t, "update :T set :S = $1 where :K in (select :K from :T order by random() limit 30)", f.table.States.Frozen)

		types := []string{"b", "a", "c"}
		claimed := 0
		for {
			opts := f.opts(1 + rand.IntN(20))
			opts.Types = types
			want := f.expected(t, types, opts.Limit)
			got, err := f.Claim(t.Context(), f.pool, opts)
			if err != nil {
				t.Fatal(err)
			}
			wantKeys(t, keysOf(got), want)
			claimed += len(got)
			if len(want) == 0 || t.Failed() {
				break
			}
			types = append(types[1:], types[0])
		}
		if claimed < 50 {
			t.Errorf("claimed only %d", claimed)
		}
	})
}

func TestClaimWrites(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	key := f.add(t, item{typ: "b", priority: 3, due: -time.Minute})
	before := decode(t, f.row(t, key))
	begin := time.Now()
	opts := f.opts(5)
	var attempts *int
	var unique *string
	var payload, metadata string
	var created time.Time
	opts.Scan = func(*lease.Lease) []any { return []any{&attempts, &unique, &payload, &metadata, &created} }
	got, err := f.Claim(t.Context(), f.pool, opts)
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	l, after := got[0], decode(t, f.row(t, key))
	if l.Key != key || l.Type != "b" || l.Priority != 3 || l.Attempt != 1 || l.Lost != 0 || l.Holder != holderA || payload != "{}" || metadata != "{}" {
		t.Errorf("lease %+v, payload %q, metadata %q", l, payload, metadata)
	}
	if end := l.Expires.Sub(begin); end < opts.Lease || end > opts.Lease+patience {
		t.Errorf("expires after %s", end)
	}
	between(t, "lease ends", f.remaining(t, key), opts.Lease)
	if micros := one[int64](t, f, "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"); l.Fence > micros || l.Fence < micros-patience.Microseconds() {
		t.Errorf("fence %d, clock %d", l.Fence, micros)
	}
	if after["due_at"] != before["retry_at"] {
		t.Errorf("due at %v, was due %v", after["due_at"], before["retry_at"])
	}
	for column, want := range map[string]any{
		"status": "running", "holder": holderA, "worker": "w", "attempt": 1.0, "fence": float64(l.Fence), "finished_at": nil, "lost": 0.0,
		"created_at": before["created_at"], "unique_key": nil, "errors": []any{},
	} {
		if fmt.Sprint(after[column]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", column, after[column], want)
		}
	}
}

func TestClaimSkipsLocked(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		keys := f.addMany(t, []item{{due: -4 * time.Minute}, {due: -3 * time.Minute}, {due: -2 * time.Minute}, {due: -time.Minute}})
		tx := f.lock(t, keys[0], keys[2])
		wantKeys(t, keysOf(f.claim(t, 2)), []string{keys[1], keys[3]})
		// What was passed over is still due, and a look says so.
		due, _, err := f.Look(t.Context(), f.pool, []string{"a"}, true, nil)
		if err != nil || due > 0 {
			t.Errorf("due in %s, %v", due, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKeys(t, keysOf(f.claim(t, 10)), []string{keys[0], keys[2]})
	})
}

// A row that somebody has locked when the claim comes, and then finishes, moves or claims, is left as that one made it.
func TestClaimOfChangedRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		change := func(tx pgx.Tx, key, status, at string) {
			t.Helper()
			if _, err := tx.Exec(t.Context(), f.sql("update :T set :S = $2, :R = "+at+" where :K::text = $1"), key, status); err != nil {
				t.Fatal(err)
			}
		}
		type claim func(ctx context.Context, db lease.DB, opts lease.ClaimOptions) ([]*lease.Lease, error)
		for name, step := range map[string]struct {
			claim claim
			make  func() []string
		}{
			"queued":  {f.Claim, func() []string { return f.addMany(t, make([]item, 4)) }},
			"expired": {f.claimExpired, func() []string { keys := keysOf(f.holdMany(t, 4)); f.expire(t, keys...); return keys }},
		} {
			keys := step.make()
			tx := f.lock(t, keys[0], keys[1])
			change(tx, keys[0], f.table.States.Frozen, "null")
			change(tx, keys[1], f.table.States.Running, "clock_timestamp() + interval '1 h'")
			got, err := step.claim(t.Context(), f.pool, f.opts(10))
			if err != nil {
				t.Fatal(name, err)
			}
			wantKeys(t, keysOf(got), keys[2:])
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := f.row(t, keys[0]) + f.row(t, keys[1])
			if got, err = step.claim(t.Context(), f.pool, f.opts(10)); err != nil || len(got) != 0 {
				t.Errorf("%s: claimed %v, %v", name, keysOf(got), err)
			}
			if after := f.row(t, keys[0]) + f.row(t, keys[1]); after != before {
				t.Errorf("%s: changed\n%s\n%s", name, before, after)
			}
		}
	})
}

// The same for a claim that waits for the lock, which ClaimRow does.
func TestClaimRowOfChangedRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		key := f.add(t, item{due: -time.Minute})
		states, err := f.States(t.Context(), f.pool, []string{key})
		if err != nil {
			t.Fatal(err)
		}
		tx := f.lock(t, key)
		done := make(chan *lease.Lease)
		go func() {
			defer close(done)
			l, err := f.ClaimRow(t.Context(), f.pool, key, states[key].Fence, f.opts(1))
			if err != nil {
				t.Error(err)
			}
			done <- l
		}()
		pgtest.WaitFor(t, patience, "the claim to wait", func() bool {
			return one[int](t, f, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == 1
		})
		if _, err := tx.Exec(t.Context(), f.sql("update :T set :S = $2, :R = clock_timestamp() + interval '1 h' where :K::text = $1"), key, f.table.States.Running); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l := <-done; l != nil {
			t.Errorf("claimed %+v", l)
		}
		<-done
	})
}

// However many claim at once, each row has one holder.
func TestClaimersShare(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		const rows = 400
		f.addMany(t, make([]item, rows))
		var mu sync.Mutex
		seen := map[string]int{}
		group, ctx := errgroup.WithContext(t.Context())
		for range 8 {
			group.Go(func() error {
				for {
					got, err := f.Claim(ctx, f.pool, f.opts(7))
					if err != nil || len(got) == 0 {
						return err
					}
					mu.Lock()
					for _, l := range got {
						seen[l.Key]++
					}
					mu.Unlock()
				}
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, l := range f.claim(t, rows) { // rows that all eight found locked
			seen[l.Key]++
		}
		for key, n := range seen {
			if n != 1 {
				t.Errorf("%s claimed %d times", key, n)
			}
		}
		if len(seen) != rows {
			t.Errorf("%d rows claimed", len(seen))
		}
	})
}

func TestClaimExpired(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		leases := f.holdMany(t, 3)
		lost, alive := leases[0], leases[1]
		f.add(t, item{due: -time.Minute}) // due, but not expired
		for round := 1; round <= 3; round++ {
			f.expire(t, lost.Key)
			got, err := f.claimExpired(t.Context(), f.pool, f.opts(10))
			if err != nil || len(got) != 1 || got[0].Key != lost.Key {
				t.Fatal(got, err)
			}
			l := got[0]
			if f.table.Lost != "" && l.Lost != round {
				t.Errorf("round %d: lost %d", round, l.Lost)
			}
			if f.table.Attempt != "" && l.Attempt != round+1 {
				t.Errorf("round %d: attempt %d", round, l.Attempt)
			}
			if l.Fence <= lost.Fence {
				t.Errorf("fence %d after %d", l.Fence, lost.Fence)
			}
			if done, err := f.Settle(t.Context(), f.pool, holderA, []lease.Settlement{{Lease: lost, Status: f.table.States.Final[0]}}); err != nil || len(done) != 0 {
				t.Errorf("settled by the lost lease: %v, %v", done, err)
			}
			lost = l
		}
		if found, err := f.Lost(t.Context(), f.pool, []*lease.Lease{lost, alive}); err != nil || len(found) != 0 {
			t.Error(found, err)
		}
		// A run that its worker saw to the end sets the counter back.
		if f.table.Lost != "" {
			s := lease.Settlement{Lease: lost, Status: f.table.States.Queued, Started: true}
			if done, err := f.Settle(t.Context(), f.pool, holderA, []lease.Settlement{s}); err != nil || len(done) != 1 {
				t.Fatal(done, err)
			}
			if n := f.column(t, lost.Key, f.table.Lost); n != "0" {
				t.Errorf("lost %s", n)
			}
		}
	})
}

// Every expired row is either a suspect or not: one that lost a worker before, or for which this is the last attempt.
func TestClaimSuspects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	edits := []struct {
		set     string
		suspect bool
	}{
		{"lost = 0, attempt = 1", false},
		{"lost = 1, attempt = 1", true},
		{"lost = 0, attempt = 2", false},
		{"lost = 0, attempt = 3", true}, // of 4, by the type
		{"lost = 0, attempt = 5", true},
		{"lost = 0, attempt = 3, max_attempts = 5", false},
		{"lost = 0, attempt = 1, max_attempts = 2", true},
		{"lost = 0, attempt = 2147483647", true},
		{"lost = 0, attempt = 3, type = 'b'", false}, // of 10
	}
	leases := f.holdMany(t, len(edits))
	want := map[bool][]string{}
	for i, e := range edits {
		f.exec(t, "update :T set "+e.set+" where :K::text = $1", leases[i].Key)
		want[e.suspect] = append(want[e.suspect], leases[i].Key)
	}
	f.exec(t, "update :T set :R = now() - interval '1 s'")
	opts := f.opts(100)
	opts.MaxAttempts = []int32{4, 10, 4}
	got, err := f.ClaimExpired(t.Context(), f.pool, opts)
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, keysOf(got), want[false])
	if got, err = f.ClaimSuspects(t.Context(), f.pool, opts); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, keysOf(got), want[true])
}

func TestLostCounterEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	l := f.hold(t)
	f.exec(t, "update :T set lost = 32767, :R = now() - interval '1 s'")
	got, err := f.claimExpired(t.Context(), f.pool, f.opts(1))
	if err != nil || len(got) != 1 || got[0].Key != l.Key || got[0].Lost != 32767 {
		t.Error(got, err)
	}
}

// A row that somebody has edited to the limits of its columns neither fails the claim of its neighbours nor stays behind.
func TestClaimOfEditedRows(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "odd")
	edits := []string{
		`"Attempt #" = 2147483647`, `"Attempt #" = 2147483646`, `"Attempt #" = 32767`, `"Attempt #" = null`, `"a.b" = null`,
		`"due--@x" = '-infinity'`, `"Errors" = null`, `"Errors" = '{"not": "a list"}'`, `"{{.Key}}" = null`, `"select" = 'c'`,
	}
	want := []int{2147483647, 2147483647, 32768, 1, 1, 1, 1, 1, 1, 1}
	keys := f.addMany(t, make([]item, len(edits)))
	for i, edit := range edits {
		f.exec(t, "update :T set "+edit+" where :K = $1", keys[i])
	}
	if due, _, err := f.Look(t.Context(), f.pool, []string{"a"}, true, nil); err != nil || due > 0 {
		t.Errorf("due in %s, %v", due, err)
	}
	leases := f.claim(t, 100)
	wantKeys(t, keysOf(leases), keys)
	batch := make([]lease.Settlement, len(leases))
	for i, l := range leases {
		if n := want[slices.Index(keys, l.Key)]; l.Attempt != n {
			t.Errorf("%s: attempt %d, want %d", edits[slices.Index(keys, l.Key)], l.Attempt, n)
		}
		batch[i] = lease.Settlement{Lease: l, Status: f.table.States.Frozen, Error: "e", Entry: []byte(`{"n": 1}`)}
	}
	f.expire(t, keys...)
	again, err := f.claimExpired(t.Context(), f.pool, f.opts(100))
	if err != nil {
		t.Fatal(err)
	}
	wantKeys(t, keysOf(again), keys)
	for i, l := range again {
		batch[i].Lease = l
	}
	if done, err := f.Settle(t.Context(), f.pool, holderA, batch); err != nil || len(done) != len(batch) {
		t.Error(done, err)
	}
	for i, key := range keys {
		if n := one[int](t, f, `select jsonb_array_length("Errors") from :T where :K = $1`, key); n != 1 {
			t.Errorf("%s: %d errors", edits[i], n)
		}
	}
	if n := one[int](t, f, `select max("{{.Key}}") from :T`); n != 1 {
		t.Errorf("lost %d", n)
	}
}

func TestClaimRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		key := f.add(t, item{due: -time.Minute})
		states, err := f.States(t.Context(), f.pool, []string{key, "0"}[:1])
		if err != nil || states[key] == nil {
			t.Fatal(states, err)
		}
		seen := states[key].Fence
		won := make([]*lease.Lease, 16)
		group, ctx := errgroup.WithContext(t.Context())
		for i := range won {
			group.Go(func() (err error) {
				won[i], err = f.ClaimRow(ctx, f.pool, key, seen, f.opts(1))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		won = slices.DeleteFunc(won, func(l *lease.Lease) bool { return l == nil })
		if len(won) != 1 {
			t.Fatalf("%d winners", len(won))
		}
		if f.table.Attempt != "" && won[0].Attempt != 1 {
			t.Errorf("attempt %d", won[0].Attempt)
		}

		refused := func(what string, seen int64) {
			t.Helper()
			if l, err := f.ClaimRow(t.Context(), f.pool, key, seen, f.opts(1)); err != nil || l != nil {
				t.Errorf("%s: %+v, %v", what, l, err)
			}
		}
		refused("leased", won[0].Fence)
		early := f.add(t, item{due: time.Hour})
		key = early
		if states, err = f.States(t.Context(), f.pool, []string{key}); err != nil {
			t.Fatal(err)
		}
		refused("early", states[key].Fence)
		if err := f.Pause(t.Context(), f.pool, key); err != nil {
			t.Fatal(err)
		}
		if states, err = f.States(t.Context(), f.pool, []string{key}); err != nil {
			t.Fatal("state of a paused row:", err)
		}
		refused("paused", states[key].Fence)
		// An expired row can be picked too, but not by somebody who saw it before its last claim.
		key = won[0].Key
		f.expire(t, key)
		refused("seen long ago", seen)
		if states, err = f.States(t.Context(), f.pool, []string{key}); err != nil {
			t.Fatal(err)
		}
		if l, err := f.ClaimRow(t.Context(), f.pool, key, states[key].Fence, f.opts(1)); err != nil || l == nil {
			t.Errorf("expired: %v, %v", l, err)
		}
	})
}

// After a crash that forgot a claim the row is as it was before, its old fence included. The fence of the next claim must
// not be that of the forgotten one, whose holder may still be there.
func TestFenceAfterCrash(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"own", "odd"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, kind)
			key := f.add(t, item{due: -time.Minute})
			columns := []string{f.table.Status, f.table.RetryAt, f.table.Fence, f.table.Attempt}
			set, values := "", ""
			for i, c := range columns {
				if i > 0 {
					set, values = set+", ", values+", "
				}
				set, values = set+quote(c)+" = b."+quote(c), values+quote(c)
			}
			f.exec(t, "create table public.before as select :K, "+values+" from :T")
			zombie := f.claim(t, 1)[0]
			f.exec(t, "update :T as t set "+set+" from public.before as b where t.:K = b.:K")
			heir := f.claim(t, 1)[0]
			if heir.Key != key || heir.Fence <= zombie.Fence {
				t.Errorf("fence %d after %d", heir.Fence, zombie.Fence)
			}
			// The same holder, since a worker run survives the server's crash.
			if got, err := f.Renew(t.Context(), f.pool, holderA, []*lease.Lease{zombie}, time.Hour); err != nil || len(got) != 0 {
				t.Error("zombie renews", got, err)
			}
			if got, err := f.Settle(t.Context(), f.pool, holderA, []lease.Settlement{{Lease: zombie, Status: f.table.States.Final[0]}}); err != nil || len(got) != 0 {
				t.Error("zombie settles", got, err)
			}
			wantLost(t, f.Requeue(t.Context(), f.pool, zombie, 0), f.table.States.Running)
			if err := f.Bump(t.Context(), f.pool, heir, time.Hour); err != nil {
				t.Error(err)
			}
		})
	}
}

// Where the clock is behind the fence, after a step back of the server's clock, it still rises.
func TestFenceRises(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	f.add(t, item{due: -time.Minute})
	const ahead = int64(1) << 60
	f.exec(t, "update :T set :F = $1", ahead)
	if l := f.claim(t, 1)[0]; l.Fence != ahead+1 {
		t.Errorf("fence %d", l.Fence)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		look := func(leases bool) (due, end time.Duration) {
			t.Helper()
			due, end, err := f.Look(t.Context(), f.pool, []string{"a", "b"}, leases, nil)
			if err != nil {
				t.Fatal(err)
			}
			return due, end
		}
		if due, end := look(true); due != lease.Never || end != lease.Never {
			t.Errorf("empty: %s, %s", due, end)
		}

		held := f.holdMany(t, 2)
		keys := f.addMany(t, []item{{due: 40 * time.Minute, priority: 9}, {due: 50 * time.Minute, typ: "b"}, {due: 60 * time.Minute}})
		if f.table.Type != "" {
			f.add(t, item{typ: "z", due: -time.Minute}) // of a type not asked for
		}
		f.exec(t, "update :T set :R = clock_timestamp() + interval '30 min' where :K::text = $1", held[1].Key)
		near := func(what string, got time.Duration, key string) {
			t.Helper()
			// By the database's arithmetic, a moment later.
			if want := f.remaining(t, key); got < want || got > want+patience {
				t.Errorf("%s in %s, want %s", what, got, want)
			}
		}
		due, end := look(true)
		near("due", due, keys[0])
		near("lease ends", end, held[0].Key)
		if _, end := look(false); end != lease.Never {
			t.Errorf("lease ends in %s, not asked for", end)
		}

		// Paused rows are not ahead, and their infinity is no error.
		for _, key := range []string{keys[0], held[0].Key} {
			if err := f.Pause(t.Context(), f.pool, key); err != nil {
				t.Fatal(err)
			}
		}
		due, end = look(true)
		near("due", due, keys[1])
		near("lease ends", end, held[1].Key)
		f.exec(t, "update :T set :R = 'infinity' where :S = any ($1)", []string{f.table.States.Queued, f.table.States.Running})
		if due, end := look(true); due != lease.Never || end != lease.Never {
			t.Errorf("all at infinity: %s, %s", due, end)
		}
		if got := f.claim(t, 10); len(got) != 0 {
			t.Errorf("claimed %v", keysOf(got))
		}
		f.exec(t, "update :T set :R = '200000-01-01Z' where :K::text = $1", keys[1])
		if due, _ := look(true); due != lease.Never {
			t.Errorf("due in %s, in year 200000", due)
		}
		f.exec(t, "update :T set :R = '4000-01-01 BC' where :K::text = $1", keys[1])
		if due, _ := look(true); due > 0 {
			t.Errorf("due in %s, since 4000 BC", due)
		}
	})
}
