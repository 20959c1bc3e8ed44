package demo

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// TestCompare has pages of every sort compared with what a server has for them now.
func TestCompare(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
		case "/changing":
			fmt.Fprint(w, asked.Add(1))
			return
		}
		fmt.Fprint(w, "a")
	}))
	t.Cleanup(server.Close)
	a, b := sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b"))
	for _, tc := range []struct {
		name, path string
		status     int
		sum        []byte
		want       Content
	}{
		{"as stored", "/", 200, a[:], Content{Same: 1}},
		{"not found, as stored", "/missing", 404, a[:], Content{Same: 1}},
		{"another body", "/", 200, b[:], Content{Different: 1}},
		{"another status", "/missing", 200, a[:], Content{Different: 1}},
		{"never the same twice", "/changing", 200, a[:], Content{Changing: 1}},
		{"an answer now", "/", 0, nil, Content{Different: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, pool := newTestCrawler(t, 1)
			_, err := pool.Exec(t.Context(), storeSQL, server.URL+tc.path, tc.status, "", "", 0, tc.sum, nil)
			if err != nil {
				t.Fatal(err)
			}
			d := &demo{pool: pool, crawler: c, report: &Report{}}
			if err := d.compare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := d.report.Content; got != tc.want || len(d.report.Problems) != tc.want.Different {
				t.Errorf("%+v with the problems %q, want %+v", got, d.report.Problems, tc.want)
			}
		})
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	values := make([]float64, 200)
	for i := range values {
		values[i] = float64(200 - i)
	}
	if got, want := quantiles(values), (Quantiles{P50: 100, P99: 198}); got != want {
		t.Errorf("quantiles of 1 to 200 are %v, want %v", got, want)
	}
	if got, want := quantiles([]float64{7}), (Quantiles{7, 7}); got != want {
		t.Errorf("quantiles of 7 are %v, want %v", got, want)
	}
}
