package pgtest

import (
	"fmt"
	"runtime"
	"testing"
)

// recorder is a test that keeps what it fails with.
type recorder struct {
	testing.TB
	text string
}

// run calls f on a goroutine of its own, which a failure ends, and waits for it.
func (r *recorder) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.text = fmt.Sprint(args...)
	runtime.Goexit()
}
