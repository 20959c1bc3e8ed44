package pgwake

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestInspectTask(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	in := b.Inspector()
	id := b.enqueue(t, task("a", `{"x": 1}`), &EnqueueOptions{UniqueKey: "k"})
	got, err := in.Task(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != id || got.Status != Queued || !got.DueAt.Equal(*got.RetryAt) || got.Attempt != 0 || got.FinishedAt != nil || got.Worker != nil || len(got.Errors) != 0 {
		t.Errorf("%+v", got)
	}
	b.exec(t, `update pgwake.tasks set status = 'running', holder = id, fence = 3, attempt = 2, worker = 'w', retry_at = now() + interval '1 min', started_at = now(),
		last_error = 'e', errors = '[{"attempt": 1, "at": "2026-01-02T03:04:05.678901+05:45", "error": "e", "stack": "s", "worker": "w"}]'`)
	if got, err = in.Task(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 1, 21, 19, 5, 678_901_000, time.UTC)
	if got.Status != Running || got.Fence != 3 || got.Attempt != 2 || *got.Worker != "w" || *got.LastError != "e" || len(got.Errors) != 1 || !got.Errors[0].At.Equal(at) || got.Errors[0].Stack != "s" {
		t.Errorf("%+v", got)
	}
	b.exec(t, "update pgwake.tasks set status = 'paused', retry_at = 'infinity'")
	if got, err = in.Task(t.Context(), id); err != nil || got.Status != Paused || got.RetryAt != nil {
		t.Errorf("%+v, %v", got, err)
	}
	complete := func() {
		t.Helper()
		b.exec(t, "update pgwake.tasks set status = 'running', holder = id, fence = 3, retry_at = now()")
		if !one[bool](t, b.pool, "select pgwake.complete_task($1, 3, $1)", id) {
			t.Fatal("not completed")
		}
	}
	complete()
	if got, err = in.Task(t.Context(), id); err != nil || got.Status != Succeeded || got.FinishedAt == nil || !sameJSON(t, got.Payload, []byte(`{"x": 1}`)) || len(got.Errors) != 1 {
		t.Errorf("%+v, %v", got, err)
	}

	// The id of a settled task may be used again: the live one is meant then, and later the last.
	b.enqueue(t, task("again", ""), &EnqueueOptions{ID: id})
	if got, err = in.Task(t.Context(), id); err != nil || got.Status != Queued || got.Type != "again" {
		t.Errorf("%+v, %v", got, err)
	}
	complete()
	if got, err = in.Task(t.Context(), id); err != nil || got.Status != Succeeded || got.Type != "again" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := in.Task(t.Context(), uuid.New()); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// Nothing that plain SQL can write makes the list unreadable.
func TestInspectEdited(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	b.enqueue(t, typed{}, nil)
	for set, allowed := range map[string]bool{
		"due_at = 'infinity'": false, "due_at = '-infinity'": false, "retry_at = '-infinity'": false, "errors = '{}'": false, "metadata = '[]'": false,
		"retry_at = null": false, "attempt = -1": false, "max_attempts = 0": false, "priority = 10": false, "unique_key = ''": false, "status = 'lost'": false,
		"retry_at = 'infinity'": true, "attempt = 2147483647": true, "max_attempts = 2147483647": true, "fence = 9223372036854775807": true,
		"due_at = '200000-01-01'": true, "due_at = '4000-01-01 BC'": true, "payload = 'null'": true,
	} {
		_, err := b.pool.Exec(t.Context(), "update pgwake.tasks set "+set)
		if (err == nil) != allowed {
			t.Errorf("%s: %v", set, err)
		}
		if list, err := b.Inspector().Tasks(t.Context(), TaskFilter{}); err != nil || len(list) != 1 {
			t.Errorf("after %s: %v", set, err)
		}
	}
	if _, err := b.pool.Exec(t.Context(), "select pgwake.enqueue('a', due_at => 'infinity')"); err == nil {
		t.Error("due at infinity")
	}
}

func TestInspectTasks(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	in := b.Inspector()
	b.exec(t, `insert into pgwake.tasks (type, unique_key) select 'type' || n % 5, 'k' || n % 40 from generate_series(0, 199) as n on conflict do nothing`)
	b.exec(t, `insert into pgwake.tasks (type) select 'type' || n % 5 from generate_series(0, 159) as n`)
	b.exec(t, `update pgwake.tasks set status = (array['running', 'frozen', 'paused'])[1 + (random() * 2)::int], holder = id, fence = 1,
		retry_at = case when random() < 0.5 then 'infinity' else now() end where random() < 0.6`)
	b.exec(t, `select pgwake.complete_task(id, 1, id) from pgwake.tasks where status = 'running' and random() < 0.7`)
	all, err := in.Tasks(t.Context(), TaskFilter{Limit: 10_000})
	if err != nil || len(all) != 200 {
		t.Fatal(len(all), err)
	}
	filters := []TaskFilter{
		{}, {Types: []string{"type1"}}, {Types: []string{"type1", "type4", "none"}}, {Statuses: []Status{Queued}}, {Statuses: []Status{Succeeded}},
		{Statuses: []Status{Frozen, Succeeded, Paused}}, {UniqueKey: "k7"}, {Types: []string{"type2"}, Statuses: []Status{Queued, Succeeded}}, {Types: []string{"none"}},
	}
	for _, filter := range filters {
		// By brute force over the unfiltered list, which SQL has ordered in no way that matters here.
		var want []string
		for _, task := range all {
			if (filter.Types == nil || slices.Contains(filter.Types, task.Type)) && (filter.Statuses == nil || slices.Contains(filter.Statuses, task.Status)) &&
				(filter.UniqueKey == "" || task.UniqueKey != nil && *task.UniqueKey == filter.UniqueKey) {
				want = append(want, task.ID.String())
			}
		}
		slices.Sort(want)
		slices.Reverse(want)
		var got []string
		filter.Limit = 7
		for {
			page, err := in.Tasks(t.Context(), filter)
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range page {
				got = append(got, task.ID.String())
			}
			if len(page) < filter.Limit {
				break
			}
			filter.Before = page[len(page)-1].ID
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %d tasks, want %d", filter, len(got), len(want))
		}
	}
	if list, err := in.Tasks(t.Context(), TaskFilter{}); err != nil || len(list) != 100 {
		t.Error(len(list), err)
	}
	for _, limit := range []int{-1, 10_001} {
		if _, err := in.Tasks(t.Context(), TaskFilter{Limit: limit}); err == nil {
			t.Errorf("limit %d accepted", limit)
		}
	}

	counts, err := in.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{}
	for _, task := range all {
		if task.Status != Succeeded {
			want[fmt.Sprint(task.Type, task.Status)]++
		}
	}
	if len(counts) != len(want) {
		t.Errorf("%d counts, want %d", len(counts), len(want))
	}
	for _, c := range counts {
		if key := fmt.Sprint(c.Type, c.Status); c.Count != want[key] {
			t.Errorf("%s: %d, want %d", key, c.Count, want[key])
		}
	}
}

func TestInspectWorkers(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	b.exec(t, `insert into pgwake.workers (id, name, version, types, slots, running, seen_at, draining) values
		(gen_random_uuid(), 'b', 'v1', '{x,y}', 10, 3, now(), true), (gen_random_uuid(), 'a', 'v2', '{}', 1, 0, now() - interval '50 s', false),
		(gen_random_uuid(), 'c', 'v3', '{}', 1, 0, now() - interval '2 h', false)`)
	for within, want := range map[time.Duration]string{time.Minute: "ab", 3 * time.Hour: "abc", 30 * time.Second: "b", 0: ""} {
		list, err := b.Inspector().Workers(t.Context(), within)
		got := ""
		for _, w := range list {
			got += w.Name
			if w.Name == "b" && (w.Version != "v1" || !slices.Equal(w.Types, []string{"x", "y"}) || w.Slots != 10 || w.Running != 3 || !w.Draining) {
				t.Errorf("%+v", w)
			}
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, want %q, %v", within, got, want, err)
		}
	}
}
