package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake/bench/internal/goals"
	"github.com/pgwake/pgwake/bench/internal/report"
	"github.com/pgwake/pgwake/bench/internal/server"
	"github.com/pgwake/pgwake/bench/internal/suite"
)

// errShort is that of a check whose goals do not all hold.
var errShort = errors.New("short of a goal")

// app is what the commands share: their streams, and what the flags say.
type app struct {
	stdout, stderr io.Writer
	databaseURL    string
	out            string
	json           bool
	options        suite.Options
}

func newRootCommand(stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "bench",
		Short: "Measure pgwake, and check what it promises",
		Long: `bench measures pgwake in suites. Each takes the sides of its comparison in turns
and gives ratios; the raw floor, the least that PostgreSQL itself needs for the
same, is measured in the same run. README.md says how to read the figures.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(a.newListCommand(), a.newRunCommand(), a.newCheckCommand())
	return root
}

func (a *app) newListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the suites",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, s := range suite.All() {
				fmt.Fprintf(a.stdout, "%-16s %s\n", s.Name, s.About)
			}
			return nil
		},
	}
}

func (a *app) newRunCommand() *cobra.Command {
	var minutes int
	var peers bool
	cmd := &cobra.Command{
		Use:     "run SUITE...",
		Short:   "Measure suites and show their figures",
		Example: "  bench run enqueue/busy --rounds 3\n  bench run wake herd --json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a.options.Minutes, a.options.Peers = minutes, peers
			reports, err := a.measure(cmd.Context(), args)
			if err != nil {
				return err
			}
			for _, r := range reports {
				if r.Error != "" {
					return errShort
				}
			}
			return nil
		},
	}
	a.addFlags(cmd)
	cmd.Flags().IntVar(&minutes, "minutes", 10, "minutes for which the snapshot suite holds one")
	cmd.Flags().BoolVar(&peers, "peers", true, "measure peers where no goal asks for it, too")
	return cmd
}

func (a *app) newCheckCommand() *cobra.Command {
	var prefix string
	var minutes int
	cmd := &cobra.Command{
		Use:   "check SUITE...",
		Short: "Measure suites and judge them by goals.yaml",
		Long: `check measures suites and exits with 0 only if all their goals hold. Its last
lines name each figure, its goal, and ok or short. What could not be measured,
or not well enough, is short.`,
		Example: "  bench check enqueue wake herd idle due",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := goals.Parse(goalsFile)
			if err != nil {
				return err
			}
			a.options.Minutes = minutes
			reports, err := a.measure(cmd.Context(), args)
			if err != nil {
				return err
			}
			out := a.stdout
			if a.json {
				out = a.stderr // stdout holds the reports
			}
			short := false
			for _, r := range reports {
				lines, ok := judge(r, all[r.Suite])
				for _, line := range lines {
					fmt.Fprintln(out, prefix+line)
				}
				short = short || !ok
			}
			if short {
				return errShort
			}
			return nil
		},
	}
	a.addFlags(cmd)
	cmd.Flags().IntVar(&minutes, "minutes", 2, "minutes for which the snapshot suite holds one")
	cmd.Flags().StringVar(&prefix, "prefix", "", "text before each of the last lines")
	return cmd
}

func (a *app) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.databaseURL, "database-url", "", "URL of a server to use, as a superuser, with pg_stat_statements loaded and room for 400 connections (default: start one)")
	f.StringVar(&a.out, "out", "", "directory to write to: each suite's report as JSON, a page with tables (report.md), and plots")
	f.BoolVar(&a.json, "json", false, "print the reports as JSON")
	f.IntVar(&a.options.Rounds, "rounds", 0, "rounds of each comparison (default: the suite's own)")
	f.DurationVar(&a.options.Window, "window", 3*time.Second, "how long an enqueue suite measures a side in each round")
	f.DurationVar(&a.options.Drain, "drain", 3*time.Second, "about how long a queue takes that is filled to be drained")
	f.IntVar(&a.options.Archived, "archived", 10_000_000, "how many tasks the archive suite has archived")
	f.StringSliceVar(&a.options.Only, "only", nil, "systems to compare where peers are, by name or its beginning, as in raw,pgwake,river (default: all)")
	f.DurationVar(&a.options.Idle, "idle", time.Minute, "how long the idle suite watches 1 and 64 processes")
}

// measure runs suites on one server and shows their reports.
func (a *app) measure(ctx context.Context, names []string) ([]suite.Report, error) {
	suites, err := suite.Select(names)
	if err != nil {
		return nil, err
	}
	if a.out != "" {
		if err := os.MkdirAll(a.out, 0o755); err != nil {
			return nil, err
		}
	}
	a.options.Memory = &suite.Memory{}
	a.options.Progress = func(line string) { fmt.Fprintln(a.stderr, line) }
	on, err := server.Start(ctx, a.databaseURL)
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	reports, err := a.runSuites(ctx, on, suites)
	return reports, errors.Join(err, on.Close())
}

// write makes the page and the plots of a run, and keeps what it was run on.
func (a *app) write(env report.Environment, reports []suite.Report) error {
	wanted, err := goals.Parse(goalsFile)
	if err != nil {
		return err
	}
	plots, err := report.Plots(reports)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(env, "", "  ")
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"environment.json": append(text, '\n'),
		"report.md":        []byte(report.Markdown(env, reports, wanted, plots)),
	}
	for _, p := range plots {
		files[p.File] = p.SVG
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(a.out, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) runSuites(ctx context.Context, on *server.Server, suites []suite.Suite) ([]suite.Report, error) {
	env, err := report.Describe(ctx, on, os.Args[1:])
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(a.stderr, "PostgreSQL", env.PostgreSQL)
	var reports []suite.Report
	for _, s := range suites {
		r := s.Run(ctx, on, a.options)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		reports = append(reports, r)
		if a.out != "" {
			text, err := json.MarshalIndent(r, "", "  ")
			if err != nil {
				return nil, err
			}
			file := strings.ReplaceAll(r.Suite, "/", "-") + ".json"
			if err := os.WriteFile(filepath.Join(a.out, file), append(text, '\n'), 0o644); err != nil {
				return nil, err
			}
		}
		if !a.json {
			show(a.stdout, r)
		}
	}
	if a.out != "" {
		if err := a.write(env, reports); err != nil {
			return nil, err
		}
	}
	if a.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		return reports, enc.Encode(reports)
	}
	return reports, nil
}
