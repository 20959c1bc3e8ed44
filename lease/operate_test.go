package lease_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/pgwake/pgwake/lease"
)

func TestPauseResume(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		states := f.table.States
		queued, running := f.add(t, item{due: -time.Minute}), ""
		for _, l := range f.claim(t, 1) {
			running = l.Key
		}
		held := f.hold(t)
		for _, key := range []string{running, held.Key} {
			if err := f.Pause(t.Context(), f.pool, key); err != nil {
				t.Fatal(err)
			}
			if got := f.column(t, key, f.table.Status) + f.column(t, key, f.table.RetryAt); got != states.Paused+"infinity" {
				t.Error(got)
			}
		}
		if f.table.Fence != "" {
			if fence := one[int64](t, f, "select :F from :T where :K::text = $1", held.Key); fence <= held.Fence {
				t.Errorf("fence %d, held %d", fence, held.Fence)
			}
		}
		// The holder can do nothing any more.
		before := f.row(t, held.Key)
		if got := f.renew(t, holderA, []*lease.Lease{held}, time.Hour); len(got) != 0 {
			t.Error("renewed", got)
		}
		if got := f.settle(t, holderA, lease.Settlement{Lease: held, Status: states.Final[0]}); len(got) != 0 {
			t.Error("settled", got)
		}
		wantLost(t, f.Requeue(t.Context(), f.pool, held, 0), states.Paused)
		if after := f.row(t, held.Key); after != before {
			t.Errorf("changed\n%s\n%s", before, after)
		}
		if got := f.claim(t, 10); len(got) != 0 {
			t.Error("claimed", keysOf(got))
		}

		if err := f.Resume(t.Context(), f.pool, held.Key, time.Time{}); err != nil {
			t.Fatal(err)
		}
		between(t, "due", f.remaining(t, held.Key), 0)
		// Back in the queue, the former holder's right does not come back.
		if got := f.settle(t, holderA, lease.Settlement{Lease: held, Status: states.Final[0]}); len(got) != 0 {
			t.Error("settled", got)
		}
		next := f.claim(t, 10)
		wantKeys(t, keysOf(next), []string{held.Key})
		if got := f.settle(t, holderA, lease.Settlement{Lease: held, Status: states.Final[0]}); len(got) != 0 {
			t.Error("settled", got)
		}
		at := time.Now().Add(48 * time.Hour).Truncate(time.Microsecond)
		if err := f.Resume(t.Context(), f.pool, running, at); err != nil {
			t.Fatal(err)
		}
		if got := one[time.Time](t, f, "select :R from :T where :K::text = $1", running); !got.Equal(at) {
			t.Errorf("due at %s, want %s", got, at)
		}

		for what, err := range map[string]error{
			"resume queued":  f.Resume(t.Context(), f.pool, running, time.Time{}),
			"resume running": f.Resume(t.Context(), f.pool, held.Key, time.Time{}),
		} {
			if !errors.Is(err, lease.ErrNotPausable) {
				t.Errorf("%s: %v", what, err)
			}
		}
		f.exec(t, "update :T set :S = $1, :R = null where :K::text = $2", states.Frozen, queued)
		if err := f.Pause(t.Context(), f.pool, queued); !errors.Is(err, lease.ErrNotPausable) {
			t.Errorf("pause frozen: %v", err)
		}
		f.exec(t, "delete from :T where :K::text = $1", queued)
		if err := f.Pause(t.Context(), f.pool, queued); !errors.Is(err, lease.ErrNotPausable) {
			t.Errorf("pause what is gone: %v", err)
		}
	})
}

func TestPauseWithoutState(t *testing.T) {
	t.Parallel()
	table := kinds["plain"].table
	table.States.Paused = ""
	q, err := lease.New(table)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Pause(t.Context(), nil, "1"); err == nil {
		t.Error("no error")
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		check := func(want map[string]int64) {
			t.Helper()
			if got, err := f.Counts(t.Context(), f.pool); err != nil || !maps.Equal(got, want) {
				t.Errorf("%v, want %v, %v", got, want, err)
			}
		}
		check(map[string]int64{})
		leases := f.holdMany(t, 3)
		f.addMany(t, make([]item, 5))
		if err := f.Pause(t.Context(), f.pool, leases[0].Key); err != nil {
			t.Fatal(err)
		}
		check(map[string]int64{f.table.States.Running: 2, f.table.States.Paused: 1, f.table.States.Queued: 5})
	})
}
