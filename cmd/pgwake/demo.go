package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake/internal/demo"
)

func (a *app) newDemoCommand() *cobra.Command {
	var cfg demo.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Archive a web site with a fleet of workers, kill one, and prove that nothing was lost",
		Long: `The demo starts a PostgreSQL server of its own, archives a web site with three worker processes, kills one of them
with SIGKILL half-way, and shows that nothing was lost and nothing was done twice: every page it found is stored once,
has the hash of a fresh fetch, and every task took effect exactly once, those of the dead worker too.

Without --url the site is the sources of Go on this machine, served by net/http's file server. A site given by --url is
treated with care: same host only, robots.txt honoured, a fetch every 200 ms or more unless it is on this machine.

It takes about a minute, touches no other database, and leaves nothing behind but what --keep asks for; with
--database-url that is the database ` + demo.Database + ` on your server, for you to look into and to drop. It fails (exit code 1)
if anything was lost, done twice or stored wrongly, or if the killed worker's tasks were not recovered.`,
		Example: `  pgwake demo
  pgwake demo --url https://go.dev/blog/ --max-pages 100
  pgwake demo --keep ./archive --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			program, err := os.Executable()
			if err != nil {
				return err
			}
			cfg.Command = []string{program, "demo", "worker"}
			cfg.Stdout, cfg.Stderr = a.stdout, a.stderr
			cfg.Live, cfg.JSON = a.human(), a.json
			if err := cfg.Validate(); err != nil {
				return usage(err)
			}
			return demo.Run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.URL, "url", "", "site to archive (default the sources of Go on this machine)")
	flags.IntVar(&cfg.MaxPages, "max-pages", 0, "pages to archive at most (default 3,000, with --url 200)")
	flags.IntVar(&cfg.Workers, "workers", demo.DefaultWorkers, "worker processes")
	flags.IntVar(&cfg.Slots, "slots", demo.DefaultSlots, "tasks that a worker runs at once")
	flags.StringVar(&cfg.Keep, "keep", "", "directory to keep the database in (default a temporary one)")
	flags.BoolVar(&cfg.NoKill, "no-kill", false, "let all workers live")
	// Not the database of the other commands: only one that is named here is used.
	flags.StringVar(&cfg.DatabaseURL, "database-url", "", "PostgreSQL to make the database "+demo.Database+" on (default one of the demo's own)")

	cmd.AddCommand(&cobra.Command{
		Use:    "worker",
		Short:  "A worker process of the demo",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Work(cmd.Context(), a.stdin, a.stderr)
		},
	})
	return cmd
}
