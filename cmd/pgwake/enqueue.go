package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgwake/pgwake"
)

// enqueueFlags are the options of a single task as given on the command line.
type enqueueFlags struct {
	dueAt, id, uniqueKey, metadata string
	delay                          time.Duration
	priority, maxAttempts          int
}

func (a *app) newEnqueueCommand() *cobra.Command {
	var (
		single enqueueFlags
		ndjson bool
		skip   bool
	)
	cmd := &cobra.Command{
		Use:   "enqueue {TYPE [PAYLOAD] | --ndjson [FILE]}",
		Short: "Enqueue one task, or many from a file",
		Long: `Enqueue one task and print its id. The payload is JSON, {} by default; - reads it
from standard input, @FILE from a file. If a live task of the type holds the unique
key, that task's id is printed and the exit code is 3.

With --ndjson, tasks are read from a file or from standard input, a JSON object a line:

  {"type": "email.welcome", "payload": {"to": "ada"}, "delay": "90s", "unique_key": "ada"}

Only "type" is needed. The other fields are "payload", "id", "due_at" (RFC 3339),
"delay" (such as 1h30m), "priority" (0 to 9), "max_attempts", "unique_key" and
"metadata". Tasks are committed in batches of up to 1000. The first bad line stops the
import: the lines before it are enqueued, none after it. Duplicates are counted and
are no error.

What programs have registered for a type (attempts, priority, unique fields) is not
known here: the priority is 5 and there is no unique key unless given, and the worker
decides on attempts.`,
		Example: `  pgwake enqueue email.welcome '{"to": "ada@example.com"}'
  pgwake enqueue report.build @report.json --delay 10m --priority 2
  pgwake enqueue invoice.send --unique-key invoice-17 --due-at 2030-01-31T09:00:00Z
  pgwake enqueue --ndjson tasks.ndjson
  generate | pgwake enqueue --ndjson --json > ids.ndjson`,
		Args: func(_ *cobra.Command, args []string) error {
			most := 2
			if ndjson {
				most = 1
			}
			switch {
			case len(args) == 0 && !ndjson:
				return errors.New("give the type of the task, or --ndjson")
			case len(args) > most:
				return fmt.Errorf("unexpected argument %q: quote the payload as one", args[most])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if ndjson {
				if err := noneSet(cmd.Flags(), "due-at", "delay", "priority", "max-attempts", "unique-key", "id", "metadata"); err != nil {
					return err
				}
				return a.enqueueLines(cmd.Context(), append(args, "-")[0], skip)
			}
			if skip {
				return usagef("--skip-bad goes with --ndjson")
			}
			opts, err := single.options(cmd.Flags())
			if err != nil {
				return err
			}
			payload, err := a.readPayload(cmd.Context(), append(args[1:], "{}")[0])
			if err != nil {
				return err
			}
			return a.enqueueOne(cmd.Context(), pgwake.Raw{Type: args[0], JSON: payload}, opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&single.dueAt, "due-at", "", "when the task may run, as RFC 3339: 2030-01-31T09:00:00Z")
	flags.DurationVar(&single.delay, "delay", 0, "how long from now the task may run, such as 1h30m")
	flags.IntVar(&single.priority, "priority", 5, "0 (first) to 9 (last)")
	flags.IntVar(&single.maxAttempts, "max-attempts", 0, "how often the task may run (default: what its type says)")
	flags.StringVar(&single.uniqueKey, "unique-key", "", "allow one live task of the type with this key")
	flags.StringVar(&single.id, "id", "", "id of the task, a UUID (default: a new one)")
	flags.StringVar(&single.metadata, "metadata", "", "JSON object to keep with the task")
	flags.BoolVar(&ndjson, "ndjson", false, "read tasks from a file or standard input, one JSON object a line")
	flags.BoolVar(&skip, "skip-bad", false, "with --ndjson: report bad lines and go on")
	return cmd
}

func noneSet(flags *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if flags.Changed(name) {
			return usagef("--%s is for a single task: with --ndjson every line has its own", name)
		}
	}
	return nil
}

func (f *enqueueFlags) options(flags *pflag.FlagSet) (*pgwake.EnqueueOptions, error) {
	opts := &pgwake.EnqueueOptions{Delay: f.delay, MaxAttempts: f.maxAttempts, UniqueKey: f.uniqueKey}
	var err error
	if f.dueAt != "" {
		if flags.Changed("delay") {
			return nil, usagef("--due-at and --delay exclude each other")
		}
		if opts.DueAt, err = time.Parse(time.RFC3339, f.dueAt); err != nil {
			return nil, usagef("--due-at %q is not RFC 3339, such as 2030-01-31T09:00:00Z", f.dueAt)
		}
	}
	if flags.Changed("priority") {
		opts.Priority = &f.priority
	}
	if flags.Changed("max-attempts") && f.maxAttempts < 1 {
		return nil, usagef("--max-attempts %d: give 1 or more", f.maxAttempts)
	}
	if flags.Changed("unique-key") && f.uniqueKey == "" {
		return nil, usagef("--unique-key is empty: leave it out for no key")
	}
	if flags.Changed("id") {
		if opts.ID, err = parseID("--id", f.id); err != nil {
			return nil, err
		}
	}
	if f.metadata != "" {
		if err := decodeStrict([]byte(f.metadata), &opts.Metadata); err != nil || opts.Metadata == nil {
			return nil, usagef(`--metadata is not a JSON object such as {"source": "import"}`)
		}
	}
	return opts, nil
}

// readPayload reads the payload that an argument is, or names.
func (a *app) readPayload(ctx context.Context, arg string) (json.RawMessage, error) {
	text, source, advice := []byte(arg), "payload", ""
	var err error
	if arg == "-" {
		source = "payload from standard input"
		text, err = io.ReadAll(&interruptible{ctx, a.stdin})
	} else if name, ok := strings.CutPrefix(arg, "@"); ok {
		source = "payload from " + name
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	if source == "payload" {
		advice = `: quote it as in '{"to": "ada"}'`
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return nil, usagef("%s is empty: give JSON, or leave it out for {}", source)
	}
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, usagef("%s is not JSON: %w%s", source, err, advice)
	}
	return whole, nil
}

func (a *app) enqueueOne(ctx context.Context, payload pgwake.Raw, opts *pgwake.EnqueueOptions) error {
	if err := check(payload, opts); err != nil {
		return usage(err)
	}
	return a.withClient(ctx, func(client *pgwake.Client) error {
		task, err := client.Enqueue(ctx, payload, opts)
		if err != nil && !errors.Is(err, pgwake.ErrDuplicate) {
			return err
		}
		if a.json {
			if err := a.printJSON(task); err != nil {
				return err
			}
		} else {
			fmt.Fprintln(a.stdout, task.ID)
		}
		return err
	})
}
