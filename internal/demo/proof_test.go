package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) func() (*response, error) {
		return func() (*response, error) { return &response{status: status, body: []byte(body)}, nil }
	}
	failure := func() (*response, error) { return nil, errors.New("connection refused") }
	n := 0
	changing := func() (*response, error) {
		n++
		return &response{status: 200, body: fmt.Append(nil, n)}, nil
	}
	stored := func(status int, body, hashed string) storedPage {
		compressed, err := compress([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(hashed))
		return storedPage{URL: "http://example.com/", Status: status, Sum: sum[:], Body: compressed}
	}
	for _, tc := range []struct {
		name   string
		page   storedPage
		answer func() (*response, error)
		want   string
	}{
		{"as stored", stored(200, "a", "a"), answer(200, "a"), "same"},
		{"not found, as stored", stored(404, "a", "a"), answer(404, "a"), "same"},
		{"another body", stored(200, "a", "a"), answer(200, "b"), "different"},
		{"another status", stored(200, "a", "a"), answer(404, "a"), "different"},
		{"stored with the hash of something else", stored(200, "a", "b"), answer(200, "b"), "different"},
		{"stored in a broken form", storedPage{Status: 200, Body: []byte("a")}, answer(200, "a"), "different"},
		{"never the same twice", stored(200, "a", "a"), changing, "changing"},
		{"no answer any more", stored(200, "a", "a"), failure, "different"},
		{"no answer ever", storedPage{}, failure, "same"},
		{"an answer now", storedPage{}, answer(200, "a"), "different"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &comparison{}
			fetch := func(context.Context, string) (*response, error) { return tc.answer() }
			if err := c.check(t.Context(), fetch, tc.page); err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{"same": c.same.Load(), "different": c.different.Load(), "changing": c.changing.Load()}
			if got[tc.want] != 1 || got["same"]+got["different"]+got["changing"] != 1 {
				t.Errorf("counted %v, want one %s", got, tc.want)
			}
			if (len(c.examples) == 1) != (tc.want == "different") {
				t.Errorf("examples are %q", c.examples)
			}
		})
	}
}
