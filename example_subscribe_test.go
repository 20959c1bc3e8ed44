package pgwake_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
)

// A program that enqueues a task and waits until it is done: it looks at each Resync, of which the first comes at once,
// and is told of what happens in between.
func ExampleClient_Subscribe() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{})
	if err != nil {
		log.Fatal(err)
	}
	task, err := client.Enqueue(ctx, pgwake.Raw{Type: "greeting.say"}, nil)
	if err != nil {
		log.Fatal(err)
	}

	status := pgwake.Queued
	err = client.Subscribe(ctx, func(e pgwake.Event) {
		switch {
		case e.Resync:
			if info, err := client.Inspector().Task(ctx, task.ID); err == nil {
				status = info.Status
			}
		case e.ID == task.ID:
			status = e.Status
		}
		if status == pgwake.Succeeded || status == pgwake.Cancelled || status == pgwake.Frozen {
			stop()
		}
	})
	if errors.Is(err, context.DeadlineExceeded) {
		fmt.Println("not done within a minute")
	}
	fmt.Println("the task is", status)
}
