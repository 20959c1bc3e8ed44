package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// terminal is a pseudo-terminal that the program is called on.
type terminal struct {
	user, program *os.File
	read          sync.WaitGroup
	mu            sync.Mutex // guards shown
	shown         bytes.Buffer
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here:", err)
	}
	fd := int(user.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{user: user, program: program}
	term.read.Go(func() { // ends when the program's end is closed
		buf := make([]byte, 4096)
		for {
			n, err := user.Read(buf)
			term.mu.Lock()
			term.shown.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(term.close)
	return term
}

func (term *terminal) close() {
	term.program.Close()
	term.read.Wait()
	term.user.Close()
}

func (term *terminal) text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return strings.ReplaceAll(term.shown.String(), "\r\n", "\n")
}

func TestConfirm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer string
		code   int
		want   string
	}{
		{"y\n", 0, "undone 4 gate\nundone 3 fleet\n"},
		{"n\n", 1, "pgwake: nothing was changed\n"},
		{"\n", 1, "pgwake: nothing was changed\n"},
		{"\x04", 1, "pgwake: nothing was changed\n"}, // Ctrl-D
	} {
		t.Run(fmt.Sprintf("%q", c.answer), func(t *testing.T) {
			t.Parallel()
			term := newTerminal(t)
			url := pgtest.NewURL(t)
			code := make(chan int, 1)
			go func() {
				code <- run(t.Context(), []string{"--database-url", url, "migrate", "down", "--to", "2"}, term.program, term.program, term.program)
			}()
			pgtest.WaitFor(t, 30*time.Second, "the question", func() bool { return strings.HasSuffix(term.text(), "[y/N] ") })
			expect(t, "warning", term.text(), `undoing 3 fleet, 4 gate, 5 late, 6 no_history of schema "pgwake" drops its tables with all that is in them`, "Data is lost.")
			if _, err := io.WriteString(term.user, c.answer); err != nil {
				t.Fatal(err)
			}
			if got := <-code; got != c.code {
				t.Errorf("exit %d, want %d", got, c.code)
			}
			pgtest.WaitFor(t, 30*time.Second, "the outcome", func() bool { return strings.HasSuffix(term.text(), c.want) })
		})
	}
}

func TestTerminalTable(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	url := pgtest.NewURL(t)
	succeed(t, url, "", "enqueue", "a", "--delay", "2h")
	if code := run(t.Context(), []string{"--database-url", url, "tasks", "list", "--limit", "1"}, term.program, term.program, term.program); code != 0 {
		t.Errorf("exit %d", code)
	}
	pgtest.WaitFor(t, 30*time.Second, "the table and the next page", func() bool { return strings.Contains(term.text(), "add --before") })
	expect(t, "table", term.text(), "────", "in 2h")
	for line := range strings.Lines(term.text()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 {
			t.Errorf("a line of %d characters on a terminal of 100: %q", n, line)
		}
	}
}

func TestTerminalProgress(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	url := pgtest.NewURL(t)
	var out bytes.Buffer
	in := strings.NewReader(strings.Join(lines(3_000), "\n"))
	if code := run(t.Context(), []string{"--database-url", url, "enqueue", "--ndjson"}, in, &out, term.program); code != 0 {
		t.Errorf("exit %d", code)
	}
	pgtest.WaitFor(t, 30*time.Second, "a progress bar", func() bool { return strings.Contains(term.text(), "enqueue") })
	if out.String() != "3000 tasks enqueued\n" {
		t.Errorf("stdout %q", out.String())
	}
}
