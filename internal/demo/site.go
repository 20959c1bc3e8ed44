package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	product      = "pgwake-demo" // the name that a robots.txt may speak to the demo by
	userAgent    = product + "/1.0 (+https://github.com/pgwake/pgwake)"
	maxBody      = 4 << 20
	fetchTimeout = 10 * time.Second
	// foreignGap is the time between two fetches from a site that is not on this machine, by the whole fleet.
	foreignGap = 200 * time.Millisecond
)

// site is what is archived.
type site struct {
	seed   string
	about  string
	robots string
	gap    time.Duration // between two fetches
	half   chan struct{} // closed when half of the pages have been asked for; nil for a site that is not ours
	resume func()        // ends the wait of those who ask from then on
	close  func()
}

func openSite(ctx context.Context, cfg Config) (*site, error) {
	if cfg.URL == "" {
		return serveGo(ctx, cfg.MaxPages)
	}
	seed, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, err
	}
	s := &site{seed: cfg.URL, about: cfg.URL, resume: func() {}, close: func() {}}
	if ip := net.ParseIP(seed.Hostname()); seed.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		s.gap = foreignGap
	}
	client := newWebClient()
	defer client.CloseIdleConnections()
	client.CheckRedirect = nil // a robots.txt may be anywhere (RFC 9309 §2.3.1.2)
	r := fetch(ctx, client, seed.ResolveReference(&url.URL{Path: "/robots.txt"}).String())
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case r.inTrouble() || r.body == nil:
		return nil, fmt.Errorf("the site's robots.txt cannot be read, which asks crawlers to stay away for now: %s", r)
	case r.status == http.StatusOK:
		s.robots = plainText(string(r.body))
	}
	rules := parseRobots(s.robots)
	if !rules.allows(seed) {
		return nil, fmt.Errorf("the robots.txt of the site asks crawlers not to fetch %s", s.seed)
	}
	s.gap = max(s.gap, rules.delay)
	return s, nil
}

// serveGo serves the sources of the installed Go by net/http's own file server: directory listings, HTML pages and files.
func serveGo(ctx context.Context, maxPages int) (*site, error) {
	root := os.Getenv("GOROOT")
	if out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output(); err == nil {
		root = strings.TrimSpace(string(out))
	}
	src := filepath.Join(root, "src")
	if info, err := os.Stat(src); root == "" || err != nil || !info.IsDir() {
		return nil, errors.New("there is no Go tree on this machine to make a site of: install Go, or give a site by --url")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", src, err)
	}
	half, resumed := make(chan struct{}), make(chan struct{})
	files := http.FileServer(http.Dir(src))
	var asked atomic.Int64
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, middle := asked.Add(1), int64(maxPages+1)/2
			if n == middle {
				close(half)
			}
			if n >= middle { // until the kill, so that workers certainly run tasks then
				select {
				case <-resumed:
				case <-r.Context().Done():
				}
			}
			files.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: fetchTimeout,
	}
	served := make(chan struct{})
	go func() { // ends with close, which waits for it; if it ends before, fetches fail
		defer close(served)
		_ = server.Serve(listener)
	}()
	return &site{
		seed:  "http://" + listener.Addr().String() + "/",
		about: "the Go sources " + src + ", served by net/http on " + listener.Addr().String(),
		half:  half, resume: sync.OnceFunc(func() { close(resumed) }),
		close: func() { _ = server.Close(); <-served },
	}, nil
}

// newWebClient makes a client for which a redirect is an answer like another: its target is a page of its own.
func newWebClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 100
	return &http.Client{
		Transport:     transport,
		Timeout:       fetchTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// response is what a site answered, as far as it is kept.
type response struct {
	status      int // 0: it did not answer
	contentType string
	location    string // of a redirect, as sent
	body, sum   []byte // nil: see failure
	failure     string
}

// String says for people what the answer was.
func (r *response) String() string {
	if r.failure != "" {
		return r.failure
	}
	return fmt.Sprintf("status %d", r.status)
}

// inTrouble tells whether the answer is about the site's state rather than the page.
func (r *response) inTrouble() bool {
	return r.status == 0 || r.status == http.StatusTooManyRequests || r.status >= 500
}

// isText tells whether there are words to extract.
func (r *response) isText() bool {
	return r.status == http.StatusOK && r.body != nil && strings.HasPrefix(r.contentType, "text/")
}

// fetch gets a page. Whatever goes wrong is told in the response.
func fetch(ctx context.Context, client *http.Client, address string) *response {
	r := &response{}
	if err := r.get(ctx, client, address); err != nil {
		r.failure = clean(err.Error())
	}
	return r
}

func (r *response) get(ctx context.Context, client *http.Client, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", userAgent)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return err
	}
	r.status, r.location = resp.StatusCode, resp.Header.Get("Location")
	r.contentType = strings.ToLower(clean(resp.Header.Get("Content-Type")))
	if len(body) > maxBody {
		return fmt.Errorf("the body is larger than %d bytes and was not kept", maxBody)
	}
	sum := sha256.Sum256(body)
	r.body, r.sum = body, sum[:]
	return nil
}
