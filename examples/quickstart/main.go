// Command quickstart enqueues three tasks and runs them.
//
//	export DATABASE_URL=postgres://localhost/postgres
//	go run ./cmd/pgwake migrate up
//	go run ./examples/quickstart
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// Greeting is the payload of a task, kept as JSON in its row.
type Greeting struct{ Name string }

// TaskType names the type of task that has this payload.
func (Greeting) TaskType() string { return "greeting.say" }

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()

	// A registry says what a worker can run. Here the third greeting stops the worker.
	running, stop := context.WithCancel(ctx)
	var greeted atomic.Int32
	reg := registry.New()
	check(registry.Register(reg, func(ctx context.Context, task *pgwake.Task[Greeting]) error {
		fmt.Printf("Hello, %s!\n", task.Payload.Name)
		if greeted.Add(1) == 3 {
			stop()
		}
		return nil // done; an error would run the task again later
	}, nil))

	// A worker waits for tasks. Usually it is a program of its own.
	w, err := worker.New(pool, reg, worker.Config{})
	check(err)
	stopped := make(chan error)
	go func() { stopped <- w.Run(running) }()

	// A client enqueues them, from any program: each wakes the worker when it is committed.
	client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{Types: reg})
	check(err)
	for _, name := range []string{"Ada", "Grace", "Katherine"} {
		_, err := client.Enqueue(ctx, Greeting{Name: name}, nil)
		check(err)
	}
	check(<-stopped)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
