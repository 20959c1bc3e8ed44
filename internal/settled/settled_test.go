package settled

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

var statuses = []string{"succeeded", "cancelled", "frozen", "queued"}

// tasks makes n tasks of the types given in turn.
func tasks(n int, types ...string) []Task {
	list := make([]Task, n)
	for i := range list {
		list[i] = Task{ID: uuid.New(), Type: types[i%len(types)], Status: statuses[i%len(statuses)]}
	}
	return list
}

func distinct(n int) []string {
	types := make([]string, n)
	for i := range types {
		types[i] = fmt.Sprintf("%0200d", i)
	}
	return types
}

// What is encoded arrives in its order, in few notifications, each of which PostgreSQL takes.
func TestEncode(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for name, c := range map[string]struct {
		tasks []Task
		most  int // notifications
	}{
		"none":              {nil, 0},
		"one":               {tasks(1, "job"), 1},
		"many of one type":  {tasks(2000, "greeting.say"), 11},
		"types in turn":     {tasks(2000, "greeting.say", "mail.send", "page.fetch"), 11},
		"long types":        {tasks(500, distinct(200)...), 21},
		"types of all sort": {tasks(100, "a\nb", `"`, "<&>", "\u2028", "žluťoučký", strings.Repeat("😀", 50), strings.Repeat("\x01", 200), "0s"), 3},
	} {
		payloads := Encode(c.tasks)
		if len(payloads) > c.most {
			t.Errorf("%s: %d notifications, want at most %d", name, len(payloads), c.most)
		}
		var got []Task
		for _, p := range payloads {
			m, tasks, err := decode(p)
			if err != nil || m.Say != "" {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
			got = append(got, tasks...)
			if len(p) > maxPayload {
				t.Errorf("%s: %d bytes", name, len(p))
			}
			if _, err := pool.Exec(t.Context(), `select pg_notify('test', $1)`, p); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !slices.Equal(got, c.tasks) {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestEncodeUnknownStatus(t *testing.T) {
	t.Parallel()
	list := tasks(3, "job")
	list[1].Status = "exploded"
	got := Encode(list)
	if len(got) != 2 || got[1] != Resync {
		t.Fatalf("payloads %q", got)
	}
	if m, _, err := decode(got[1]); err != nil || m.Say != sayResync || m.From != "" {
		t.Errorf("%+v, %v", m, err)
	}
}

// The lock can be asked for in any schema.
func TestLockNamesTheSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	const schema = `o'clock "x"`
	name := pgx.Identifier{schema}.Sanitize()
	if _, err := pool.Exec(t.Context(), `create schema `+name+`; create table `+name+`.task_archive ()`); err != nil {
		t.Fatal(err)
	}
	var got bool
	if err := pool.QueryRow(t.Context(), `select pg_try_advisory_xact_lock_shared(`+Lock(schema)+`)`).Scan(&got); err != nil || !got {
		t.Error(got, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range append(Encode(tasks(3, "a", "b")), Resync, "", "{}", "null", `{"tasks":["0s"]}`, `{"types":["a"],"tasks":["7s00"]}`,
		`{"types":["a"],"tasks":["0x00000000000000000000000000000000"]}`, `{"types":["a"],"tasks":["99999999999999999999s"]}`) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		m, tasks, err := decode(payload)
		if err != nil || m.Say != "" {
			if len(tasks) != 0 {
				t.Errorf("tasks beside %v, %+v", err, m)
			}
			return
		}
		for _, task := range tasks {
			if !slices.Contains(statuses, task.Status) || !utf8.ValidString(task.Type) {
				t.Errorf("task %+v", task)
			}
		}
		var again []Task
		for _, p := range Encode(tasks) {
			_, list, err := decode(p)
			if err != nil && !slices.ContainsFunc(tasks, func(t Task) bool { return len(t.Type) > 200 }) {
				t.Error(err)
			}
			again = append(again, list...)
		}
		if !slices.Equal(again, tasks) && !slices.ContainsFunc(tasks, func(t Task) bool { return len(t.Type) > 200 }) {
			t.Errorf("%v became %v", tasks, again)
		}
	})
}
