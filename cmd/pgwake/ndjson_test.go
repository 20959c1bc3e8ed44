package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

// lines are n good lines of an import, whose payloads number them from 1.
func lines(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`{"type": "bulk", "payload": {"n": %d}}`, i+1)
	}
	return list
}

// imported reads which lines are in the database, in order.
func imported(t *testing.T, url string) []int {
	t.Helper()
	var numbers []int
	list := decode[[]pgwake.TaskInfo](t, succeed(t, url, "", "tasks", "list", "--json", "--limit", "10000").stdout)
	for _, task := range list {
		numbers = append([]int{decode[struct{ N int }](t, string(task.Payload)).N}, numbers...)
	}
	return numbers
}

func TestImport(t *testing.T) {
	t.Parallel()
	const n = 2_500
	text := strings.Join(lines(n), "\r\n") // no end after the last
	file := filepath.Join(t.TempDir(), "tasks.ndjson")
	if err := os.WriteFile(file, []byte("\uFEFF"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, stdin string
		args        []string
	}{
		{"stdin", text, nil}, {"dash", text, []string{"-"}}, {"file", "", []string{file}},
		{"blank lines", "\n\n" + strings.ReplaceAll(text, "\r\n", "\n \n") + "\n\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.NewURL(t)
			got := succeed(t, url, c.stdin, append([]string{"enqueue", "--ndjson"}, c.args...)...)
			if got.stdout != "2500 tasks enqueued\n" || got.stderr != "" {
				t.Errorf("stdout %q, stderr %q", got.stdout, got.stderr)
			}
			numbers := imported(t, url)
			if len(numbers) != n {
				t.Fatalf("%d tasks", len(numbers))
			}
			seen := map[int]bool{}
			for _, k := range numbers {
				seen[k] = true
			}
			if len(seen) != n || !seen[1] || !seen[n] {
				t.Errorf("%d different tasks", len(seen))
			}
		})
	}
}

func TestImportJSON(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	const n = 2_500
	got := succeed(t, url, strings.Join(lines(n), "\n"), "enqueue", "--ndjson", "--json")
	expect(t, "stderr", got.stderr, "pgwake: 2500 tasks enqueued\n")
	ids := map[uuid.UUID]bool{}
	number := 0
	for scanner := bufio.NewScanner(strings.NewReader(got.stdout)); scanner.Scan(); {
		line := decode[importedLine](t, scanner.Text())
		if number++; line.Line != number || line.Type != "bulk" || line.Duplicate {
			t.Fatalf("result %d is %+v", number, line)
		}
		ids[line.ID] = true
	}
	if len(ids) != n {
		t.Errorf("%d ids", len(ids))
	}
}

// TestImportBad has one bad line among good ones, in each place that matters to a batch.
func TestImportBad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line, want string }{
		{"syntax", `{"type": "a"`, "the JSON object is cut off"},
		{"unknown field", `{"type": "a", "prio": 1}`, `unknown field "prio"`},
		{"two values", `{"type": "a"} {"type": "b"}`, "something follows the JSON value"},
		{"no object", `["a"]`, "a JSON array, not an object"},
		{"no type", `{"payload": {}}`, "task type is empty"},
		{"wrong kind", `{"type": "a", "priority": "high"}`, `field "priority" cannot be a JSON string`},
		{"priority", `{"type": "a", "priority": 10}`, "priority 10 is not between"},
		{"delay", `{"type": "a", "delay": "5 minutes"}`, `delay "5 minutes" is not a duration`},
		{"id", `{"type": "a", "id": "5"}`, `id "5" is not a UUID`},
		{"due at and delay", `{"type": "a", "due_at": "2030-01-01T00:00:00Z", "delay": "5m"}`, "exclude each other"},
		{"NUL", `{"type": "a", "payload": "\u0000"}`, "NUL character"},
		{"attempts", `{"type": "a", "max_attempts": 0}`, "max_attempts 0 is less than 1"},
		{"empty key", `{"type": "a", "unique_key": ""}`, "unique_key is empty"},
		{"too long", `{"type": "a", "payload": "` + strings.Repeat("x", maxLine) + `"}`, "longer than 16 MB"},
		// Only the database knows its house rules; COPY and insert are two ways to hear of them.
		{"refused by the database", `{"type": "a", "payload": "refuse"}`, "the database refuses it: "},
		{"refused in an insert", `{"type": "a", "payload": "refuse", "unique_key": "k"}`, "the database refuses it: "},
	} {
		for _, at := range []int{1, 70, 1_000, 1_001, 1_200} {
			if at != 70 && c.name != "refused by the database" { // one place will do for the others
				continue
			}
			t.Run(fmt.Sprintf("%s at %d", c.name, at), func(t *testing.T) {
				t.Parallel()
				url := pgtest.NewURL(t)
				pool, err := pgxpool.New(t.Context(), url)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				if _, err := pool.Exec(t.Context(), `alter table pgwake.tasks add constraint house_rule check (payload <> '"refuse"')`); err != nil {
					t.Fatal(err)
				}
				all := lines(1_200)
				all[at-1] = c.line
				text := strings.Join(all, "\n")
				got := call(t, url, text, "enqueue", "--ndjson")
				if got.code != exitFailed {
					t.Errorf("exit %d", got.code)
				}
				expect(t, "stderr", got.stderr, fmt.Sprintf("pgwake: line %d: ", at), c.want,
					plural(at-1, "task", "tasks")+fmt.Sprintf(" enqueued, first bad line %d\n", at))
				if n := len(imported(t, url)); n != at-1 {
					t.Errorf("%d tasks enqueued, want those of the %d lines before", n, at-1)
				}

				got = succeed(t, url, text, "enqueue", "--ndjson", "--skip-bad")
				expect(t, "stdout", got.stdout, fmt.Sprintf("1199 tasks enqueued, 1 bad line skipped (first: line %d)\n", at))
				if n := len(imported(t, url)); n != at-1+1_199 {
					t.Errorf("%d tasks in all", n)
				}
			})
		}
	}
}

func TestImportManyBad(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	text := strings.Repeat("{\"type\": \"a\"}\nbad\n", 100)
	got := succeed(t, url, text, "enqueue", "--ndjson", "--skip-bad")
	expect(t, "stdout", got.stdout, "100 tasks enqueued, 100 bad lines skipped (first: line 2)\n")
	if n := strings.Count(got.stderr, "\n"); n != reportedBad+1 {
		t.Errorf("%d lines on stderr", n)
	}
}

func TestImportDuplicates(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	id := uuid.Must(uuid.NewV7())
	text := strings.Join([]string{
		`{"type": "a", "unique_key": "k"}`,
		`{"type": "a", "unique_key": "k"}`,
		fmt.Sprintf(`{"type": "a", "id": %q}`, id),
		`{"type": "a"}`,
	}, "\n")
	got := succeed(t, url, text, "enqueue", "--ndjson")
	expect(t, "stdout", got.stdout, "3 tasks enqueued\n")
	expect(t, "stderr", got.stderr, "pgwake: 1 task was there already (first: line 2)\n")

	got = succeed(t, url, text, "enqueue", "--ndjson", "--json")
	expect(t, "stderr", got.stderr, "pgwake: 3 tasks were there already (first: line 1)\n", "pgwake: 1 task enqueued\n")
	results := make([]importedLine, 0, 4)
	for line := range strings.Lines(got.stdout) {
		results = append(results, decode[importedLine](t, line))
	}
	if len(results) != 4 || results[0].ID != results[1].ID || results[2].ID != id {
		t.Errorf("results %+v", results)
	}
	for k, want := range []bool{true, true, true, false} {
		if results[k].Duplicate != want {
			t.Errorf("line %d: duplicate is %t", k+1, results[k].Duplicate)
		}
	}
}

func TestImportEmpty(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	if got := succeed(t, url, "", "enqueue", "--ndjson"); got.stdout != "0 tasks enqueued\n" {
		t.Errorf("stdout %q", got.stdout)
	}
}

// TestInterruptible shows that a read which never returns is left when the context ends.
func TestInterruptible(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	if n, err := (&interruptible{ctx, r}).Read(make([]byte, 8)); n != 0 || err != io.ErrNoProgress {
		t.Errorf("read %d, %v", n, err)
	}
}

func TestParseLineKeepsDigits(t *testing.T) {
	t.Parallel()
	task, err := parseLine([]byte(`{"type": "a", "metadata": {"n": 12345678901234567890}, "payload": 12345678901234567890}`))
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := json.Marshal(task.Options.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	if string(metadata) != `{"n":12345678901234567890}` || string(task.Payload.(pgwake.Raw).JSON) != "12345678901234567890" {
		t.Errorf("metadata %s, payload %s", metadata, task.Payload)
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(`{"type": "a"}`))
	f.Add([]byte(`{"type": "a", "payload": {"b": [1, null, "ü"]}, "id": "01890a5d-ac96-774b-bcce-b302099a8057", "due_at": "2030-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"type": "a", "delay": "1h", "priority": 0, "max_attempts": 1, "unique_key": "k", "metadata": {"x": 1e400}}`))
	f.Add([]byte(`{"type": "a", "payload": "\ud800"}`))
	f.Add([]byte("null"))
	f.Add([]byte("{}{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		task, err := parseLine(text)
		if err != nil {
			if strings.TrimSpace(oneLine(err.Error())) == "" {
				t.Fatalf("%q is refused without a word", text)
			}
			return
		}
		// encoding/json judges: what is accepted is one JSON object whose fields are all known.
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(text, &fields); err != nil {
			t.Fatalf("%q is accepted and not an object: %v", text, err)
		}
		if err := pgwake.CheckType(task.Payload.TaskType()); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if !json.Valid(task.Payload.(pgwake.Raw).JSON) && len(task.Payload.(pgwake.Raw).JSON) > 0 {
			t.Fatalf("%q: payload %q", text, task.Payload)
		}
		if p := task.Options.Priority; p != nil && (*p < 0 || *p > 9) {
			t.Fatalf("%q: priority %d", text, *p)
		}
	})
}
