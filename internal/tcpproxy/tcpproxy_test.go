package tcpproxy

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBlackholeHoldsBackAndReleases(t *testing.T) {
	p := New(t, echoServer(t))
	conn := dial(t, p)
	roundTrip(t, conn, "before")

	p.Blackhole(true)
	p.Blackhole(true)
	send(t, conn, "held")
	late := dial(t, p) // accepted and left alone
	send(t, late, "late")
	for _, c := range []net.Conn{conn, late} {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("read %d bytes, %v while everything is swallowed", n, err)
		}
	}

	p.Blackhole(false)
	p.Blackhole(false)
	receive(t, conn, "held")
	receive(t, late, "late")
}

func TestCutEndsConnectionsAndAcceptsNewOnes(t *testing.T) {
	p := New(t, echoServer(t))
	conn := dial(t, p)
	roundTrip(t, conn, "before")
	p.Cut()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read: %v", err)
	}
	roundTrip(t, dial(t, p), "after")
}

func TestSlowPassesBytesOneByOne(t *testing.T) {
	p := New(t, echoServer(t))
	conn := dial(t, p)
	const each = 5 * time.Millisecond
	p.Slow(each)
	start := time.Now()
	roundTrip(t, conn, "12345678")
	if took := time.Since(start); took < 7*each { // all but the last byte
		t.Errorf("8 bytes took %s", took)
	}
	p.Slow(0)
	roundTrip(t, conn, "after")
}

func TestStopsWhileBlackholed(t *testing.T) {
	p := New(t, echoServer(t))
	conn := dial(t, p)
	roundTrip(t, conn, "before")
	p.Blackhole(true)
	send(t, conn, "held")
}

// echoServer ends with the test, after the proxy in front of it.
func echoServer(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the proxy's side
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func roundTrip(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	send(t, conn, text)
	receive(t, conn, text)
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v; want %q", got, err, want)
	}
}
