package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake/internal/doctor"
)

func (a *app) newDoctorCommand() *cobra.Command {
	var listenerURL string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong, and what to do about it",
		Long: `Find out what keeps tasks from being run at once. One line a check: ok, warn or
fail, what was found and, indented below it, what to do, with the SQL or command.

  server         a writable primary of a version that is supported
  pooler         whether one stands between workers and server
  listener       a notification of one session arrives at another, and how soon
  clock          this machine's clock beside the server's
  schema         its version and this program's fit together
  triggers       those that wake workers are there, enabled, and as pgwake made them
  partitions     the archive can take what is settled today and tomorrow
  workers        who is alive, and who has fallen silent
  types          due tasks that no live worker has a handler for
  backlog        due tasks that wait beside free slots
  gate           who is to be woken for each type
  arming         transactions that have enqueued, do not end, and keep workers awake
  notifications  how full the server's notification queue is, and who holds it
  snapshots      who keeps vacuum from removing dead rows
  vacuum         dead rows in the task table, autovacuum switched off
  connections    how many are left
  settings       those of the server that lose data, hang commits or end sessions

It reads, in read-only transactions, and sends one notification to a channel of its
own. Every check has a deadline. Any role can run it and is told what it may not
see; pg_monitor and the right to read pgwake's tables see all.

Exit codes: 0 nothing failed, 1 something failed or the server cannot be reached.
Warnings alone exit 0.`,
		Example: `  pgwake doctor
  pgwake doctor --json | jq -r '.[] | select(.status != "ok") | .check + ": " + .do'
  pgwake doctor --database-url postgres://app@pooler:6432/app \
    --listener-url postgres://app@db:5432/app`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			config := pool.Config()
			pool.Close()
			examined := doctor.Config{Conn: config.ConnConfig, Schema: a.schemaName()}
			if url := cmp.Or(listenerURL, os.Getenv("PGWAKE_LISTENER_URL")); url != "" {
				listener, err := pgxpool.ParseConfig(url) // as lenient as for the database's: pool settings may stand in it
				if err != nil {
					return usagef("--listener-url: %w", err)
				}
				examined.Listener = listener.ConnConfig
				examined.Listener.ConnectTimeout = cmp.Or(examined.Listener.ConnectTimeout, connectTimeout)
			}
			return a.examine(cmd, examined)
		},
	}
	cmd.Flags().StringVar(&listenerURL, "listener-url", "", "what worker.Config.ListenerURL is, where the database URL goes through a pooler (default $PGWAKE_LISTENER_URL)")
	return cmd
}

// examine runs the checks and prints what each found as soon as it has; JSON when all have.
func (a *app) examine(cmd *cobra.Command, config doctor.Config) error {
	findings := []doctor.Finding{}
	failed := 0
	doctor.Run(cmd.Context(), config, func(f doctor.Finding) {
		findings = append(findings, f)
		if f.Status == doctor.Fail {
			failed++
		}
		if a.json {
			return
		}
		fmt.Fprintf(a.stdout, "%-4s  %-13s  %s\n", f.Status, f.Check, printable(f.Text))
		if f.Do != "" {
			fmt.Fprintf(a.stdout, "%s→ %s\n", strings.Repeat(" ", 21), printable(f.Do))
		}
	})
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(findings); err != nil {
			return err
		}
	}
	if failed > 0 {
		return errors.New(plural(failed, "check failed", "checks failed"))
	}
	return nil
}
