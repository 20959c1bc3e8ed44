package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
)

// The tasks of seed, oldest first.
const (
	idSucceeded = "01890a5d-ac96-774b-bcce-000000000001"
	idFrozen    = "01890a5d-ac96-774b-bcce-000000000002"
	idQueued    = "01890a5d-ac96-774b-bcce-000000000003"
	idPaused    = "01890a5d-ac96-774b-bcce-000000000004"
)

// seed puts a task of each kind into the database.
func seed(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	url := pool.Config().ConnString()
	succeed(t, url, "", "enqueue", "email.welcome", `{"to": "ada"}`, "--id", idSucceeded)
	succeed(t, url, "", "enqueue", "email.welcome", `{"to": "grace"}`, "--id", idFrozen, "--unique-key", "grace", "--metadata", `{"by": "import"}`)
	succeed(t, url, "", "enqueue", "report.build", "--id", idQueued, "--delay", "2h", "--max-attempts", "7")
	succeed(t, url, "", "enqueue", "report.build", "--id", idPaused)
	for _, sql := range []string{
		`update pgwake.tasks set status = 'running', fence = 1, holder = gen_random_uuid(), attempt = 1 where id = '` + idSucceeded + `'`,
		`select pgwake.complete_task(id, fence, holder) from pgwake.tasks where id = '` + idSucceeded + `'`,
		`update pgwake.tasks set status = 'paused', retry_at = 'infinity' where id = '` + idPaused + `'`,
		`update pgwake.tasks set status = 'frozen', retry_at = null, attempt = 4, worker = 'w1', last_error = E'no route\n\x1b[31mto host',
		   errors = '[{"attempt": 4, "at": "2030-01-01T00:00:00Z", "error": "no route\n\u001b[31mto host", "worker": "w1", "stack": "goroutine 1:\n\tmain.go:7"}]'
		 where id = '` + idFrozen + `'`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return url
}

func TestTasksList(t *testing.T) {
	t.Parallel()
	url := seed(t, pgtest.New(t))
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"all", nil, []string{idPaused, idQueued, idFrozen, idSucceeded}},
		{"type", []string{"--type", "report.build"}, []string{idPaused, idQueued}},
		{"types", []string{"--type", "report.build", "--type", "email.welcome"}, []string{idPaused, idQueued, idFrozen, idSucceeded}},
		{"status", []string{"--status", "succeeded"}, []string{idSucceeded}},
		{"statuses", []string{"--status", "queued", "--status", "frozen"}, []string{idQueued, idFrozen}},
		{"statuses in one", []string{"--status", "queued,paused"}, []string{idPaused, idQueued}},
		{"unique key", []string{"--unique-key", "grace"}, []string{idFrozen}},
		{"limit", []string{"--limit", "1"}, []string{idPaused}},
		{"before", []string{"--before", idQueued}, []string{idFrozen, idSucceeded}},
		{"none", []string{"--type", "other"}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"tasks", "list"}, c.args...)
			ids := []string{}
			for _, task := range decode[[]pgwake.TaskInfo](t, succeed(t, url, "", append(args, "--json")...).stdout) {
				ids = append(ids, task.ID.String())
			}
			if !slices.Equal(ids, c.want) {
				t.Errorf("--json lists %v, want %v", ids, c.want)
			}
			rows := strings.Split(strings.TrimSuffix(succeed(t, url, "", args...).stdout, "\n"), "\n")
			ids = []string{}
			for _, row := range rows[1:] {
				ids = append(ids, strings.Fields(row)[0])
			}
			if !slices.Equal(ids, c.want) {
				t.Errorf("the table lists %v, want %v", ids, c.want)
			}
		})
	}
}

// TestTasksListParseable cuts the table the way that awk does.
func TestTasksListParseable(t *testing.T) {
	t.Parallel()
	url := seed(t, pgtest.New(t))
	got := succeed(t, url, "", "tasks", "list").stdout
	rows := map[string][]string{}
	for line := range strings.Lines(got) {
		fields := strings.Fields(line)
		rows[fields[0]] = fields
	}
	for id, want := range map[string][]string{
		"ID":        {"ID", "TYPE", "STATUS", "ATTEMPT"},
		idFrozen:    {idFrozen, "email.welcome", "frozen", "4/4"},
		idQueued:    {idQueued, "report.build", "queued", "0/7"},
		idSucceeded: {idSucceeded, "email.welcome", "succeeded", "1/4"},
	} {
		row := rows[id]
		if len(row) < 7 || !slices.Equal(row[:4], want) {
			t.Errorf("row of %s: %q", id, row)
		}
	}
	if len(rows[idQueued]) != 8 || rows[idQueued][6] != "-" || rows[idQueued][7] != "-" {
		t.Errorf("empty cells: %q", rows[idQueued])
	}
	if due, err := time.Parse(time.RFC3339, rows[idQueued][5]); err != nil || time.Until(due) < time.Hour {
		t.Errorf("due %q", rows[idQueued][5])
	}
	expect(t, "row", strings.Join(rows[idFrozen], " "), `no route \x1b[31mto host`)
	for _, row := range strings.Split(got, "\n") {
		if strings.ContainsAny(row, "\x1b─│") || strings.TrimRight(row, " ") != row {
			t.Errorf("row %q", row)
		}
	}
}

func TestTasksShow(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	url := seed(t, pool)
	got := succeed(t, url, "", "tasks", "show", idFrozen).stdout
	expect(t, "stdout", got, "id:           "+idFrozen, "type:         email.welcome", "status:       frozen", "attempt:      4/4\n",
		"unique key:   grace", "worker:       w1", "priority:     5", "created: ", "due: ", "fence: ",
		"payload:      {\n  \"to\": \"grace\"\n}", "metadata:     {\n  \"by\": \"import\"\n}",
		"errors:\n  attempt 4, 2030-01-01 00:00:00.000 +00:00 on w1\n    no route\n    \\x1b[31mto host\n    goroutine 1:\n        main.go:7\n")
	if strings.ContainsRune(got, '\x1b') {
		t.Errorf("an escape gets to the terminal: %q", got)
	}
	expect(t, "archived", succeed(t, url, "", "tasks", "show", idSucceeded).stdout, "status:       succeeded", "finished: ")

	info := decode[pgwake.TaskInfo](t, succeed(t, url, "", "tasks", "show", idFrozen, "--json").stdout)
	if info.ID != uuid.MustParse(idFrozen) || info.Status != pgwake.Frozen || len(info.Errors) != 1 || info.Errors[0].Worker != "w1" {
		t.Errorf("--json shows %+v", info)
	}

	if _, err := pool.Exec(t.Context(), `update pgwake.task_archive set payload = null, payload_bytes = 90000`); err != nil {
		t.Fatal(err)
	}
	expect(t, "without payload", succeed(t, url, "", "tasks", "show", idSucceeded).stdout, "not kept, being too large for the archive (90000 bytes)")
}

func TestTasksCounts(t *testing.T) {
	t.Parallel()
	url := pgtest.NewURL(t)
	if got := succeed(t, url, "", "tasks", "counts"); got.stdout != "" || got.stderr != "pgwake: no live tasks\n" {
		t.Errorf("none: stdout %q, stderr %q", got.stdout, got.stderr)
	}
	if got := succeed(t, url, "", "tasks", "counts", "--json").stdout; got != "[]\n" {
		t.Errorf("none: %q", got)
	}

	url = seed(t, pgtest.New(t))
	want := "TYPE           QUEUED  RUNNING  PAUSED  FROZEN\n" +
		"email.welcome  0       0        0       1\n" +
		"report.build   1       0        1       0\n"
	if got := succeed(t, url, "", "tasks", "counts").stdout; got != want {
		t.Errorf("counts:\n%s\nwant:\n%s", got, want)
	}
	counts := decode[[]pgwake.TypeCount](t, succeed(t, url, "", "tasks", "counts", "--json").stdout)
	if len(counts) != 3 || counts[0] != (pgwake.TypeCount{Type: "email.welcome", Status: pgwake.Frozen, Count: 1}) {
		t.Errorf("--json: %+v", counts)
	}
}
