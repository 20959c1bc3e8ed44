package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake"
)

// statuses in the order of a task's life.
var statuses = []pgwake.Status{pgwake.Queued, pgwake.Running, pgwake.Paused, pgwake.Frozen, pgwake.Succeeded, pgwake.Cancelled}

func (a *app) newTasksCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "tasks",
		Short: "List, show and count tasks",
	}, a.newTasksListCommand(), a.newTasksShowCommand(), a.newTasksCountsCommand())
}

func (a *app) newTasksListCommand() *cobra.Command {
	var (
		filter pgwake.TaskFilter
		states []string
		before string
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks, the newest first",
		Long: `List tasks, live and archived, the newest first. Give --before the last id of a
page to see the page after it.

The payload is in 'pgwake tasks show', and in --json.`,
		Example: `  pgwake tasks list --status frozen
  pgwake tasks list --type email.welcome --type email.digest --limit 20
  pgwake tasks list --unique-key customer-17 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if filter.Statuses, err = parseStatuses(states); err != nil {
				return err
			}
			if before != "" {
				if filter.Before, err = parseID("--before", before); err != nil {
					return err
				}
			}
			if filter.Limit < 1 || filter.Limit > 10_000 {
				return usagef("--limit %d is not between 1 and 10000", filter.Limit)
			}
			return a.withClient(cmd.Context(), func(client *pgwake.Client) error {
				tasks, err := client.Inspector().Tasks(cmd.Context(), filter)
				if err != nil {
					return err
				}
				return a.printTasks(tasks, filter.Limit)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&filter.Types, "type", nil, "only tasks of this type (repeat for more)")
	flags.StringSliceVar(&states, "status", nil, "only tasks in this state: "+statusNames()+" (repeat for more)")
	flags.StringVar(&filter.UniqueKey, "unique-key", "", "only tasks with this unique key")
	flags.StringVar(&before, "before", "", "only tasks made before the one with this id")
	flags.IntVar(&filter.Limit, "limit", 100, "how many at most")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(strings.Split(statusNames(), ", "), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) printTasks(tasks []*pgwake.TaskInfo, limit int) error {
	if a.json {
		return a.printJSON(tasks)
	}
	if len(tasks) == 0 {
		a.note("no such tasks")
		return nil
	}
	rows := make([][]string, len(tasks))
	for i, t := range tasks {
		var due *time.Time
		if t.Status == pgwake.Queued {
			due = &t.DueAt
		}
		rows[i] = []string{
			t.ID.String(), t.Type, string(t.Status), attempts(t), a.when(&t.CreatedAt), a.when(due), a.when(t.FinishedAt),
			deref(t.LastError),
		}
	}
	a.printTable([]string{"id", "type", "status", "attempt", "created", "due", "finished", "last error"}, rows)
	if len(tasks) == limit && a.human() {
		a.note("there may be more: add --before %s", tasks[len(tasks)-1].ID)
	}
	return nil
}

func (a *app) newTasksShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show all there is to know of one task",
		Example: `  pgwake tasks show 01890a5d-ac96-774b-bcce-b302099a8057`,
		Args:    exactArgs("the id of a task"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID("task", args[0])
			if err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(client *pgwake.Client) error {
				task, err := client.Inspector().Task(cmd.Context(), id)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(task)
				}
				a.printTask(task)
				return nil
			})
		},
	}
}

// printTask writes a field a line; those that say nothing are left out.
func (a *app) printTask(t *pgwake.TaskInfo) {
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.stdout, "%-13s %s\n", name+":", value)
		}
	}
	instant := func(name string, at *time.Time) {
		if at == nil {
			return
		}
		text := at.Format("2006-01-02 15:04:05.000 -07:00")
		if a.human() {
			text += " (" + a.when(at) + ")"
		}
		field(name, text)
	}
	field("id", t.ID.String())
	field("type", printable(t.Type))
	field("status", string(t.Status))
	field("attempt", attempts(t))
	field("priority", fmt.Sprint(t.Priority))
	field("unique key", printable(deref(t.UniqueKey)))
	field("worker", printable(deref(t.Worker)))
	field("fence", fmt.Sprint(t.Fence))
	instant("created", &t.CreatedAt)
	instant("due", &t.DueAt)
	instant("started", t.StartedAt)
	if t.Status == pgwake.Running {
		instant("leased until", t.RetryAt)
	}
	instant("finished", t.FinishedAt)
	if t.Payload == nil {
		field("payload", fmt.Sprintf("not kept, being too large for the archive (%d bytes)", t.PayloadBytes))
	} else {
		field("payload", indentJSON(t.Payload, ""))
	}
	if string(t.Metadata) != "{}" {
		field("metadata", indentJSON(t.Metadata, ""))
	}
	if len(t.Errors) == 0 {
		field("last error", printable(deref(t.LastError)))
		return
	}
	fmt.Fprintln(a.stdout, "errors:")
	for _, e := range t.Errors {
		by := ""
		if e.Worker != "" {
			by = " on " + printable(e.Worker)
		}
		fmt.Fprintf(a.stdout, "  attempt %d, %s%s\n", e.Attempt, e.At.Format("2006-01-02 15:04:05.000 -07:00"), by)
		for _, text := range []string{e.Error, e.Stack} {
			for line := range strings.Lines(text) {
				fmt.Fprintf(a.stdout, "    %s\n", printable(strings.TrimRight(strings.ReplaceAll(line, "\t", "    "), "\n")))
			}
		}
	}
}

func (a *app) newTasksCountsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "counts",
		Short: "Count live tasks by type and state",
		Long: `Count the live tasks of each type and state. Settled tasks, which are in the
archive, are not counted. This reads the whole table of live tasks.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(client *pgwake.Client) error {
				counts, err := client.Inspector().Counts(cmd.Context())
				if err != nil {
					return err
				}
				return a.printCounts(counts)
			})
		},
	}
}

// printCounts writes a type a line, its states side by side.
func (a *app) printCounts(counts []pgwake.TypeCount) error {
	if a.json {
		return a.printJSON(counts)
	}
	if len(counts) == 0 {
		a.note("no live tasks")
		return nil
	}
	live := statuses[:4]
	var types []string
	number := map[string]map[pgwake.Status]int64{}
	for _, c := range counts { // ordered by type
		if number[c.Type] == nil {
			types = append(types, c.Type)
			number[c.Type] = map[pgwake.Status]int64{}
		}
		number[c.Type][c.Status] = c.Count
	}
	header := []string{"type"}
	for _, s := range live {
		header = append(header, string(s))
	}
	rows := make([][]string, 0, len(types))
	for _, name := range types {
		row := []string{name}
		for _, s := range live {
			row = append(row, fmt.Sprint(number[name][s]))
		}
		rows = append(rows, row)
	}
	a.printTable(header, rows)
	return nil
}

func parseStatuses(names []string) ([]pgwake.Status, error) {
	var list []pgwake.Status
	for _, name := range names {
		s := pgwake.Status(name)
		if !slices.Contains(statuses, s) {
			return nil, usagef("--status %q is none of %s", name, statusNames())
		}
		list = append(list, s)
	}
	return list, nil
}

func statusNames() string {
	names := make([]string, len(statuses))
	for i, s := range statuses {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// parseID refuses the zero id too, which the library takes for none.
func parseID(what, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id == uuid.Nil {
		return uuid.Nil, usagef("%s %q is not an id such as 01890a5d-ac96-774b-bcce-b302099a8057", what, text)
	}
	return id, nil
}

// exactArgs is cobra's ExactArgs with a message that names what is wanted.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("give %s", names[len(args)])
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// attempts shows the runs so far of those allowed.
func attempts(t *pgwake.TaskInfo) string { return fmt.Sprintf("%d/%d", t.Attempt, t.MaxAttempts) }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
