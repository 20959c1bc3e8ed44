package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	maxBody      = 4 << 20
	fetchTimeout = 10 * time.Second
	userAgent    = product + "/1.0 (+https://github.com/pgwake/pgwake)"
)

// response is what a site answered, as far as it is kept.
type response struct {
	status      int
	contentType string
	location    string // of a redirect, as sent
	body        []byte // nil if it is larger than maxBody
	tooLarge    bool
	retryAfter  time.Duration
}

// sum is the SHA-256 of the body, nil if there is none.
func (r *response) sum() []byte {
	if r.tooLarge {
		return nil
	}
	sum := sha256.Sum256(r.body)
	return sum[:]
}

func (r *response) mediaType() string {
	t, _, _ := mime.ParseMediaType(r.contentType)
	return t
}

func (r *response) isHTML() bool {
	t := r.mediaType()
	return t == "text/html" || t == "application/xhtml+xml"
}

func (r *response) isText() bool { return r.isHTML() || strings.HasPrefix(r.mediaType(), "text/") }

// overloaded tells whether the answer is about the site's state rather than the page.
func (r *response) overloaded() bool {
	return r.status == http.StatusTooManyRequests || r.status >= 500
}

// fetcher gets pages. A redirect is an answer like another: its target is a page of its own.
type fetcher struct{ client *http.Client }

func newFetcher(concurrent int) *fetcher {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = concurrent
	return &fetcher{&http.Client{
		Transport:     transport,
		Timeout:       fetchTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (f *fetcher) close() { f.client.CloseIdleConnections() }

func (f *fetcher) fetch(ctx context.Context, address string) (*response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "text/html, text/*;q=0.9, */*;q=0.5")
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("fetch %s: read body: %w", address, err)
	}
	r := &response{
		status:      resp.StatusCode,
		contentType: clean(resp.Header.Get("Content-Type")),
		location:    resp.Header.Get("Location"),
		body:        body,
	}
	if len(body) > maxBody {
		r.body, r.tooLarge = nil, true
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		r.retryAfter = time.Duration(min(max(seconds, 0), 60)) * time.Second
	}
	return r, nil
}

// robots fetches the site's robots.txt, following redirects to wherever they lead on its host.
func (f *fetcher) robots(ctx context.Context, seed string) (string, error) {
	at, err := url.Parse(seed)
	if err != nil {
		return "", err
	}
	if at, err = at.Parse("/robots.txt"); err != nil {
		return "", err
	}
	for range 5 {
		r, err := f.fetch(ctx, at.String())
		switch {
		case err != nil:
			return "", err
		case r.status >= 500 || r.status == http.StatusTooManyRequests:
			return "", fmt.Errorf("%s answers %d, which asks crawlers to stay away for now", at, r.status)
		case r.status >= 400:
			return "", nil // no rules: everything is allowed
		case r.status < 300:
			return strings.ReplaceAll(strings.ToValidUTF8(string(r.body), ""), "\x00", ""), nil
		}
		next, err := at.Parse(r.location)
		if err != nil {
			return "", fmt.Errorf("redirect of %s: %w", at, err)
		}
		at = next
	}
	return "", errors.New("robots.txt is redirected in circles")
}
