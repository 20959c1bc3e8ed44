// Package pooler runs a PgBouncer in front of a test's database.
package pooler

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// Start returns the connection string of the database behind a PgBouncer, which ends with the test. The mode is "transaction"
// or "session"; further settings are lines of its configuration. The test is skipped if PgBouncer is not installed.
func Start(t testing.TB, database, mode, settings string) string {
	t.Helper()
	program := find()
	if program == "" {
		t.Skip("needs pgbouncer: apt-get install pgbouncer")
	}
	to, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	config := filepath.Join(t.TempDir(), "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
max_client_conn = 200
default_pool_size = 20
%s
`, to.Hostname(), to.Port(), to.User.Username(), port, mode, settings)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", config}
	if os.Geteuid() == 0 { // which it refuses
		args = append([]string{"-u", "nobody"}, args...)
	}
	cmd := exec.Command(program, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("pgbouncer:\n%s", log.String())
		}
	})
	to.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	pgtest.WaitFor(t, 10*time.Second, "pgbouncer answers", func() bool {
		conn, err := pgx.Connect(t.Context(), to.String())
		if err != nil {
			return false
		}
		_ = conn.Close(t.Context())
		return true
	})
	return to.String()
}

// find looks where Debian puts it, too, which is not in the path of all users.
func find() string {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if program, err := exec.LookPath(name); err == nil {
			return program
		}
	}
	return ""
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
