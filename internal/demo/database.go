package demo

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/embeddedpg"
	"github.com/pgwake/pgwake/internal/wait"
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
	awaitEvery        = 5 * time.Millisecond
)

// database is the demo's own, and the server it is on if that is the demo's too.
type database struct {
	url     string             // of the server
	server  *embeddedpg.Server // nil: the user's
	pool    *pgxpool.Pool
	version string
	about   string
	kept    string // where it stays, if it does
}

// openDatabase starts a server unless one is given, makes an empty database there, and migrates it.
func openDatabase(ctx context.Context, cfg Config) (db *database, err error) {
	db = &database{url: cfg.DatabaseURL, kept: "database " + Database}
	if db.url == "" {
		db.server, err = embeddedpg.Start(ctx, embeddedpg.Config{
			Dir: cfg.Keep, Durable: true, Logger: slog.New(slog.NewTextHandler(cfg.Stderr, nil)),
			Settings: map[string]string{"max_connections": strconv.Itoa(100 + cfg.Workers*(cfg.Slots+10))},
		})
		if err != nil {
			return nil, err
		}
		db.url, db.kept = db.server.URL(""), ""
		if cfg.Keep != "" {
			db.kept = db.server.Dir()
		}
	}
	if err := db.prepare(ctx); err != nil {
		return nil, errors.Join(err, db.close())
	}
	return db, nil
}

// close ends the demo's own server. One that is the user's keeps the database.
func (db *database) close() error {
	if db.pool != nil {
		db.pool.Close()
	}
	if db.server == nil {
		return nil
	}
	return db.server.Stop()
}

func (db *database) prepare(ctx context.Context) error {
	admin, err := pgx.Connect(ctx, db.url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer admin.Close(context.WithoutCancel(ctx))
	db.version, _, _ = strings.Cut(admin.PgConn().ParameterStatus("server_version"), " ")
	db.about = fmt.Sprintf("%s, made for this demo on your PostgreSQL %s", Database, db.version)
	if db.server != nil {
		db.about = fmt.Sprintf("PostgreSQL %s, started for this demo in %s, with durable commits", db.version, db.server.Dir())
	}

	if err := db.checkOld(ctx, admin); err != nil {
		return err
	}
	for _, sql := range []string{
		"drop database if exists " + Database,
		"create database " + Database,
		"comment on database " + Database + " is '" + mark + "'",
	} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("replace database %s: %w", Database, err)
		}
	}
	if db.pool, err = openPool(ctx, db.url, "pgwake demo", parentConnections); err != nil {
		return err
	}
	sql, err := migrations.SQL(pgwake.DefaultSchema, 0)
	if err != nil {
		return err
	}
	if _, err := db.pool.Exec(ctx, sql+schemaSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	return nil
}

// checkOld refuses a database of the demo's name that an earlier demo did not make, or that has been put to use since.
func (db *database) checkOld(ctx context.Context, admin *pgx.Conn) error {
	var comment string
	err := admin.QueryRow(ctx,
		`select coalesce(shobj_description(oid, 'pg_database'), '') from pg_database where datname = $1`, Database).Scan(&comment)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for database %s: %w", Database, err)
	}
	if comment != mark {
		return fmt.Errorf("there is a database %s on that server that the demo did not make: rename it, or use another server", Database)
	}
	pool, err := openPool(ctx, db.url, "pgwake demo", 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	var migrated bool
	var foreign int
	err = pool.QueryRow(ctx, `select to_regclass('pgwake.all_tasks') is not null`).Scan(&migrated)
	if err == nil && migrated {
		own := []string{Page{}.TaskType(), Extract{}.TaskType(), Ping{}.TaskType()}
		err = pool.QueryRow(ctx, `select count(*) from pgwake.all_tasks where type <> all ($1)`, own).Scan(&foreign)
	}
	if err != nil {
		return fmt.Errorf("look into database %s: %w", Database, err)
	}
	if foreign > 0 {
		return fmt.Errorf("database %s on that server holds %s that are not the demo's: rename it, or use another server", Database, tasks(foreign))
	}
	return nil
}

// openPool connects to the demo's database on a server.
func openPool(ctx context.Context, url, name string, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse connection string: %w", err)
	}
	config.MaxConns = int32(connections)
	config.ConnConfig.Database = Database
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// await returns when a query says true; what names the thing waited for.
func await(ctx context.Context, pool *pgxpool.Pool, what string, limit time.Duration, sql string, args ...any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited %s for %s", limit, what))
	defer cancel()
	for {
		var done bool
		err := pool.QueryRow(ctx, sql, args...).Scan(&done)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("wait for %s: %w", what, err)
		case done:
			return nil
		}
		if err := wait.For(ctx, awaitEvery); err != nil {
			return err
		}
	}
}
