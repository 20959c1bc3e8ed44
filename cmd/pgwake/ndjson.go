package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/pgwake/pgwake"
)

// maxLine bounds the memory of an import, with batchBytes.
const maxLine = 16 << 20

// taskLine is one line of an import.
type taskLine struct {
	Type        string          `json:"type"`
	Payload     json.RawMessage `json:"payload"`
	ID          *string         `json:"id"`
	DueAt       *time.Time      `json:"due_at"`
	Delay       *string         `json:"delay"`
	Priority    *int            `json:"priority"`
	MaxAttempts *int            `json:"max_attempts"`
	UniqueKey   *string         `json:"unique_key"`
	Metadata    map[string]any  `json:"metadata"`
}

// parseLine reads one line. What it accepts, the client accepts.
func parseLine(text []byte) (pgwake.NewTask, error) {
	var line taskLine
	if err := decodeStrict(text, &line); err != nil {
		return pgwake.NewTask{}, lineError(err)
	}
	opts := &pgwake.EnqueueOptions{Priority: line.Priority, Metadata: line.Metadata}
	if line.ID != nil {
		id, err := uuid.Parse(*line.ID)
		if err != nil || id == uuid.Nil {
			return pgwake.NewTask{}, fmt.Errorf("id %q is not a UUID", *line.ID)
		}
		opts.ID = id
	}
	if line.DueAt != nil {
		if line.Delay != nil {
			return pgwake.NewTask{}, errors.New("due_at and delay exclude each other")
		}
		if line.DueAt.IsZero() { // the library takes it for none
			return pgwake.NewTask{}, errors.New("due_at is the year 1")
		}
		opts.DueAt = *line.DueAt
	}
	if line.Delay != nil {
		delay, err := time.ParseDuration(*line.Delay)
		if err != nil {
			return pgwake.NewTask{}, fmt.Errorf("delay %q is not a duration such as 1h30m", *line.Delay)
		}
		opts.Delay = delay
	}
	if line.MaxAttempts != nil {
		if opts.MaxAttempts = *line.MaxAttempts; opts.MaxAttempts < 1 {
			return pgwake.NewTask{}, fmt.Errorf("max_attempts %d is less than 1", opts.MaxAttempts)
		}
	}
	if line.UniqueKey != nil {
		if opts.UniqueKey = *line.UniqueKey; opts.UniqueKey == "" {
			return pgwake.NewTask{}, errors.New("unique_key is empty: leave it out for no key")
		}
	}
	payload := pgwake.Raw{Type: line.Type, JSON: line.Payload}
	if err := check(payload, opts); err != nil {
		return pgwake.NewTask{}, err
	}
	return pgwake.NewTask{Payload: payload, Options: opts}, nil
}

// decodeStrict decodes one JSON value that is all of text. Fields that v does not have are an error, since a misspelt
// one would be lost in silence; numbers keep all their digits.
func decodeStrict(text []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	if err := decoder.Decode(v); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return errors.New("something follows the JSON value")
	}
	return nil
}

func lineError(err error) error {
	var typeErr *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typeErr) && typeErr.Field != "":
		return fmt.Errorf("field %q cannot be a JSON %s", typeErr.Field, typeErr.Value)
	case errors.As(err, &typeErr):
		return fmt.Errorf("a JSON %s, not an object", typeErr.Value)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON object is cut off")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// check asks a client whether it would accept a task, without a database.
func check(payload pgwake.Raw, opts *pgwake.EnqueueOptions) error {
	client, err := pgwake.NewClient(context.Background(), nil, pgwake.ClientConfig{})
	if err != nil {
		return err
	}
	return client.Check(pgwake.NewTask{Payload: payload, Options: opts})
}

// numbered is a line's task, or what is wrong with the line.
type numbered struct {
	number int
	task   pgwake.NewTask
	bytes  int
	err    error
}

// readLines sends every line that is not blank, parsed, until the input or ctx ends.
func readLines(ctx context.Context, in io.Reader, lines chan<- numbered) error {
	reader := bufio.NewReaderSize(&interruptible{ctx, in}, 256<<10)
	for number := 1; ; number++ {
		text, tooLong, err := readLine(reader)
		if err != nil && err != io.EOF {
			return fmt.Errorf("read line %d: %w", number, err)
		}
		line := numbered{number: number, bytes: len(text) + 1}
		if number == 1 {
			text = bytes.TrimPrefix(text, []byte("\uFEFF"))
		}
		text = bytes.TrimSpace(text)
		switch {
		case tooLong:
			line.err = fmt.Errorf("longer than %d MB", maxLine>>20)
		case len(text) > 0:
			line.task, line.err = parseLine(text)
		}
		if tooLong || len(text) > 0 {
			select {
			case lines <- line:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// readLine returns the next line without its end, and io.EOF with the last. What a line has beyond maxLine is dropped.
func readLine(r *bufio.Reader) (text []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(text)+len(part) > maxLine+1 {
			tooLong = true
		} else {
			text = append(text, part...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		return bytes.TrimSuffix(text, []byte("\n")), tooLong, err
	}
}
