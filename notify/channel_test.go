package notify

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestChannelIsWhatSQLComputes(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), pgtest.NewEmpty(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, tc := range []struct{ schema, table string }{
		{"pgwake", "tasks"},
		{"", ""},
		{`My "schema"`, "Tâches"},
		{strings.Repeat("s", 63), strings.Repeat("t", 63)},
	} {
		var want string
		err := conn.QueryRow(t.Context(), "select 'pgwake_' || pg_catalog.md5($1::text || '.' || $2::text)", tc.schema, tc.table).Scan(&want)
		if err != nil {
			t.Fatal(err)
		}
		got := Channel(tc.schema, tc.table)
		if got != want || len(got) > maxChannel {
			t.Errorf("Channel(%q, %q) = %q, SQL says %q", tc.schema, tc.table, got, want)
		}
	}
}
