package notify

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// The same bounds on both sides: a peer that is gone is noticed after about
// 11 s of silence (5 + 3 × 2), or 10 s after something was sent to it in vain.
const (
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
	userTimeout       = 10 * time.Second
)

// serverKeepAlive makes the server drop a client that vanished. Its defaults
// keep the session, with its locks, for two hours. idle_session_timeout would end
// a listener, whose session is always idle.
var serverKeepAlive = map[string]string{
	"tcp_keepalives_idle":     "5",
	"tcp_keepalives_interval": "2",
	"tcp_keepalives_count":    "3",
	"tcp_user_timeout":        "10000", // ms
	"idle_session_timeout":    "0",
}

// KeepAlive makes connections dialed from cfg notice within some seconds that the
// other side is gone, and the server likewise.
//
// Sockets get TCP keepalive (idle 5 s, interval 2 s, 3 probes) and, on Linux,
// TCP_USER_TIMEOUT of 10 s. They are still dialed by cfg's own DialFunc: what it
// returns is set up if it is a *net.TCPConn and left alone otherwise. The
// session gets the server's settings of the same names, and no idle_session_timeout;
// values that are already in cfg.RuntimeParams stay.
//
// It is for direct sessions: PgBouncer refuses these startup parameters unless
// they are in its ignore_startup_parameters.
func KeepAlive(cfg *pgx.ConnConfig) {
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = make(map[string]string)
	}
	for name, value := range serverKeepAlive {
		if _, set := cfg.RuntimeParams[name]; !set {
			cfg.RuntimeParams[name] = value
		}
	}

	dial := cfg.DialFunc
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
			// Errors are left to the first use of the socket: an option that the
			// system does not know is no reason not to connect.
			_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
				Enable:   true,
				Idle:     keepAliveIdle,
				Interval: keepAliveInterval,
				Count:    keepAliveCount,
			})
			_ = setUserTimeout(tcp, userTimeout)
		}
		return conn, err
	}
}

var errNoCancelRequest = errors.New("notify: a listener's connection sends no cancel request")

// Connector returns a Config.Connect that dials cfg with [KeepAlive]. cfg is
// copied, the caller's is not changed.
//
// When a connection breaks, pgx dials the server again in the background to cancel
// what may be running, and on a dead network that takes up to 15 s. A listener has
// nothing to cancel, so connections made here refuse that dial and a broken
// one is gone at once.
func Connector(cfg *pgx.ConnConfig) func(ctx context.Context) (*pgx.Conn, error) {
	cfg = cfg.Copy()
	KeepAlive(cfg)
	return func(ctx context.Context) (*pgx.Conn, error) {
		own := cfg.Copy()
		var established atomic.Bool
		dial := own.DialFunc
		own.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if established.Load() {
				return nil, errNoCancelRequest
			}
			return dial(ctx, network, addr)
		}
		conn, err := pgx.ConnectConfig(ctx, own)
		established.Store(true)
		return conn, err
	}
}
