package lease_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/lease"
)

func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		conn, err := f.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for name, sql := range f.Statements() {
			if _, err := conn.Conn().Prepare(t.Context(), name, sql); err != nil {
				t.Errorf("%s: %v\n%s", name, err, sql)
			}
		}
	})
}

// node is a node of a plan as EXPLAIN tells it.
type node struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Loops    float64 `json:"Actual Loops"`
	Plans    []node  `json:"Plans"`
}

func (n node) all() []node {
	list := []node{n}
	for _, p := range n.Plans {
		list = append(list, p.all()...)
	}
	return list
}

// The hot statements walk an index, whatever the statistics say: with the table full, and with the plan made while it is
// empty and vacuumed.
func TestPlans(t *testing.T) {
	t.Parallel()
	f := newFixture(t, "own")
	tx, err := f.pool.Begin(t.Context()) // one session
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	for _, set := range []string{"set plan_cache_mode = force_custom_plan", "set jit = off"} {
		if _, err := tx.Exec(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}

	types := make([]string, 10)
	attempts := make([]int32, len(types))
	for i := range types {
		types[i], attempts[i] = fmt.Sprintf("type%d", i), 4
	}
	base := pgx.NamedArgs{"holder": holderA, "worker": "w", "lease": time.Minute, "limit": 50}
	with := func(more pgx.NamedArgs) pgx.NamedArgs {
		for k, v := range base {
			more[k] = v
		}
		return more
	}
	look, back := f.PairArgs(types, 0, nil), f.PairArgs(types, 0, nil)
	look["lease_types"] = types
	back["since"], back["until"] = time.Now().Add(-time.Second), time.Now()
	type statement struct {
		name  string
		args  pgx.NamedArgs
		index []string
	}
	statements := []statement{
		{"claim", with(f.PairArgs(types, 50, nil)), []string{"tasks_due"}},
		{"claim expired", with(pgx.NamedArgs{"types": types, "attempts": attempts, "suspects": false}), []string{"tasks_leases"}},
		{"claim expired", with(pgx.NamedArgs{"types": types, "attempts": attempts, "suspects": true}), []string{"tasks_leases"}},
		{"look", look, []string{"tasks_due", "tasks_leases"}},
		{"look back", back, []string{"tasks_due"}},
	}
	const held = 200
	keys, fences, statuses, delays := make([]string, held), make([]int64, held), make([]string, held), make([]time.Duration, held)
	unspent, started, texts := make([]int32, held), make([]bool, held), make([]*string, held)
	for i := range keys {
		keys[i], statuses[i] = uuid.NewString(), []string{"succeeded", "queued", "frozen"}[i%3]
	}
	statements = append(statements,
		statement{"renew", with(pgx.NamedArgs{"keys": keys, "fences": fences}), []string{"tasks_pkey"}},
		statement{"settle", with(pgx.NamedArgs{
			"keys": keys, "fences": fences, "statuses": statuses, "delays": delays, "unspent": unspent, "started": started, "discards": make([]bool, held), "errors": texts, "entries": texts,
		}), []string{"tasks_pkey"}},
	)
	explain := func(when, options string) {
		t.Helper()
		for _, s := range statements {
			if _, err := tx.Exec(t.Context(), "savepoint s"); err != nil {
				t.Fatal(err)
			}
			var text string
			if err := tx.QueryRow(t.Context(), "explain (format json"+options+") "+f.Statements()[s.name], f.StatementArgs(s.name, s.args)...).Scan(&text); err != nil {
				t.Fatal(when, s.name, err)
			}
			if _, err := tx.Exec(t.Context(), "rollback to s"); err != nil {
				t.Fatal(err)
			}
			var plans []struct{ Plan node }
			if err := json.Unmarshal([]byte(text), &plans); err != nil {
				t.Fatal(err)
			}
			var used []string
			for _, n := range plans[0].Plan.all() {
				if n.Index != "" {
					used = append(used, n.Index)
				}
				// The keys of a batch, and the few expired rows of a type, may be sorted.
				sorts := strings.Contains(n.Type, "Sort") && s.args["fences"] == nil && s.args["suspects"] == nil
				if strings.HasPrefix(n.Type, "Seq Scan") && n.Relation == "tasks" || sorts {
					t.Errorf("%s, %s: %s\n%s", when, s.name, n.Type, text)
				}
				few := 2000.0
				if s.args["suspects"] == true { // looks through all that is expired, 4,500 rows here
					few = 5000
				}
				if read := (n.Rows + n.Filtered) * n.Loops; n.Relation == "tasks" && read > few {
					t.Errorf("%s, %s: %s reads %.0f rows\n%s", when, s.name, n.Type, read, text)
				}
			}
			for _, index := range s.index {
				if !slices.Contains(used, index) {
					t.Errorf("%s, %s: uses %v, want %s\n%s", when, s.name, used, index, text)
				}
			}
		}
	}

	fill := `insert into :T (type, priority, retry_at)
		select 'type' || n % 10, case n % 10 when 0 then 9 else n / 10 % 10 end, now() - n * interval '1 ms' from generate_series(1, 50000) as n`
	run := `update :T set status = 'running' where priority = 3`

	f.exec(t, fill)
	f.exec(t, "delete from :T")
	f.exec(t, "vacuum analyze :T")
	explain("empty", "")
	f.exec(t, fill)
	f.exec(t, run)
	explain("full, statistics of an empty table", ", analyze")
	f.exec(t, "analyze :T")
	explain("full", ", analyze")
	f.exec(t, "update :T set retry_at = now() + interval '1 h'")
	f.exec(t, "vacuum analyze :T")
	explain("nothing due", ", analyze")
}

func TestTableValidation(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*lease.Table){
		"table name":          func(t *lease.Table) { t.Name = nil },
		"table name is empty": func(t *lease.Table) { t.Name = pgx.Identifier{"public", ""} },
		"key column":          func(t *lease.Table) { t.Key = "" },
		"its type":            func(t *lease.Table) { t.KeyType = "" },
		"not a type name":     func(t *lease.Table) { t.KeyType = "text; drop table x" },
		"status":              func(t *lease.Table) { t.Status = "" },
		"retry_at":            func(t *lease.Table) { t.RetryAt = "" },
		"queued":              func(t *lease.Table) { t.States.Queued = "" },
		"running":             func(t *lease.Table) { t.States.Running = "" },
		"final":               func(t *lease.Table) { t.States.Final = nil },
		"priority column":     func(t *lease.Table) { t.Priority = "p" },
		"archive has":         func(t *lease.Table) { t.Archive = &lease.Archive{Columns: []string{"a"}} },
	} {
		table := kinds["plain"].table
		change(&table)
		if _, err := lease.New(table); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
