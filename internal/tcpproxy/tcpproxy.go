// Package tcpproxy is a TCP proxy for tests that can swallow everything without
// closing anything: the half-open connection that a cable, a firewall or a
// vanished peer leaves behind.
package tcpproxy

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards connections to one target. It ends with the test.
type Proxy struct {
	target   string
	listener net.Listener
	done     chan struct{}  // closed by stop
	wg       sync.WaitGroup // every goroutine of the proxy; stop waits for it

	mu    sync.Mutex            // guards the two below
	open  chan struct{}         // closed while bytes may pass; a new one while they may not
	conns map[net.Conn]struct{} // both sides of each pair
	slow  time.Duration
}

// New starts a proxy to target, "host:port", on a free port of 127.0.0.1.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start proxy: %v", err)
	}
	p := &Proxy{
		target:   target,
		listener: listener,
		done:     make(chan struct{}),
		open:     make(chan struct{}),
		conns:    make(map[net.Conn]struct{}),
	}
	close(p.open)
	p.wg.Go(p.accept)
	t.Cleanup(p.stop)
	return p
}

// Addr is the "host:port" to connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Blackhole swallows, while on, everything in both directions, new connections and
// closes included. When it goes off, what was held back passes, as
// retransmission would have it.
func (p *Proxy) Blackhole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		if on {
			p.open = make(chan struct{})
		}
	default:
		if !on {
			close(p.open)
		}
	}
}

// Slow makes bytes pass one by one, so long after each other, from their next arrival on.
func (p *Proxy) Slow(each time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = each
}

// Cut closes every connection there is, on both sides. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *Proxy) stop() {
	close(p.done)
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if !p.add(client) {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve owns both connections of a pair and returns when both directions ended.
func (p *Proxy) serve(client net.Conn) {
	defer p.remove(client)
	if !p.pass() {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil || !p.add(server) {
		return
	}
	defer p.remove(server)
	var pair sync.WaitGroup
	pair.Go(func() { p.pump(server, client) })
	pair.Go(func() { p.pump(client, server) })
	pair.Wait()
}

// pump copies until either side fails, and then ends both.
func (p *Proxy) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.pass() {
			return
		}
		if !p.write(to, buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

// write reports false when the connection or the proxy ends.
func (p *Proxy) write(to net.Conn, bytes []byte) bool {
	p.mu.Lock()
	slow := p.slow
	p.mu.Unlock()
	step := len(bytes)
	if slow > 0 {
		step = 1
	}
	for len(bytes) > 0 {
		if _, err := to.Write(bytes[:step]); err != nil {
			return false
		}
		if bytes = bytes[step:]; slow == 0 {
			continue
		}
		select {
		case <-time.After(slow):
		case <-p.done:
			return false
		}
	}
	return true
}

// pass waits until bytes may pass. It reports false when the proxy ends.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
		return true
	case <-p.done:
		return false
	}
}

// add reports false, and closes conn, when the proxy has ended.
func (p *Proxy) add(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		_ = conn.Close()
		return false
	default:
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) remove(conn net.Conn) {
	p.mu.Lock()
	delete(p.conns, conn)
	p.mu.Unlock()
	_ = conn.Close()
}
