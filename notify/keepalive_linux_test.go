package notify

import (
	"net"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestKeepAliveOnTheSocket(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	cfg, err := pgx.ParseConfig("host=localhost")
	if err != nil {
		t.Fatal(err)
	}
	KeepAlive(cfg)
	conn, err := cfg.DialFunc(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name          string
		level, option int
		want          int
	}{
		{"SO_KEEPALIVE", syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 5},
		{"TCP_KEEPINTVL", syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 2},
		{"TCP_KEEPCNT", syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
		{"TCP_USER_TIMEOUT", syscall.IPPROTO_TCP, tcpUserTimeout, 10_000},
	} {
		var got int
		var optErr error
		if err := raw.Control(func(fd uintptr) { got, optErr = syscall.GetsockoptInt(int(fd), tc.level, tc.option) }); err != nil {
			t.Fatal(err)
		}
		if optErr != nil || got != tc.want {
			t.Errorf("%s = %d, %v; want %d", tc.name, got, optErr, tc.want)
		}
	}
}
