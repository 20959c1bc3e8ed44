package lease

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5"
)

// Table describes a table as a queue: which of its columns carry the protocol and which of its states mean what. Name,
// Key, KeyType, Status, RetryAt and States are required. Every other column is optional: an empty name means that the
// table has none, and what it would have carried is left out.
type Table struct {
	Name    pgx.Identifier // schema and table
	Key     string         // primary key column
	KeyType string         // its SQL type, as in "uuid" or "bigint"
	Status  string         // text column with the state
	RetryAt string         // timestamptz column: due time, lease and pause in one
	States  States

	Type        string // text: rows are claimed by type; without it the table is one queue
	Priority    string // smallint: lower first
	Fence       string // bigint: rises with every claim; without it the lease's own value is the token
	Holder      string // uuid: the worker run that holds the lease
	Worker      string // text: name of the worker that ran the row last
	DueAt       string // timestamptz: the planned instant, which RetryAt loses to the lease
	Attempt     string // integer: runs begun
	MaxAttempts string // integer: runs allowed; null: what the type says
	Lost        string // smallint: runs in a row that ended with their worker lost
	StartedAt   string // timestamptz
	FinishedAt  string // timestamptz
	LastError   string // text
	Errors      string // jsonb: array of the last failures

	// Columns are further columns that a claim returns, in this order.
	Columns []string

	// Archive, if set, is where a row in a final state moves. Without it the row stays, with RetryAt null.
	Archive *Archive

	// ClaimTurn, if set, is a table that nothing else is done with than to be locked by claims that take turns. See
	// [ClaimOptions].
	ClaimTurn pgx.Identifier

	// SettledLock, if set, is an advisory lock that somebody holds exclusively in order to be told of settlements, as
	// SQL of its two integers: a settlement tries it shared until it is committed. See [Queue.SettleWatched].
	SettledLock string
}

// States are a table's names for the states of the protocol.
type States struct {
	Queued  string   // waiting, or due
	Running string   // leased
	Paused  string   // empty: the table cannot be paused
	Frozen  string   // kept, with nothing to do, until somebody acts; empty: the table has no such state
	Final   []string // done for good
}

// Archive is a table that settled rows move to. Columns and Values pair each of its columns with an SQL expression over
// the settled row, alias t; columns of the protocol have the values of the settlement.
type Archive struct {
	Name    pgx.Identifier
	Columns []string
	Values  []string
}

func (t *Table) validate() error {
	switch {
	case len(t.Name) == 0 || slices.Contains(t.Name, ""):
		return errors.New("table name is empty")
	case t.Key == "" || t.KeyType == "":
		return fmt.Errorf("table %s: key column or its type is not named", t.Name.Sanitize())
	case t.Status == "" || t.RetryAt == "":
		return fmt.Errorf("table %s: status or retry_at column is not named", t.Name.Sanitize())
	case t.States.Queued == "" || t.States.Running == "" || len(t.States.Final) == 0:
		return fmt.Errorf("table %s: queued, running and final states must be named", t.Name.Sanitize())
	case t.Priority != "" && t.Type == "":
		return fmt.Errorf("table %s: a priority column needs a type column", t.Name.Sanitize())
	case strings.ContainsAny(t.KeyType, ";'\"\\"):
		return fmt.Errorf("table %s: key type %q is not a type name", t.Name.Sanitize(), t.KeyType)
	case t.Archive != nil && len(t.Archive.Columns) != len(t.Archive.Values):
		return fmt.Errorf("table %s: archive has %d columns and %d values", t.Name.Sanitize(), len(t.Archive.Columns), len(t.Archive.Values))
	}
	return nil
}

// statement fills an SQL template with the table's names and numbers its parameters.
func (t *Table) statement(name, text string) (statement, error) {
	sql, err := t.render(name, text)
	if err != nil {
		return statement{}, err
	}
	// Given the names themselves as values, the rewriter answers with their order.
	names := pgx.NamedArgs{}
	for _, m := range parameter.FindAllStringSubmatch(sql, -1) {
		names[m[1]] = m[1]
	}
	sql, order, err := names.RewriteQuery(context.Background(), nil, sql, nil)
	if err != nil {
		return statement{}, fmt.Errorf("%s: %w", name, err)
	}
	s := statement{sql: sql}
	for _, o := range order {
		s.params = append(s.params, o.(string))
	}
	return s, nil
}

var parameter = regexp.MustCompile(`@([a-z_0-9]+)`)

// render fills an SQL template with the table's names.
func (t *Table) render(name, text string) (string, error) {
	tmpl, err := template.New(name).Funcs(template.FuncMap{
		"q":     func(name string) string { return pgx.Identifier{name}.Sanitize() },
		"lit":   literal,
		"lits":  func(list []string) string { return strings.Join(mapTo(list, literal), ", ") },
		"cols":  func(list []string) string { return strings.Join(mapTo(list, quoteColumn), ", ") },
		"exprs": func(list []string) string { return strings.Join(list, ", ") },
		"prefix": func(list []string) string {
			return strings.Join(mapTo(list, func(c string) string { return ", t." + quoteColumn(c) }), "")
		},
		"token":          t.token,
		"nextFor":        t.nextToken,
		"suspectAttempt": t.suspectAttempt,
		"markFloor":      markFloor,
	}).Parse(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	var b strings.Builder
	if err := tmpl.Execute(&b, t); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	// An empty {{if}} leaves an empty line behind; the server's log and pg_stat_statements read better without.
	lines := slices.DeleteFunc(strings.Split(b.String(), "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	return strings.Join(lines, "\n"), nil
}

// token is the expression that fences a row: its fence, or, where the table has none, the value of its lease in
// microseconds, which every lease makes anew. A paused row, at infinity, has none.
func (t *Table) token(alias string) string {
	if t.Fence != "" {
		return alias + "." + quoteColumn(t.Fence)
	}
	at := alias + "." + quoteColumn(t.RetryAt)
	return fmt.Sprintf("case when isfinite(%s) then (extract(epoch from %s) * 1000000)::bigint end", at, at)
}

// nextToken raises the fence. A plain fence + 1 would come again after a crash that lost an unflushed claim, and a
// holder from before the crash could then settle the new holder's row; the clock does not come again.
func (t *Table) nextToken(alias string) string {
	return fmt.Sprintf("greatest(%s.%s + 1, (extract(epoch from clock_timestamp()) * 1000000)::bigint)", alias, quoteColumn(t.Fence))
}

// suspectAttempt is the condition, over alias d and types p, that the row's next run is its last or beyond.
func (t *Table) suspectAttempt() string {
	if t.Attempt == "" || t.MaxAttempts == "" || t.Type == "" {
		return "false"
	}
	return fmt.Sprintf("d.%s >= coalesce(d.%s, p.attempts) - 1", quoteColumn(t.Attempt), quoteColumn(t.MaxAttempts))
}

func quoteColumn(name string) string { return pgx.Identifier{name}.Sanitize() }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func mapTo(list []string, f func(string) string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}
