package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/sqlstate"
	"github.com/pgwake/pgwake/migrations"
)

const (
	// connectTimeout applies where the connection string has no connect_timeout.
	connectTimeout = 10 * time.Second
	// maxConns is enough for one command, which does one thing at a time.
	maxConns = 2
)

// url is the connection string by flag or environment.
func (a *app) url() (string, error) {
	if url := cmp.Or(a.databaseURL, os.Getenv("PGWAKE_DATABASE_URL"), os.Getenv("DATABASE_URL")); url != "" {
		return url, nil
	}
	return "", usagef("no database given: use --database-url, or set PGWAKE_DATABASE_URL or DATABASE_URL")
}

// connect returns a pool with one connection made, so that an unreachable server is told as such. The caller closes it.
func (a *app) connect(ctx context.Context) (*pgxpool.Pool, error) {
	url, err := a.url()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = maxConns
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTimeout)
	config.ConnConfig.RuntimeParams["application_name"] = cmp.Or(config.ConnConfig.RuntimeParams["application_name"], "pgwake cli")
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// withClient runs f with a client on the schema, which must be one that this program can work with.
func (a *app) withClient(ctx context.Context, f func(*pgwake.Client) error) error {
	pool, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{Schema: a.schemaName()})
	if err != nil {
		return err
	}
	return f(client)
}

// describe puts an error in one line that says what to do about it.
func (a *app) describe(err error) string {
	var (
		connectErr *pgconn.ConnectError
		versionErr *migrations.VersionError
		pgErr      *pgconn.PgError
		partly     *partlyError
	)
	message := oneLine(err.Error())
	switch {
	case errors.As(err, &partly):
		return a.describe(partly.err) + "; " + partly.done
	case errors.As(err, &connectErr):
		return describeConnect(connectErr)
	case errors.As(err, &versionErr) && versionErr.Need > 0 && a.schemaName() != pgwake.DefaultSchema:
		return fmt.Sprintf("%s with --schema %q", message, a.schemaName())
	case sqlstate.Denied(err):
		return message + ": grant the role what it lacks, or name another role in --database-url"
	case errors.As(err, &pgErr) && pgErr.Hint != "":
		return message + ": " + oneLine(pgErr.Hint)
	}
	return message
}

// describeConnect keeps of pgx's message, which lists every address and TLS mode tried, the last that went wrong.
func describeConnect(err *pgconn.ConnectError) string {
	where := net.JoinHostPort(err.Config.Host, strconv.Itoa(int(err.Config.Port)))
	if strings.HasPrefix(err.Config.Host, "/") {
		where = err.Config.Host
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return fmt.Sprintf("connect to %s: %s: check --database-url or DATABASE_URL", where, oneLine(pgErr.Message))
	}
	reason := err.Unwrap()
	var dnsErr *net.DNSError
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		reason = errors.New("no answer in time")
	case errors.As(err, &dnsErr):
		reason = errors.New(dnsErr.Err)
	case errors.As(err, &errno):
		reason = errno
	}
	return fmt.Sprintf("connect to %s: %s: check that the server runs, and --database-url or DATABASE_URL", where, oneLine(reason.Error()))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
