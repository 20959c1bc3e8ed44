package pgwake

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// taskRow is a task as it goes into the table. Zero values of what is optional say that the task does not have it.
type taskRow struct {
	ID          uuid.UUID
	Type        string
	Payload     []byte // JSON
	DueAt       time.Time
	Delay       int64 // microseconds
	Priority    int16
	MaxAttempts int32
	UniqueKey   string
	Metadata    []byte // JSON; nil: {}
}

func (r *taskRow) metadata() []byte {
	if r.Metadata == nil {
		return []byte("{}")
	}
	return r.Metadata
}

// size is about what the row takes in memory and on its way.
func (r *taskRow) size() int {
	return len(r.Type) + len(r.Payload) + len(r.UniqueKey) + len(r.Metadata) + 64
}

// shape says what some rows have beside id, type and payload.
type shape struct {
	rows, dueAt                              int // how many there are, and have it
	delay, key, priority, attempts, metadata bool
}

func shapeOf(rows []taskRow) shape {
	s := shape{rows: len(rows)}
	for i := range rows {
		row := &rows[i]
		if !row.DueAt.IsZero() {
			s.dueAt++
		}
		s.delay = s.delay || row.Delay > 0
		s.key = s.key || row.UniqueKey != ""
		s.priority = s.priority || row.Priority != defaultPriority
		s.attempts = s.attempts || row.MaxAttempts > 0
		s.metadata = s.metadata || row.Metadata != nil
	}
	return s
}

// arrays are the columns of rows as texts of arrays, which every driver can send: the parameters of enqueueManySQL.
type arrays [9][]byte

func (a *arrays) add(row *taskRow) {
	for i := range a {
		if a[i] == nil {
			a[i] = append(a[i], '{')
		} else {
			a[i] = append(a[i], ',')
		}
	}
	a[0] = hex.AppendEncode(a[0], row.ID[:])
	a[1] = appendQuoted(a[1], row.Type)
	a[2] = appendQuoted(a[2], row.Payload)
	if row.DueAt.IsZero() {
		a[3] = append(a[3], "null"...)
	} else {
		a[3] = row.DueAt.AppendFormat(a[3], time.RFC3339Nano)
	}
	a[4] = appendGiven(a[4], row.Delay)
	a[5] = strconv.AppendInt(a[5], int64(row.Priority), 10)
	a[6] = appendGiven(a[6], int64(row.MaxAttempts))
	if row.UniqueKey == "" {
		a[7] = append(a[7], "null"...)
	} else {
		a[7] = appendQuoted(a[7], row.UniqueKey)
	}
	a[8] = appendQuoted(a[8], row.metadata())
}

// args ends the arrays.
func (a *arrays) args() []any {
	args := make([]any, len(a))
	for i := range a {
		args[i] = string(append(a[i], '}'))
	}
	return args
}

// appendGiven appends a number, or null for 0.
func appendGiven(b []byte, n int64) []byte {
	if n == 0 {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, n, 10)
}

// appendQuoted appends an element of an array that is quoted.
func appendQuoted[T string | []byte](b []byte, text T) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}
