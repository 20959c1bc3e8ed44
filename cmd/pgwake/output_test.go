package main

import (
	"testing"
	"time"
)

func TestRelative(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{0, "now"}, {-900 * time.Millisecond, "now"}, {900 * time.Millisecond, "now"},
		{-time.Second, "1s ago"}, {-99 * time.Second, "99s ago"}, {-100 * time.Second, "1m ago"}, {-2 * time.Hour, "2h ago"},
		{-47 * time.Hour, "47h ago"}, {-72 * time.Hour, "3d ago"},
		{5 * time.Second, "in 5s"}, {10*time.Minute - 300*time.Millisecond, "in 10m"}, {2 * time.Hour, "in 2h"}, {365 * 24 * time.Hour, "in 365d"},
	} {
		if got := relative(now.Add(c.after), now); got != c.want {
			t.Errorf("%s from now is %q, want %q", c.after, got, c.want)
		}
	}
}

func TestRenderTable(t *testing.T) {
	t.Parallel()
	header := []string{"id", "last error"}
	rows := [][]string{{"1", ""}, {"22", "went\n\x1bwrong, very wrong"}}
	for _, c := range []struct {
		name      string
		underline bool
		width     int
		want      string
	}{
		{"pipe", false, 0, "ID  LAST ERROR\n1   -\n22  went \\x1bwrong, very wrong"},
		{"narrow terminal", true, 20, "ID  LAST ERROR\n────────────────────\n1   -\n22  went \\x1bwrong,…"},
	} {
		if got := renderTable(header, rows, c.underline, c.width); got != c.want {
			t.Errorf("%s:\n%s\nwant:\n%s", c.name, got, c.want)
		}
	}
}
