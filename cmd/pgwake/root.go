package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake"
)

// Exit codes, beside 0 and 128 + n for signal n.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitDuplicate = 3
	exitNotFound  = 4
)

// app is what the commands share: their streams, and what the persistent flags say.
type app struct {
	stdin       io.Reader
	stdout      *output
	stderr      io.Writer
	databaseURL string
	schema      string
	json        bool

	started bool // flags and arguments were understood: errors from now on are none of usage
}

// run is the program. It returns the exit code, and prints at most one line for an error.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: &output{w: stdout}, stderr: stderr}
	root := a.newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(a.stdout)
	root.SetErr(stderr)

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && a.stdout.err != nil {
		err = fmt.Errorf("write output: %w", a.stdout.err)
	}
	return a.exit(ctx, cmd, err)
}

func (a *app) newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "pgwake",
		Short: "Background work in PostgreSQL, woken by a notification",
		Long: `pgwake looks after the tables of the pgwake worker framework: it migrates the
schema, enqueues tasks and shows tasks and workers. Workers are your own programs.

The database is named by --database-url, else by PGWAKE_DATABASE_URL, else by
DATABASE_URL.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 duplicate of a live task,
4 not found, 130 interrupted.`,
		Example: `  export DATABASE_URL=postgres://app@localhost/app
  pgwake migrate up
  pgwake enqueue email.welcome '{"to": "ada@example.com"}'
  pgwake tasks list --status queued`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.started = true
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.databaseURL, "database-url", "", "PostgreSQL to connect to (default $PGWAKE_DATABASE_URL, else $DATABASE_URL)")
	flags.StringVar(&a.schema, "schema", "", "schema of pgwake's tables (default $PGWAKE_SCHEMA, else "+pgwake.DefaultSchema+")")
	flags.BoolVar(&a.json, "json", false, "print JSON, for programs")
	root.AddCommand(
		a.newMigrateCommand(),
		a.newEnqueueCommand(),
		a.newTasksCommand(),
		a.newWorkersCommand(),
		a.newDoctorCommand(),
		a.newVersionCommand(),
		a.newDemoCommand(),
	)
	return root
}

// group makes a command that only holds others. Cobra alone would show its help, and exit 0, for a word it does not know.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			err = fmt.Errorf("%w: did you mean %s?", err, strings.Join(near, " or "))
		}
		return usage(err)
	}
	cmd.AddCommand(children...)
	return cmd
}

// schemaName is the schema by flag, environment or default.
func (a *app) schemaName() string {
	return cmp.Or(a.schema, os.Getenv("PGWAKE_SCHEMA"), pgwake.DefaultSchema)
}

// note tells a person what is no error. It goes to stderr, so that stdout holds nothing but results.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.stderr, "pgwake: "+format+"\n", args...)
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage marks an error as one of how the command was called.
func usage(err error) error { return &exitError{exitUsage, err} }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// signalError is the cause with which a signal ends a command's context.
type signalError struct{ signal os.Signal }

func (e signalError) Error() string { return "interrupted by " + e.signal.String() }

// partlyError is the error of a command that has done part of its work.
type partlyError struct {
	err  error
	done string
}

func (e *partlyError) Error() string { return fmt.Sprintf("%s; %s", e.err, e.done) }
func (e *partlyError) Unwrap() error { return e.err }

// exit reports the error and returns its exit code.
func (a *app) exit(ctx context.Context, cmd *cobra.Command, err error) int {
	var own *exitError
	switch {
	case err == nil:
		return 0
	case errors.Is(a.stdout.err, syscall.EPIPE):
		return 128 + int(syscall.SIGPIPE) // the reader has seen enough
	case ctx.Err() != nil:
		if partly := (*partlyError)(nil); errors.As(err, &partly) {
			a.note("interrupted; %s", partly.done)
		}
		if cause := (signalError{}); errors.As(context.Cause(ctx), &cause) {
			if s, ok := cause.signal.(syscall.Signal); ok {
				return 128 + int(s)
			}
		}
		return 128 + int(syscall.SIGINT)
	case !a.started:
		// Cobra's own, which have no type and several lines.
		err = errors.New(strings.NewReplacer("\n\nDid you mean this?\n\t", ": did you mean ", "\n\t", " or ").Replace(err.Error()))
		own = &exitError{exitUsage, err}
	case errors.As(err, &own):
	case errors.Is(err, pgwake.ErrNotFound):
		own = &exitError{exitNotFound, err}
	case errors.Is(err, pgwake.ErrDuplicate):
		own = &exitError{exitDuplicate, err}
	default:
		own = &exitError{exitFailed, err}
	}
	message := a.describe(err)
	if own.code == exitUsage {
		message += fmt.Sprintf(" (see '%s --help')", cmd.CommandPath())
	}
	a.note("%s", message)
	return own.code
}
