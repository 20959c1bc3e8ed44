package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestEnqueue(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	file := filepath.Join(t.TempDir(), "payload.json")
	if err := os.WriteFile(file, []byte("{\"n\": 12345678901234567890}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := uuid.Must(uuid.NewV7()).String()
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        map[string]any // of the row, as JSON
	}{
		{"bare", "", []string{"a"}, map[string]any{"type": "a", "payload": map[string]any{}, "priority": json.Number("5"), "max_attempts": json.Number("4"), "unique_key": nil}},
		{"payload", "", []string{"a", `{"to": "ada"}`}, map[string]any{"payload": map[string]any{"to": "ada"}}},
		{"payload of stdin", `[1, 2]`, []string{"a", "-"}, map[string]any{"payload": []any{json.Number("1"), json.Number("2")}}},
		{"payload of a file", "", []string{"a", "@" + file}, map[string]any{"payload": map[string]any{"n": json.Number("12345678901234567890")}}},
		{"due at", "", []string{"a", "--due-at", "2030-01-31T10:00:00+01:00"}, map[string]any{"due_at": "2030-01-31T09:00:00Z", "retry_at": "2030-01-31T09:00:00Z"}},
		{"options", "", []string{"a", "--priority", "0", "--max-attempts", "7", "--unique-key", "k", "--id", id, "--metadata", `{"by": 12345678901234567890}`},
			map[string]any{"id": id, "priority": json.Number("0"), "max_attempts": json.Number("7"), "unique_key": "k", "metadata": map[string]any{"by": json.Number("12345678901234567890")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := succeed(t, url, c.stdin, append([]string{"enqueue"}, c.args...)...)
			shown := succeed(t, url, "", "tasks", "show", strings.TrimSpace(made.stdout), "--json").stdout
			var row map[string]any
			decoder := json.NewDecoder(strings.NewReader(shown))
			decoder.UseNumber()
			if err := decoder.Decode(&row); err != nil {
				t.Fatal(err)
			}
			for field, want := range c.want {
				if !reflect.DeepEqual(row[field], want) {
					t.Errorf("%s is %#v, want %#v", field, row[field], want)
				}
			}
		})
	}
}

func TestEnqueueDelay(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	before := time.Now()
	task := decode[pgwake.Enqueued](t, succeed(t, url, "", "enqueue", "a", "--delay", "1h30m", "--json").stdout)
	if task.Type != "a" || task.Duplicate {
		t.Errorf("enqueued %+v", task)
	}
	info := decode[pgwake.TaskInfo](t, succeed(t, url, "", "tasks", "show", task.ID.String(), "--json").stdout)
	if delay := info.DueAt.Sub(before); delay < 89*time.Minute || delay > 91*time.Minute {
		t.Errorf("due in %s", delay)
	}
}

func TestEnqueueDuplicate(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	first := succeed(t, url, "", "enqueue", "a", "--unique-key", "k").stdout
	c := call(t, url, "", "enqueue", "a", "--unique-key", "k")
	if c.code != exitDuplicate || c.stdout != first {
		t.Errorf("exit %d and %q, want %d and %q", c.code, c.stdout, exitDuplicate, first)
	}
	expect(t, "stderr", c.stderr, `holds the unique key "k"`)

	c = call(t, url, "", "enqueue", "a", "--unique-key", "k", "--json")
	if got := decode[pgwake.Enqueued](t, c.stdout); c.code != exitDuplicate || !got.Duplicate || got.ID.String() != strings.TrimSpace(first) {
		t.Errorf("exit %d and %+v", c.code, got)
	}
	c = call(t, url, "", "enqueue", "b", "--id", strings.TrimSpace(first))
	if c.code != exitDuplicate {
		t.Errorf("exit %d for a taken id", c.code)
	}
}
