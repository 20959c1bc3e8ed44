package lease_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/lease"
)

// claimer claims with marks.
type claimer struct {
	*fixture
	marks lease.Marks
	types []string
}

func (c *claimer) claim(t *testing.T, limit int) []*lease.Lease {
	t.Helper()
	leases, err := c.Claim(t.Context(), c.pool, lease.ClaimOptions{
		Holder: holderA, Worker: "w", Types: c.types, Limit: limit, Lease: time.Minute, Marks: &c.marks,
		Scan: func(*lease.Lease) []any { return make([]any, len(c.table.Columns)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

func (c *claimer) look(t *testing.T) time.Duration {
	t.Helper()
	due, _, err := c.Look(t.Context(), c.pool, c.types, false, &c.marks)
	if err != nil {
		t.Fatal(err)
	}
	return due
}

// lookBack looks back to the start, and reports whether that found anything.
func (c *claimer) lookBack(t *testing.T) (found bool) {
	t.Helper()
	for range 12 { // slices
		f, err := c.LookBack(t.Context(), c.pool, c.types, &c.marks)
		if err != nil {
			t.Fatal(err)
		}
		found = found || f
	}
	return found
}

// insert adds n rows of a type, due so long ago.
func (c *claimer) insert(t *testing.T, typ string, n int, ago time.Duration) {
	t.Helper()
	c.exec(t, "insert into :T (type, retry_at) select $1, now() - $3::interval from generate_series(1, $2)", typ, n, ago)
}

// A claim does not walk over what was claimed before, while nothing of that can be removed.
func TestClaimBeginsAtTheMark(t *testing.T) {
	t.Parallel()
	c := &claimer{fixture: newFixture(t, "own"), types: []string{"a", "b"}}
	held, err := c.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(t.Context())
	if _, err := held.Exec(t.Context(), "select 1"); err != nil {
		t.Fatal(err)
	}
	const all = 20_000
	c.insert(t, "a", all, time.Minute) // of one instant, as by COPY
	for claimed := 0; claimed < all-1000; claimed += 1000 {
		if n := len(c.claim(t, 1000)); n != 1000 {
			t.Fatalf("claimed %d", n)
		}
	}
	read := func(m *lease.Marks) int {
		t.Helper()
		args := c.PairArgs(c.types, 10, m)
		args["limit"], args["holder"], args["worker"], args["lease"] = 10, holderA, "w", time.Minute
		tx, err := c.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context())
		var text []byte
		if err := tx.QueryRow(t.Context(), "explain (analyze, buffers, format json) "+c.Statements()["claim"], c.StatementArgs("claim", args)...).Scan(&text); err != nil {
			t.Fatal(err)
		}
		var plans []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal(text, &plans); err != nil {
			t.Fatal(err)
		}
		return plans[0].Plan.Hit + plans[0].Plan.Read
	}
	if from, start := read(&c.marks), read(nil); from*5 > start {
		t.Errorf("a claim reads %d pages from its mark on, %d from the start", from, start)
	}
}

// What appears behind a mark is claimed all the same: after a look as long as that begins at the start; then when it is
// told of, or found by a look back.
func TestRowsBehindTheMark(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		dear bool
		find func(*testing.T, *claimer)
	}{
		"look": {false, func(t *testing.T, c *claimer) {
			if due := c.look(t); due > 0 {
				t.Errorf("due in %s", due)
			}
		}},
		"told":   {true, func(_ *testing.T, c *claimer) { c.marks.Lower("a", time.Now().Add(-time.Minute)) }},
		"told 0": {true, func(_ *testing.T, c *claimer) { c.marks.Lower("a", time.Time{}) }},
		"reset":  {true, func(_ *testing.T, c *claimer) { c.marks.Reset() }},
		"look back": {true, func(t *testing.T, c *claimer) {
			if !c.lookBack(t) {
				t.Error("nothing found")
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &claimer{fixture: newFixture(t, "own"), types: []string{"a", "b"}}
			c.insert(t, "a", 3, 5*time.Second)
			c.insert(t, "b", 3, 3*time.Second)
			if n := len(c.claim(t, 10)); n != 6 {
				t.Fatalf("claimed %d", n)
			}
			c.look(t)
			if tc.dear {
				c.marks.SetDear()
			}
			c.insert(t, "a", 2, 30*time.Second) // by a transaction that began long ago
			if n := len(c.claim(t, 10)); n != 0 {
				t.Fatalf("claimed %d from behind the mark: it did nothing", n)
			}
			if due := c.look(t); tc.dear && due != lease.Never {
				t.Fatalf("due in %s", due)
			}
			tc.find(t, c)
			if n := len(c.claim(t, 10)); n != 2 {
				t.Errorf("claimed %d of 2", n)
			}
		})
	}
}

// A row that somebody had locked when claims came by is found when it is free, marks or not.
func TestLockedRowKeepsTheMarkBack(t *testing.T) {
	t.Parallel()
	for _, dear := range []bool{false, true} {
		t.Run(fmt.Sprintf("dear %t", dear), func(t *testing.T) {
			t.Parallel()
			c := &claimer{fixture: newFixture(t, "own"), types: []string{"a"}}
			c.insert(t, "a", 1, time.Minute)
			tx, err := c.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			if _, err := tx.Exec(t.Context(), c.sql("select from :T for update")); err != nil {
				t.Fatal(err)
			}
			c.look(t)
			if dear {
				c.marks.SetDear()
			}
			for range 3 {
				c.insert(t, "a", 10, 30*time.Second)
				if n := len(c.claim(t, 100)); n != 10 {
					t.Fatalf("claimed %d beside the locked one", n)
				}
				if due := c.look(t); due > 0 {
					t.Fatalf("the locked row is not reported: due in %s", due)
				}
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := len(c.claim(t, 100)); n != 1 {
				t.Errorf("claimed %d", n)
			}
		})
	}
}

// Whatever is inserted behind and ahead of the marks, in whatever order: all is claimed once, each once.
func TestMarksLoseNothing(t *testing.T) {
	t.Parallel()
	c := &claimer{fixture: newFixture(t, "own"), types: []string{"a", "b", "c"}}
	random := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	inserted, claimed := 0, map[string]bool{}
	claim := func(limit int) {
		t.Helper()
		for _, l := range c.claim(t, limit) {
			if claimed[l.Key] {
				t.Fatalf("%s claimed twice", l.Key)
			}
			claimed[l.Key] = true
		}
	}
	for range 150 {
		switch random.IntN(6) {
		case 0, 1:
			n := 1 + random.IntN(20)
			c.insert(t, c.types[random.IntN(3)], n, time.Duration(random.IntN(20_000))*time.Millisecond)
			inserted += n
		case 2, 3:
			claim(1 + random.IntN(30))
		case 4:
			c.look(t)
		case 5:
			if random.IntN(4) == 0 {
				c.marks.SetDear()
			}
			c.exec(t, "update :T set priority = (random() * 9)::int where id in (select id from :T where status = 'queued' limit 3)")
		}
	}
	for c.lookBack(t) || c.look(t) <= 0 {
		claim(1000)
	}
	if len(claimed) != inserted {
		t.Errorf("claimed %d of %d", len(claimed), inserted)
	}
}
