package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/migrations"
)

// schema: whether its version and this program's fit together.
func (e *exam) schema(ctx context.Context) (Finding, error) {
	var have int
	err := e.read(ctx, func(tx pgx.Tx) error {
		if err := migrations.Check(ctx, tx, e.Schema); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select max(version_id) from `+e.name("schema_migrations")).Scan(&have)
	})
	var version *migrations.VersionError
	switch {
	case errors.As(err, &version):
		e.noTables = version.Have == 0
		do := "pgwake migrate up"
		if version.Need == 0 {
			do = "deploy a newer version of pgwake"
		}
		return Finding{Status: Fail, Text: err.Error(), Do: do}, nil
	case err != nil:
		return Finding{}, err
	case have < migrations.Latest:
		return Finding{Status: Warn, Text: fmt.Sprintf("at version %d, which works; this program brings %d", have, migrations.Latest), Do: "pgwake migrate up"}, nil
	case have > migrations.Latest:
		return Finding{Status: OK, Text: fmt.Sprintf("at version %d, newer than this program's %d and made to work with it", have, migrations.Latest)}, nil
	}
	return Finding{Status: OK, Text: fmt.Sprintf("at version %d, which is this program's", have)}, nil
}

// ringTriggers are the triggers that wake workers, as pg_get_triggerdef shows them, without the names of schema and
// function, which it qualifies or not.
var ringTriggers = map[string]string{
	"tasks_ring_insert": `AFTER INSERT ON tasks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN new.retry_at < statement_timestamp + '00:01:00'::interval`,
	"tasks_ring_update": `AFTER UPDATE OF status, retry_at, type, priority ON tasks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN new.retry_at < statement_timestamp + '00:01:00'::interval AND new.status <> 'paused'::text AND old.retry_at IS NULL OR new.retry_at < old.retry_at OR new.status = 'queued'::text AND old.status <> 'queued'::text OR new.type <> old.type OR new.priority <> old.priority`,
}

const triggersSQL = `
select t.tgname::text, t.tgenabled::text, pg_get_triggerdef(t.oid), p.proname::text, p.prosrc, n.nspname::text
from pg_trigger as t
join pg_proc as p on p.oid = t.tgfoid
join pg_namespace as n on n.oid = p.pronamespace
where t.tgrelid = $1::text::regclass and not t.tgisinternal and t.tgname like 'tasks\_ring\_%'`

// triggers: whether those that wake workers are there, in effect, and what this program brought.
func (e *exam) triggers(ctx context.Context) (Finding, error) {
	list, err := rows[struct{ Name, Enabled, Definition, Function, Body, Schema string }](ctx, e, triggersSQL, e.name("tasks"))
	if err != nil {
		return Finding{}, err
	}
	role, err := row[struct{ Replication string }](ctx, e, `select current_setting('session_replication_role')`)
	if err != nil {
		return Finding{}, err
	}
	body, err := ringBody(e.Schema)
	if err != nil {
		return Finding{}, err
	}
	missing := map[string]bool{}
	for name := range ringTriggers {
		missing[name] = true
	}
	var wrong, do []string
	always := 0
	for _, t := range list {
		if !missing[t.Name] {
			continue
		}
		delete(missing, t.Name)
		switch {
		case t.Enabled == "D" || t.Enabled == "R":
			wrong = append(wrong, t.Name+" is disabled")
			do = append(do, fmt.Sprintf("alter table %s enable trigger %s", e.name("tasks"), t.Name))
			continue
		case t.Enabled == "A":
			always++
		}
		if t.Function != "ring" || t.Schema != e.Schema || t.Body != body {
			wrong = append(wrong, "the function of "+t.Name+" is not the one that pgwake brought")
			do = append(do, "pgwake migrate up --print, and run its last function ring() again")
		}
		if got := plain(t.Definition); got != ringTriggers[t.Name] {
			wrong = append(wrong, t.Name+" is not as pgwake made it")
			do = append(do, "pgwake migrate up --print, and make the trigger again as it says")
		}
	}
	for name := range missing {
		wrong = append(wrong, name+" is missing")
		do = append(do, "pgwake migrate up --print, and run its create constraint trigger "+name)
	}
	switch {
	case len(wrong) > 0:
		return Finding{Status: Fail, Text: some(wrong) + ": tasks wake nobody and wait for a sweep", Do: strings.Join(do, "; ")}, nil
	case role.Replication == "replica" && always < len(ringTriggers):
		return Finding{
			Status: Fail, Text: "session_replication_role is replica for this role or database: what it enqueues wakes nobody",
			Do: fmt.Sprintf("reset it, or alter table %[1]s enable always trigger tasks_ring_insert; alter table %[1]s enable always trigger tasks_ring_update", e.name("tasks")),
		}, nil
	case always == len(ringTriggers):
		return Finding{Status: OK, Text: "in place, also for replicated and restored rows (ENABLE ALWAYS)"}, nil
	}
	return Finding{Status: OK, Text: "in place; rows that come by replication, or from pg_restore --disable-triggers, do not ring (not ENABLE ALWAYS)"}, nil
}

var (
	ringFunction = regexp.MustCompile(`(?s)create (?:or replace )?function ring\(\).*?as \$\$(.*?)\$\$`)
	fromAfter    = regexp.MustCompile(`^CREATE CONSTRAINT TRIGGER \S+ `)
	onTable      = regexp.MustCompile(`ON ("(?:[^"]|"")*"|[^ ".]+)\.tasks `)
	execute      = regexp.MustCompile(` EXECUTE (FUNCTION|PROCEDURE) .*$`)
)

// ringBody is the body of the ring function that this program brings.
func ringBody(schema string) (string, error) {
	script, err := migrations.SQL(schema, 0)
	if err != nil {
		return "", err
	}
	found := ringFunction.FindAllStringSubmatch(script, -1)
	if len(found) == 0 {
		return "", errors.New("the migrations have no ring function")
	}
	return found[len(found)-1][1], nil
}

// plain takes from a trigger's definition what differs between servers and schemas. Parentheses go, too; the order of
// what is left tells enough.
func plain(definition string) string {
	s := fromAfter.ReplaceAllString(definition, "")
	s = execute.ReplaceAllString(s, "")
	s = onTable.ReplaceAllString(s, "ON tasks ")
	return strings.NewReplacer("(", "", ")", "").Replace(strings.ReplaceAll(s, " NOT DEFERRABLE", ""))
}

const partitionsSQL = `
select to_char(d.day, 'YYYYMMDD'), d.ahead,
       to_regclass(quote_ident($2::text) || '.task_archive_' || to_char(d.day, 'YYYYMMDD')) is not null,
       exists (
         select from pg_inherits as i
         where i.inhparent = $1::text::regclass and not i.inhdetachpending
           and i.inhrelid = to_regclass(quote_ident($2::text) || '.task_archive_' || to_char(d.day, 'YYYYMMDD')))
from (select (clock_timestamp() at time zone 'utc')::date + g, g from generate_series(0, 14) as g) as d(day, ahead)
order by d.ahead`

// partitions: whether the archive can take what is settled today and tomorrow.
func (e *exam) partitions(ctx context.Context) (Finding, error) {
	list, err := rows[struct {
		Day             string
		Ahead           int
		There, Attached bool
	}](ctx, e, partitionsSQL, e.name("task_archive"), e.Schema)
	if err != nil {
		return Finding{}, err
	}
	ahead := 0
	for _, p := range list {
		switch {
		case p.Attached:
			ahead = p.Ahead
		case p.There && p.Ahead < 2:
			part := e.name("task_archive_" + p.Day)
			return Finding{
				Status: Fail, Text: fmt.Sprintf("%s is there but no partition of the archive: tasks of that day cannot be settled, and nobody makes another", part),
				Do: fmt.Sprintf("alter table %s rename to task_archive_%s_detached; select %s()", part, p.Day, e.name("ensure_partitions")),
			}, nil
		case p.Ahead == 0:
			return Finding{Status: Fail, Text: "the archive has no partition for today (UTC): every settlement has to make one first", Do: "select " + e.name("ensure_partitions") + "()"}, nil
		case p.Ahead == 1:
			return Finding{Status: Warn, Text: "the archive has no partition for tomorrow (UTC), which workers make hourly", Do: "select " + e.name("ensure_partitions") + "()"}, nil
		}
	}
	return Finding{Status: OK, Text: fmt.Sprintf("made for %d days ahead", ahead)}, nil
}

// tasksOID is what the first integer of the gate's locks comes from.
func (e *exam) tasksOID(ctx context.Context) (uint32, error) {
	t, err := row[struct{ OID *uint32 }](ctx, e, `select to_regclass($1::text)::oid`, e.name("tasks"))
	if err != nil {
		return 0, err
	}
	if t.OID == nil {
		e.noTables = true
		return 0, errNoTables
	}
	return *t.OID, nil
}

var errNoTables error = noTables{}

// noTables is the error of a server that misses a table.
type noTables struct{}

func (noTables) Error() string    { return "there are no tables" }
func (noTables) SQLState() string { return "42P01" }
