// Package server is the PostgreSQL that suites measure on, with what they need to know of it: databases, and what was
// spent.
package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/internal/embeddedpg"
	"github.com/pgwake/pgwake/migrations"
)

// Schema is that of pgwake's tables in every database.
const Schema = "pgwake"

// tidyLimit bounds what is removed at the end.
const tidyLimit = 30 * time.Second

// settings are those of the server that is started. Commits are durable, as in production. A checkpoint, which would meet
// one side of a comparison and not the other, does not fall due within a run.
var settings = map[string]string{
	"max_connections":          "600",
	"shared_buffers":           "512MB",
	"max_wal_size":             "16GB",
	"checkpoint_timeout":       "1h",
	"shared_preload_libraries": "pg_stat_statements",
	"pg_stat_statements.max":   "10000",
	"track_io_timing":          "off",
}

// Server is a running PostgreSQL, one that was started for the suites or one that was given.
type Server struct {
	own   *embeddedpg.Server // nil: given
	base  *url.URL
	admin *pgxpool.Pool
	role  string       // that of fleets, by which their statements are told from all others
	word  string       // its password
	made  atomic.Int64 // databases
}

// Start starts a server, or connects to the one given, as a superuser with pg_stat_statements loaded.
func Start(ctx context.Context, given string) (s *Server, err error) {
	s = &Server{role: fmt.Sprintf("pgwake_bench_%08x", rand.Uint32()), word: fmt.Sprintf("%016x", rand.Uint64())}
	defer func() {
		if err != nil {
			s, err = nil, errors.Join(err, s.Close())
		}
	}()
	if given == "" {
		if s.own, err = embeddedpg.Start(ctx, embeddedpg.Config{Durable: true, Settings: settings}); err != nil {
			return s, err
		}
		if given = s.own.SocketURL(""); given == "" {
			given = s.own.URL("")
		}
	}
	if s.base, err = url.Parse(given); err != nil || s.base.Scheme != "postgres" && s.base.Scheme != "postgresql" {
		return s, errors.New("the database must be given as a URL: postgres://user@host:port/database")
	}
	if s.admin, err = pgxpool.New(ctx, given); err != nil {
		return s, err
	}
	if _, err := s.admin.Exec(ctx, fmt.Sprintf("create role %s login password '%s' in role current_user", s.role, s.word)); err != nil {
		return s, fmt.Errorf("make a role for worker processes: %w", err)
	}
	return s, nil
}

// Version is the server's.
func (s *Server) Version(ctx context.Context) (v string, err error) {
	err = s.admin.QueryRow(ctx, "show server_version").Scan(&v)
	return v, err
}

// Close drops the role, or ends the server if it was started here.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), tidyLimit)
	defer cancel()
	var err error
	if s.admin != nil {
		if s.own == nil {
			_, err = s.admin.Exec(ctx, "drop role if exists "+s.role)
		}
		s.admin.Close()
	}
	if s.own != nil {
		err = errors.Join(err, s.own.Stop())
	}
	return err
}

// Database is a migrated database of one side of a comparison.
type Database struct {
	server *Server
	name   string
	// URL and FleetURL are its addresses for the bench itself and for the processes it measures.
	URL, FleetURL string
	// Pool is on it.
	Pool *pgxpool.Pool
}

// Database makes a database.
func (s *Server) Database(ctx context.Context) (d *Database, err error) {
	d = &Database{server: s, name: fmt.Sprintf("%s_%d", s.role, s.made.Add(1))}
	if _, err := s.admin.Exec(ctx, "create database "+d.name+" template template0"); err != nil {
		return nil, fmt.Errorf("make a database: %w", err)
	}
	defer func() {
		if err != nil {
			d, err = nil, errors.Join(err, d.Drop())
		}
	}()
	at := *s.base
	at.Path = "/" + d.name
	d.URL = at.String()
	at.User = url.UserPassword(s.role, s.word)
	d.FleetURL = at.String()
	if _, err := migrations.Up(ctx, d.URL, Schema); err != nil {
		return d, fmt.Errorf("migrate: %w", err)
	}
	if d.Pool, err = pgxpool.New(ctx, d.URL); err != nil {
		return d, err
	}
	return d, d.Exec(ctx, "create extension pg_stat_statements")
}

// Drop drops the database, whoever is connected.
func (d *Database) Drop() error {
	if d.Pool != nil {
		d.Pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), tidyLimit)
	defer cancel()
	_, err := d.server.admin.Exec(ctx, "drop database "+d.name+" with (force)")
	return err
}

// Exec runs statements one after the other.
func (d *Database) Exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := d.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Scan is the one value that a query returns.
func Scan[T any](ctx context.Context, d *Database, sql string, args ...any) (T, error) {
	rows, _ := d.Pool.Query(ctx, sql, args...)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		return v, fmt.Errorf("%s: %w", sql, err)
	}
	return v, nil
}

// Offset is what to add to this process's clock to get the database's, and how wrong that may be.
func (d *Database) Offset(ctx context.Context) (offset, uncertainty time.Duration, err error) {
	uncertainty = time.Hour
	for range 50 {
		sent := time.Now()
		at, err := Scan[time.Time](ctx, d, "select clock_timestamp()")
		if err != nil {
			return 0, 0, err
		}
		if trip := time.Since(sent); trip/2 < uncertainty {
			offset, uncertainty = at.Sub(sent.Add(trip/2)), trip/2
		}
	}
	return offset, uncertainty, nil
}
