package pgwake

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// mail is a payload of the usual kind.
type mail struct {
	To       string `json:"to"`
	Template string `json:"template"`
	Retries  int    `json:"retries"`
}

func (mail) TaskType() string { return "mail.send" }

var (
	someMail = mail{"ada@example.com", "welcome", 3}
	someRaw  = task("mail.send", `{"to": "ada@example.com", "template": "welcome", "retries": 3}`)
)

func BenchmarkPrepare(b *testing.B) {
	c := offline(b)
	for name, p := range map[string]Payload{"struct": someMail, "raw": someRaw} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.prepare(NewTask{p, nil}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkEncode is a thousand rows, encoded.
func BenchmarkEncode(b *testing.B) {
	for name, encode := range encodings(b, slices.Repeat([]NewTask{{someMail, nil}}, 1_000)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encode()
			}
		})
	}
}

// encodings are the ways in which prepared tasks are encoded.
func encodings(t testing.TB, tasks []NewTask) map[string]func() {
	rows, err := offline(t).prepareAll(tasks)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 64<<10)
	return map[string]func(){
		"copy": func() {
			r := &copyReader{shape: shapeOf(rows), rows: rows, chunk: []byte(copyHeader)}
			for err := error(nil); err == nil; _, err = r.Read(p) {
			}
		},
		"arrays": func() {
			var columns arrays
			for i := range rows {
				columns.add(&rows[i])
			}
			columns.args()
		},
	}
}

// BenchmarkEnqueueMany enqueues tasks n at a time, beside a bare COPY of as many rows into a table of the same columns,
// checks and indexes without triggers.
func BenchmarkEnqueueMany(b *testing.B) {
	c := newBundle(b, ClientConfig{})
	c.exec(b, "create table pgwake.bare (like pgwake.tasks including all)")
	for _, n := range []int{1, 10, 100, 1_000, 10_000} {
		tasks := make([]NewTask, n)
		for i := range tasks {
			tasks[i] = NewTask{someMail, nil}
		}
		run := func(name string, enqueue func() error) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				c.exec(b, "truncate pgwake.tasks, pgwake.bare")
				b.ReportAllocs()
				for b.Loop() {
					if err := enqueue(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
			})
		}
		run("pgwake", func() error { _, err := c.EnqueueMany(b.Context(), tasks); return err })
		run("bare", func() error {
			_, err := c.pool.CopyFrom(b.Context(), pgx.Identifier{"pgwake", "bare"}, []string{"id", "type", "payload"},
				pgx.CopyFromSlice(n, func(int) ([]any, error) {
					id, err := uuid.NewV7()
					return []any{id, "mail.send", json.RawMessage(someRaw.JSON)}, err
				}))
			return err
		})
	}
}

func BenchmarkEnqueueSeq(b *testing.B) {
	c := newBundle(b, ClientConfig{})
	b.ReportAllocs()
	n := 0
	_, err := c.EnqueueSeq(b.Context(), func(yield func(NewTask, error) bool) {
		for b.Loop() && yield(NewTask{someMail, nil}, nil) {
			n++
		}
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tasks/s")
}
