package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/embeddedpg"
	"github.com/pgwake/pgwake/migrations"
)

//go:embed schema.sql
var schemaSQL string

const (
	// Database is the name of the demo's own database.
	Database = "pgwake_demo"
	// mark is the comment by which the demo knows a database that it made.
	mark = "made by pgwake demo, which replaces it at its next run"

	parentConnections = 8
	dropLimit         = 10 * time.Second
	objectInUse       = "55006" // SQLSTATE: somebody is connected to the database
)

// database is the demo's own, and the server it is on if that is the demo's too.
type database struct {
	url     string
	admin   string // address of the database to make it from
	version string
	server  *embeddedpg.Server // nil: the user's
	kept    bool
}

// openDatabase starts a server unless one is given, makes an empty database there, and migrates it.
func openDatabase(ctx context.Context, cfg Config) (*database, error) {
	db := &database{admin: cfg.DatabaseURL, kept: cfg.Keep != ""}
	if db.admin == "" {
		server, err := embeddedpg.Start(ctx, embeddedpg.Config{
			Dir: cfg.Keep, Durable: true,
			Settings: map[string]string{"max_connections": strconv.Itoa(max(100, cfg.connections()))},
			Logger:   slog.New(slog.NewTextHandler(cfg.Stderr, nil)),
		})
		if err != nil {
			return nil, err
		}
		db.server, db.admin = server, server.URL("")
	}
	if err := db.prepare(ctx); err != nil {
		return nil, errors.Join(err, db.close())
	}
	return db, nil
}

// close ends the demo's own server. One that is the user's keeps the database.
func (db *database) close() error {
	if db.server == nil {
		return nil
	}
	return db.server.Stop()
}

func (db *database) prepare(ctx context.Context) error {
	var err error
	if db.url, err = withDatabase(db.admin, Database); err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, db.admin)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	db.version, _, _ = strings.Cut(admin.PgConn().ParameterStatus("server_version"), " ")

	if err := db.removeOld(ctx, admin); err != nil {
		return err
	}
	if _, err := admin.Exec(ctx, "create database "+Database); err != nil {
		return fmt.Errorf("create database %s: %w", Database, err)
	}
	if _, err := admin.Exec(ctx, "comment on database "+Database+" is '"+mark+"'"); err != nil {
		return fmt.Errorf("mark database %s: %w", Database, err)
	}
	if _, err := migrations.Up(ctx, db.url, pgwake.DefaultSchema); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, db.url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.PgConn().Exec(ctx, schemaSQL).ReadAll(); err != nil {
		return fmt.Errorf("create schema demo: %w", err)
	}
	return nil
}

// removeOld drops the database of an earlier demo. Any other of that name is refused.
func (db *database) removeOld(ctx context.Context, admin *pgx.Conn) error {
	var comment string
	err := admin.QueryRow(ctx,
		`select coalesce(shobj_description(oid, 'pg_database'), '') from pg_database where datname = $1`, Database).Scan(&comment)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for database %s: %w", Database, err)
	}
	foreign, err := foreignTasks(ctx, db.url)
	switch {
	case err != nil:
		return fmt.Errorf("look into database %s: %w", Database, err)
	case foreign != "":
		return fmt.Errorf("database %s on that server holds tasks that are not the demo's (%s): rename it, or use another server", Database, foreign)
	case comment != mark:
		return fmt.Errorf("there is a database %s on that server that the demo did not make: rename it, or use another server", Database)
	}
	if _, err := admin.Exec(ctx, "drop database "+Database); err != nil {
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == objectInUse {
			return fmt.Errorf("database %s is in use: is another demo running, or a psql still open on it?", Database)
		}
		return fmt.Errorf("drop the database of an earlier demo: %w", err)
	}
	return nil
}

// tablesSQL lists tables that look like pgwake's, whatever their schema.
const tablesSQL = `
select format('%I.%I', n.nspname, c.relname)
from pg_class as c
join pg_namespace as n on n.oid = c.relnamespace
where c.relname in ('tasks', 'task_archive')
  and c.relkind in ('r', 'p')
  and n.nspname not like 'pg\_%'
  and exists (select from pg_attribute as a where a.attrelid = c.oid and a.attname = 'type' and not a.attisdropped)
order by 1`

// foreignTasks says what tasks of somebody else's are in a database, empty for none.
func foreignTasks(ctx context.Context, url string) (string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, _ := conn.Query(ctx, tablesSQL)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", fmt.Errorf("list tables: %w", err)
	}
	for _, table := range tables {
		var n int
		err := conn.QueryRow(ctx, "select count(*) from "+table+" where type::text <> all ($1::text[])", taskTypes).Scan(&n)
		if err != nil {
			return "", fmt.Errorf("count tasks of %s: %w", table, err)
		}
		if n > 0 {
			return fmt.Sprintf("%s in %s", count(n), table), nil
		}
	}
	return "", nil
}

// drop removes the database of a demo that was not finished from a server that stays.
func (db *database) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), dropLimit)
	defer cancel()
	admin, err := pgx.Connect(ctx, db.admin)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "drop database if exists "+Database+" with (force)"); err != nil {
		return fmt.Errorf("drop database %s: %w", Database, err)
	}
	return nil
}

// withDatabase is the same server's address with another database, in either of the forms that PostgreSQL has.
func withDatabase(address, name string) (string, error) {
	if _, err := pgx.ParseConfig(address); err != nil {
		return "", fmt.Errorf("--database-url: %w", err)
	}
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return strings.TrimSpace(address + " dbname=" + name), nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New("--database-url is not a URL that can be read") // the error itself would show the password
	}
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.Path, u.RawPath, u.RawQuery = "/"+name, "", query.Encode()
	return u.String(), nil
}

// tell describes the database for people.
func (db *database) tell(w io.Writer) {
	if db.server != nil {
		fmt.Fprintf(w, "  database  PostgreSQL %s, started for this demo in %s, with durable commits\n", db.version, db.server.Dir())
		return
	}
	fmt.Fprintf(w, "  database  %s, made for this demo on your PostgreSQL %s\n", Database, db.version)
}
