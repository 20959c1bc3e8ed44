package pgwake_test

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
)

// Welcome is the payload of a task that greets a new customer.
type Welcome struct {
	To string `json:"to"`
}

// TaskType implements pgwake.Payload.
func (Welcome) TaskType() string { return "email.welcome" }

// connect returns a client of the database that the environment names.
func connect(ctx context.Context) (*pgxpool.Pool, *pgwake.Client) {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := pgwake.NewClient(ctx, pool, pgwake.ClientConfig{})
	if err != nil {
		log.Fatal(err)
	}
	return pool, client
}

// Many tasks are one transaction, and one round trip unless they have unique keys.
func ExampleClient_EnqueueMany() {
	ctx := context.Background()
	pool, client := connect(ctx)
	defer pool.Close()

	results, err := client.EnqueueMany(ctx, []pgwake.NewTask{
		{Payload: Welcome{To: "ada@example.com"}},
		{Payload: Welcome{To: "grace@example.com"}, Options: &pgwake.EnqueueOptions{UniqueKey: "grace"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		fmt.Println(r.ID, "was there already:", r.Duplicate)
	}
}

// A file of any length, a task a line, goes through bounded memory. After an error the count tells from which line to go on.
func ExampleClient_EnqueueSeq() {
	ctx := context.Background()
	pool, client := connect(ctx)
	defer pool.Close()

	lines := bufio.NewScanner(os.Stdin)
	result, err := client.EnqueueSeq(ctx, func(yield func(pgwake.NewTask, error) bool) {
		for lines.Scan() {
			if !yield(pgwake.NewTask{Payload: Welcome{To: lines.Text()}}, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(pgwake.NewTask{}, err)
		}
	}, nil)
	if err != nil {
		log.Fatalf("the first %d lines are enqueued: %v", result.Enqueued+result.Duplicates, err)
	}
	fmt.Println(result.Enqueued, "tasks enqueued")
}

// All or nothing: the tasks exist when the transaction that enqueues them commits.
func ExampleClient_EnqueueSeqTx() {
	ctx := context.Background()
	pool, client := connect(ctx)
	defer pool.Close()

	customers := []string{"ada@example.com", "grace@example.com"}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := client.EnqueueSeqTx(ctx, tx, func(yield func(pgwake.NewTask, error) bool) {
			for _, to := range customers {
				if !yield(pgwake.NewTask{Payload: Welcome{To: to}}, nil) {
					return
				}
			}
		}, nil)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}
