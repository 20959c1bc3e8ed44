package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pgwake/pgwake/migrations"
)

// versionInfo is what `pgwake version --json` prints.
type versionInfo struct {
	Version string `json:"version"` // of the module, "(devel)" if built from a checkout without a tag
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	Schema  int    `json:"schema"` // latest schema version that this program brings
}

func (a *app) newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of pgwake, Go and the schema",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if a.json {
				return a.printJSON(v)
			}
			fmt.Fprintf(a.stdout, "pgwake %s (%s, schema version %d)\n", v.Version, v.Go, v.Schema)
			return nil
		},
	}
}

func readVersion() versionInfo {
	v := versionInfo{Version: "(devel)", Go: runtime.Version(), Schema: migrations.Latest}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(info.Main.Version, v.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Commit = s.Value
		}
	}
	return v
}
