package server

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Setting is one of the server's.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// settingsSQL lists what was set on purpose, and what decides whether a commit is durable whether it was or not. Where
// files lie says nothing.
const settingsSQL = `
select name, setting || coalesce(' ' || unit, '')
from pg_settings
where source in ('configuration file', 'command line', 'environment variable', 'database', 'user', 'global')
    and name !~ '(_file|directory|directories|port|lc_.*|listen_addresses|TimeZone|log_.*|DateStyle)$'
  or name in ('fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'autovacuum')
order by name`

// Settings are those of the server that are not its built-in defaults, and those of durability.
func (s *Server) Settings(ctx context.Context) ([]Setting, error) {
	rows, _ := s.admin.Query(ctx, settingsSQL)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Setting])
}
