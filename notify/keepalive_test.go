package notify

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestKeepAliveOnTheServer(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(pgtest.NewEmpty(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["tcp_keepalives_idle"] = "7" // the user's own
	conn, err := Connector(cfg)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if len(cfg.RuntimeParams) != 1 {
		t.Errorf("Connector changed the caller's config: %v", cfg.RuntimeParams)
	}
	for name, want := range map[string]string{
		"tcp_keepalives_idle":     "7",
		"tcp_keepalives_interval": "2",
		"tcp_keepalives_count":    "3",
		"tcp_user_timeout":        "10s",
		"idle_session_timeout":    "0",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), "select pg_catalog.current_setting($1)", name).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want && got+"000" != want && got != "10000" {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestKeepAliveUsesTheConfiguredDialer(t *testing.T) {
	t.Parallel()
	pipe, other := net.Pipe()
	defer pipe.Close()
	defer other.Close()
	cfg, err := pgx.ParseConfig("host=localhost")
	if err != nil {
		t.Fatal(err)
	}
	cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) { return pipe, nil }
	KeepAlive(cfg)
	if conn, err := cfg.DialFunc(t.Context(), "tcp", "localhost:5432"); err != nil || conn != pipe {
		t.Errorf("dialed %v, %v", conn, err)
	}
}

func TestConnectorSendsNoCancelRequest(t *testing.T) {
	t.Parallel()
	database := pgtest.NewEmpty(t)
	proxy := newProxy(t, database)
	cfg, err := pgx.ParseConfig(through(t, database, proxy.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int32
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return dial(ctx, network, addr)
	}
	conn, err := Connector(cfg)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := dials.Load() // more than one where TLS was tried first
	proxy.Cut()
	if _, err := conn.WaitForNotification(t.Context()); err == nil {
		t.Fatal("no error from a cut connection")
	}
	select {
	case <-conn.PgConn().CleanupDone():
	case <-time.After(patience):
		t.Fatal("pgx still cleans up")
	}
	if got := dials.Load(); got != before {
		t.Errorf("%d dials after the connection broke", got-before)
	}
}
