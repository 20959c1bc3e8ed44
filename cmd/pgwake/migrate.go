package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake/migrations"
)

func (a *app) newMigrateCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "migrate",
		Short: "Bring the schema up to date, or look at it",
		Long: `Bring pgwake's schema up to date. Any number of processes may do so at once: one
works, the others wait for it. Migrate before you deploy programs that use a newer
version of pgwake; older ones go on working meanwhile.`,
	}, a.newMigrateUpCommand(), a.newMigrateDownCommand(), a.newMigrateStatusCommand())
}

func (a *app) newMigrateUpCommand() *cobra.Command {
	var (
		show bool
		from int
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create the schema, or bring it to the latest version",
		Long: `Create the schema, or bring it to the latest version. The role needs CREATE on the
database for a new schema, else ownership of the schema.

With --print nothing is changed and no database is needed: the SQL is printed, for
psql or for review.`,
		Example: `  pgwake migrate up
  pgwake migrate up --print | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
  pgwake migrate up --print --from 2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cmd.Flags().Changed("from") && !show:
				return usagef("--from goes with --print: without it, what is missing is applied")
			case from < 0 || from > migrations.Latest:
				return usagef("--from %d is not between 0 and %d", from, migrations.Latest)
			case show:
				sql, err := migrations.SQL(a.schemaName(), from)
				if err != nil {
					return err
				}
				_, err = io.WriteString(a.stdout, sql)
				return err
			}
			return a.migrateUp(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&show, "print", false, "print the SQL instead of running it")
	cmd.Flags().IntVar(&from, "from", 0, "with --print: the version that the schema has already")
	return cmd
}

func (a *app) migrateUp(ctx context.Context) error {
	url, err := a.reach(ctx)
	if err != nil {
		return err
	}
	done, err := migrations.Up(ctx, url, a.schemaName())
	if err := a.printMigrated("applied", done); err != nil {
		return err
	}
	if err == nil && len(done) == 0 {
		a.note("schema %q is up to date, at version %d", a.schemaName(), migrations.Latest)
	}
	return err
}

func (a *app) newMigrateDownCommand() *cobra.Command {
	var (
		to  int
		yes bool
	)
	cmd := &cobra.Command{
		Use:   "down --to N",
		Short: "Take the schema back to an older version; data is lost",
		Long: `Take the schema back to an older version, 0 for none of it. Tables that the older
version does not have are dropped with all that is in them. It asks first; --yes is
the answer where there is nobody to ask.`,
		Example: `  pgwake migrate down --to 2
  pgwake migrate down --to 0 --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !cmd.Flags().Changed("to"):
				return usagef("say with --to which version to go back to, 0 for none of it")
			case to < 0 || to >= migrations.Latest:
				return usagef("--to %d is not between 0 and %d", to, migrations.Latest-1)
			}
			return a.migrateDown(cmd.Context(), to, yes)
		},
	}
	cmd.Flags().IntVar(&to, "to", 0, "version to go back to")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) migrateDown(ctx context.Context, to int, yes bool) error {
	url, err := a.reach(ctx)
	if err != nil {
		return err
	}
	list, err := migrations.Status(ctx, url, a.schemaName())
	if err != nil {
		return err
	}
	var undo []string
	for _, m := range list {
		if m.Version > to && !m.AppliedAt.IsZero() {
			undo = append(undo, fmt.Sprintf("%d %s", m.Version, m.Name))
		}
	}
	if len(undo) == 0 {
		if a.json {
			return a.printJSON([]migrations.Migration{})
		}
		a.note("schema %q is at version %d or older already", a.schemaName(), to)
		return nil
	}
	if !yes {
		if err := a.confirm(ctx, fmt.Sprintf("undoing %s of schema %q drops its tables with all that is in them", strings.Join(undo, ", "), a.schemaName())); err != nil {
			return err
		}
	}
	done, err := migrations.Down(ctx, url, a.schemaName(), to)
	if err := a.printMigrated("undone", done); err != nil {
		return err
	}
	return err
}

// confirm asks whether to go on after a warning. Without a terminal there is nobody to ask.
func (a *app) confirm(ctx context.Context, warning string) error {
	if !isTerminal(a.stdin) {
		return usagef("%s: add --yes if that is what you want", warning)
	}
	a.note("%s", warning)
	fmt.Fprint(a.stderr, "Data is lost. Go on? [y/N] ")
	answer, err := bufio.NewReader(&interruptible{ctx, a.stdin}).ReadString('\n')
	if err != nil && err != io.EOF {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was changed")
	}
	return nil
}

func (a *app) newMigrateStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the migrations and when each was applied",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, err := a.reach(cmd.Context())
			if err != nil {
				return err
			}
			list, err := migrations.Status(cmd.Context(), url, a.schemaName())
			if err != nil {
				return err
			}
			return a.printStatus(list)
		},
	}
}

func (a *app) printStatus(list []migrations.Migration) error {
	if a.json {
		return a.printJSON(utc(list))
	}
	rows := make([][]string, len(list))
	pending := 0
	for i, m := range list {
		applied := a.when(&m.AppliedAt)
		if applied == "" {
			applied = "pending"
			pending++
		}
		rows[i] = []string{strconv.Itoa(m.Version), m.Name, applied}
	}
	a.printTable([]string{"version", "name", "applied"}, rows)
	if pending > 0 {
		a.note("%d pending in schema %q: run 'pgwake migrate up'", pending, a.schemaName())
	}
	return nil
}

// reach returns the connection string once the server has answered on it, so that one that does not is told in the
// same words as everywhere.
func (a *app) reach(ctx context.Context) (string, error) {
	pool, err := a.connect(ctx)
	if err != nil {
		return "", err
	}
	pool.Close()
	return a.url()
}

func (a *app) printMigrated(verb string, done []migrations.Migration) error {
	if a.json {
		return a.printJSON(utc(done))
	}
	for _, m := range done {
		fmt.Fprintf(a.stdout, "%s %d %s\n", verb, m.Version, m.Name)
	}
	return nil
}

// utc makes JSON's times alike wherever the command runs, and an array of no migrations.
func utc(list []migrations.Migration) []migrations.Migration {
	out := make([]migrations.Migration, len(list))
	for i, m := range list {
		out[i] = m
		out[i].AppliedAt = m.AppliedAt.UTC().Truncate(time.Millisecond)
	}
	return out
}
