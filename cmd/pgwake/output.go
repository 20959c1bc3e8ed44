package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// output remembers the first error of writing, so that commands need not ask after each line.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(p)
	o.err = err
	return n, err
}

// isTerminal reports whether a stream is one.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// human reports whether the results are read by a person at a terminal, not by a program through a pipe.
func (a *app) human() bool { return isTerminal(a.stdout.w) }

// printJSON writes v for programs.
func (a *app) printJSON(v any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// printTable writes rows under a header. On a terminal the header is underlined and rows are cut at its width. Elsewhere
// columns are padded with at least two spaces and no cell is empty, so that awk and cut find them.
func (a *app) printTable(header []string, rows [][]string) {
	width := 0
	if a.human() {
		if w, _, err := term.GetSize(int(a.stdout.w.(*os.File).Fd())); err == nil {
			width = w
		}
	}
	fmt.Fprintln(a.stdout, renderTable(header, rows, a.human(), width))
}

func renderTable(header []string, rows [][]string, underline bool, width int) string {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.Options{SeparateHeader: underline}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(tableRow(header))
	for _, row := range rows {
		t.AppendRow(tableRow(row))
	}
	rendered := strings.Split(t.Render(), "\n")
	for i, line := range rendered {
		if width == 0 {
			break
		}
		if rendered[i] = text.Snip(line, width, "…"); underline && i == 1 {
			rendered[i] = text.Trim(line, width)
		}
	}
	return strings.Join(rendered, "\n")
}

func tableRow(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, cell := range cells {
		if cell = printable(cell); cell == "" {
			cell = "-"
		}
		row[i] = cell
	}
	return row
}

// printable makes text from the database fit for one line of a terminal: what would move the cursor, or speak to the
// terminal, is shown escaped.
func printable(s string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case unicode.IsControl(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// when shows an instant: how far it is away for people, RFC 3339 for programs. Nil is no instant.
func (a *app) when(t *time.Time) string {
	switch {
	case t == nil || t.IsZero():
		return ""
	case a.human():
		return relative(*t, time.Now())
	}
	return t.UTC().Format(time.RFC3339)
}

// relative says in one unit how far an instant is from now.
func relative(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < -time.Second:
		// Rounded up, so that what was enqueued with a delay of 5 minutes is due in 5m, not in 299s.
		return "in " + oneUnit(-d+time.Second/2)
	case d < time.Second:
		return "now"
	}
	return oneUnit(d) + " ago"
}

func oneUnit(d time.Duration) string {
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// indentJSON lays out JSON for reading, every line after the first indented.
func indentJSON(raw []byte, indent string) string {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, indent, "  "); err != nil {
		return string(raw)
	}
	return b.String()
}

// interruptible lets go of a blocked Read when ctx ends. The read itself cannot be stopped: its goroutine ends with the
// input or the process.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1) // so that a read nobody waits for any more can end
	go func() {
		buf := make([]byte, len(p)) // not p, which is the caller's again once ctx has ended
		n, err := i.r.Read(buf)
		done <- result{buf[:n], err}
	}()
	select {
	case r := <-done:
		return copy(p, r.data), r.err
	case <-i.ctx.Done():
		return 0, context.Cause(i.ctx)
	}
}
