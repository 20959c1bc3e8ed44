// Package settled carries word of settled tasks from the workers to those who subscribe. It is a gate like that of the
// wake-ups, the other way round: the subscribers hold it, and the statement that settles tries it. Refused, somebody
// subscribes, and the worker notifies after its commit; otherwise nothing is sent.
//
// [Lock] is what settlements try, [Encode] what they send, [Receiver] the subscribers' side.
package settled

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/notify"
)

// The gate is one of the archive's, whose advisory locks nobody else has: there is only one topic.
const (
	gateTable = "task_archive"
	topic     = "settled"
)

// Lock returns the lock that settlements try, as SQL of its two integers: see package notify for how they are made.
func Lock(schema string) string {
	table := pgx.Identifier{schema, gateTable}.Sanitize()
	return fmt.Sprintf("'%s'::regclass::oid::integer, hashtext('%s') & 1023", strings.ReplaceAll(table, "'", "''"), topic)
}

// Channel returns the channel on which settlements are announced.
func Channel(schema string) string { return notify.Channel(schema, "tasks") + "_settled" }

// Task is a task and what a settlement has made of it.
type Task struct {
	ID     uuid.UUID
	Type   string
	Status string
}

// Resync is the notification that something may have been missed.
const Resync = `{"say":"resync"}`

// maxPayload is below the 8,000 bytes of PostgreSQL by what a type's name may grow in the server's encoding.
const maxPayload = 7500

// message is a notification: tasks, or a word.
type message struct {
	From  string   `json:"from,omitempty"` // the receiver that says it; empty: a worker
	Say   string   `json:"say,omitempty"`
	Types []string `json:"types,omitempty"`
	Tasks []string `json:"tasks,omitempty"` // type's index, status's letter, id without its dashes
}

const (
	sayResync  = "resync"  // something may have been missed
	sayLeaving = "leaving" // the gate is free: somebody else should take it
)

// letters are the statuses that a settlement can lead to.
var letters = map[string]string{"succeeded": "s", "cancelled": "c", "frozen": "f", "queued": "q"}

// Encode returns the notifications that tell of tasks, in their order. A status of which none can tell becomes a resync.
func Encode(tasks []Task) (payloads []string) {
	for len(tasks) > 0 {
		m, n := fill(tasks)
		if n == 0 {
			return append(payloads, Resync)
		}
		payloads, tasks = append(payloads, m.text()), tasks[n:]
	}
	return payloads
}

// fill puts as many tasks into a message as it can hold, and returns their number.
func fill(tasks []Task) (m message, n int) {
	index := map[string]int{}
	size := len(`{"types":[],"tasks":[]}`)
	for _, t := range tasks {
		letter, ok := letters[t.Status]
		if !ok {
			break
		}
		i, known := index[t.Type]
		if !known {
			i = len(m.Types)
			name, _ := json.Marshal(t.Type)
			size += len(name) + len(`,`)
		}
		entry := strconv.Itoa(i) + letter + strings.ReplaceAll(t.ID.String(), "-", "")
		size += len(entry) + len(`"",`)
		if size > maxPayload {
			break
		}
		if !known {
			index[t.Type], m.Types = i, append(m.Types, t.Type)
		}
		m.Tasks = append(m.Tasks, entry)
	}
	return m, len(m.Tasks)
}

func (m message) text() string {
	text, _ := json.Marshal(m) // strings alone
	return string(text)
}

var errPayload = errors.New("no notification of settled tasks")

// decode reads a notification. What a newer version may send is an error: look, something may have been missed.
func decode(payload string) (m message, tasks []Task, err error) {
	if err := json.Unmarshal([]byte(payload), &m); err != nil {
		return message{}, nil, fmt.Errorf("%w: %w", errPayload, err)
	}
	if m.Say != "" {
		return m, nil, nil
	}
	for _, entry := range m.Tasks {
		at := strings.IndexFunc(entry, func(r rune) bool { return r < '0' || r > '9' })
		if at < 1 {
			return message{}, nil, errPayload
		}
		i, err := strconv.Atoi(entry[:at])
		if err != nil || i >= len(m.Types) {
			return message{}, nil, errPayload
		}
		t := Task{Type: m.Types[i]}
		for status, letter := range letters {
			if entry[at:at+1] == letter {
				t.Status = status
			}
		}
		if t.ID, err = uuid.Parse(entry[at+1:]); err != nil || t.Status == "" || len(entry) != at+33 {
			return message{}, nil, errPayload
		}
		tasks = append(tasks, t)
	}
	if len(tasks) == 0 {
		return message{}, nil, errPayload
	}
	return m, tasks, nil
}
