package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake"
)

func (a *app) newWorkersCommand() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "List the workers that are alive",
		Long: `List the workers that have reported themselves of late. A worker reports at every
sweep, every 5 s by default; one that was killed disappears from the list once its
last report is older than --within.`,
		Example: `  pgwake workers
  pgwake workers --within 24h --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if within <= 0 {
				return usagef("--within %s: give a positive duration, such as 1m", within)
			}
			return a.withClient(cmd.Context(), func(client *pgwake.Client) error {
				workers, err := client.Inspector().Workers(cmd.Context(), within)
				if err != nil {
					return err
				}
				return a.printWorkers(workers, within)
			})
		},
	}
	cmd.Flags().DurationVar(&within, "within", time.Minute, "how long ago the last report may be")
	return cmd
}

func (a *app) printWorkers(workers []*pgwake.WorkerInfo, within time.Duration) error {
	if a.json {
		return a.printJSON(workers)
	}
	if len(workers) == 0 {
		a.note("no worker has reported within %s", within)
		return nil
	}
	rows := make([][]string, len(workers))
	for i, w := range workers {
		state := "running"
		if w.Draining {
			state = "draining"
		}
		rows[i] = []string{
			w.Name, state, fmt.Sprintf("%d/%d", w.Running, w.Slots), a.when(&w.StartedAt), a.when(&w.SeenAt),
			w.Version, w.ID.String(), strings.Join(w.Types, ","),
		}
	}
	a.printTable([]string{"name", "state", "slots", "started", "seen", "version", "id", "types"}, rows)
	return nil
}
