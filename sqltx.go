package pgwake

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
)

// SQLTx adapts a transaction of database/sql, whatever made it (sqlc, GORM, ent) and whichever driver runs it.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}
