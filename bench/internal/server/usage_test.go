package server

import "testing"

func TestParseStat(t *testing.T) {
	t.Parallel()
	// The layout of proc(5): pid (comm) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime
	// cutime cstime …
	got, err := parseStat("42 (a) b (c)) S 7 1 1 0 -1 0 10 20 30 40 150 50 1000 200 20 0 1 0\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := (stat{parent: 7, own: 2, reaped: 12}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, text := range []string{"", "42 (x) S 7", "42 (x) S y 1 1 0 -1 0 10 20 30 40 150 50 1000 200 20"} {
		if _, err := parseStat(text); err == nil {
			t.Errorf("%q was understood", text)
		}
	}
}

func TestParseMachine(t *testing.T) {
	t.Parallel()
	got, err := parseMachine("cpu  100 200 300 400000 5000 600 700 800 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
	if err != nil || got != 27 {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 x 8"} {
		if _, err := parseMachine(text); err == nil {
			t.Errorf("%q was understood", text)
		}
	}
}
