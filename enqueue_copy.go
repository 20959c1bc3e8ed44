package pgwake

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
)

// copier is a transaction of pgx.
type copier interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
	Conn() *pgx.Conn
}

// copyFrom is the number of tasks from which COPY is quicker than an insert of arrays.
const copyFrom = 40

// copies reports whether the tasks go by COPY. It has no ON CONFLICT and no expressions, so instants are given for all of
// them, or left to the columns' defaults.
func (s *shape) copies() bool {
	return s.rows >= copyFrom && !s.key && !s.delay && (s.dueAt == 0 || s.dueAt == s.rows)
}

// copyRows inserts rows by COPY, in one round trip. They are encoded here, since pgx takes longer for that than all else on
// this side takes, and needs a description of the columns, which poolers make a round trip of its own.
func (c *Client) copyRows(ctx context.Context, conn *pgx.Conn, rows []taskRow) ([]Enqueued, error) {
	s := shapeOf(rows)
	query := fmt.Sprintf("copy %s (%s) from stdin (format binary)", c.sql.table, s.columns())
	if _, err := conn.PgConn().CopyFrom(ctx, &copyReader{shape: s, rows: rows, chunk: []byte(copyHeader)}, query); err != nil {
		return nil, enqueueError(rows, err)
	}
	return inserted(rows), nil
}

// columns are those that COPY fills. The fewer the better, since the server parses each value.
func (s *shape) columns() string {
	columns := []string{"id, type, payload"}
	if s.dueAt > 0 {
		columns = append(columns, "retry_at, due_at")
	}
	if s.priority {
		columns = append(columns, "priority")
	}
	if s.attempts {
		columns = append(columns, "max_attempts")
	}
	if s.metadata {
		columns = append(columns, "metadata")
	}
	return strings.Join(columns, ", ")
}

// The binary format of COPY: a header, rows of a number of fields, each a length and that many bytes, or -1 for null, and
// a trailer. It is described at https://www.postgresql.org/docs/current/sql-copy.html.
const (
	copyHeader  = "PGCOPY\n\xff\r\n\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
	copyTrailer = "\xff\xff"
	copyNull    = "\xff\xff\xff\xff"

	// epoch is where PostgreSQL's timestamps begin, in microseconds of Unix time.
	epoch = 946_684_800_000_000
	// copyChunk is how many bytes are encoded together: few enough that the server soon has something to do.
	copyChunk = 16 << 10
)

// copyReader encodes rows as they are sent.
type copyReader struct {
	shape shape
	rows  []taskRow // to be encoded
	ended bool      // so is the trailer
	chunk []byte    // encoded
	sent  int       // of it
}

func (r *copyReader) Read(p []byte) (int, error) {
	if r.sent == len(r.chunk) {
		if r.ended {
			return 0, io.EOF
		}
		r.chunk, r.sent = r.chunk[:0], 0
	}
	for !r.ended && len(r.chunk) < copyChunk {
		if len(r.rows) == 0 {
			r.chunk, r.ended = append(r.chunk, copyTrailer...), true
			break
		}
		r.chunk = r.shape.appendRow(r.chunk, &r.rows[0])
		r.rows = r.rows[1:]
	}
	n := copy(p, r.chunk[r.sent:])
	r.sent += n
	return n, nil
}

// appendRow appends a row with the columns of the shape.
func (s *shape) appendRow(b []byte, row *taskRow) []byte {
	fields := len(b) + 1
	b = append(b, 0, 3)
	b = append(appendLength(b, len(row.ID)), row.ID[:]...)
	b = append(appendLength(b, len(row.Type)), row.Type...)
	b = appendJSON(b, row.Payload)
	if s.dueAt > 0 {
		b[fields] += 2
		for range 2 {
			b = binary.BigEndian.AppendUint64(appendLength(b, 8), uint64(row.DueAt.UnixMicro()-epoch))
		}
	}
	if s.priority {
		b[fields]++
		b = binary.BigEndian.AppendUint16(appendLength(b, 2), uint16(row.Priority))
	}
	if s.attempts {
		b[fields]++
		if row.MaxAttempts > 0 {
			b = binary.BigEndian.AppendUint32(appendLength(b, 4), uint32(row.MaxAttempts))
		} else {
			b = append(b, copyNull...)
		}
	}
	if s.metadata {
		b[fields]++
		b = appendJSON(b, row.metadata())
	}
	return b
}

func appendLength(b []byte, n int) []byte { return binary.BigEndian.AppendUint32(b, uint32(n)) }

// appendJSON appends a jsonb: its version, and text.
func appendJSON(b []byte, text []byte) []byte {
	return append(append(appendLength(b, len(text)+1), 1), text...)
}
