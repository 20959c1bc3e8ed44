package demo

import (
	"context"
	"errors"
	"fmt"
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

// site is what is archived.
type site struct {
	seed   string
	about  string
	robots string
	gap    time.Duration // between two fetches
	half   chan struct{} // closed when half of the pages have been asked for; nil for a site that is not ours

	server *http.Server // nil: somebody else's
	done   chan error   // gets what ended the server
}

func openSite(ctx context.Context, cfg Config) (*site, error) {
	if cfg.URL == "" {
		return serveGo(ctx, cfg)
	}
	s := &site{seed: cfg.URL, about: cfg.URL, gap: foreignGap}
	f := newFetcher(1)
	defer f.close()
	var err error
	if s.robots, err = f.robots(ctx, s.seed); err != nil {
		return nil, fmt.Errorf("read robots.txt: %w", err)
	}
	rules := parseRobots(s.robots)
	if !rules.allows(s.seed) {
		return nil, fmt.Errorf("the robots.txt of the site asks crawlers not to fetch %s", s.seed)
	}
	if onThisMachine(s.seed) {
		s.gap = 0
	}
	s.gap = max(s.gap, rules.delay)
	return s, nil
}

// serveGo serves the installed Go tree by net/http's own file server: its directory listings, HTML pages and files.
func serveGo(ctx context.Context, cfg Config) (*site, error) {
	root, err := goRoot(ctx)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", root, err)
	}
	s := &site{
		seed:  "http://" + listener.Addr().String() + "/",
		about: "the Go tree " + root + ", served by net/http on " + listener.Addr().String(),
		half:  make(chan struct{}),
		done:  make(chan error, 1),
	}
	files := http.FileServer(http.Dir(root))
	var asked atomic.Int64
	var once sync.Once
	s.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) >= int64(cfg.MaxPages+1)/2 {
				once.Do(func() { close(s.half) })
			}
			files.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: fetchTimeout,
	}
	go func() { s.done <- s.server.Serve(listener) }() // ends with close, which waits for it
	return s, nil
}

func (s *site) close() error {
	if s.server == nil {
		return nil
	}
	err := s.server.Close()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// goRoot finds the Go tree: as the go command says, else as the environment does.
func goRoot(ctx context.Context) (string, error) {
	var root string
	if out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output(); err == nil {
		root = strings.TrimSpace(string(out))
	}
	if root == "" {
		root = os.Getenv("GOROOT")
	}
	if info, err := os.Stat(filepath.Join(root, "src")); root == "" || err != nil || !info.IsDir() {
		return "", errors.New("there is no Go tree on this machine to make a site of: install Go, or give a site by --url")
	}
	return root, nil
}

// onThisMachine tells whether an address is a loopback one, which need not be spared.
func onThisMachine(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
