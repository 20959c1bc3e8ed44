package measure_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/bench/measure"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// Thumbnail is the payload of a task.
type Thumbnail struct{ Image int }

// TaskType names the type of task that has this payload.
func (Thumbnail) TaskType() string { return "thumbnail.make" }

// A program that finds out whether 50 slots are enough for 300 thumbnails a second.
func ExampleRun() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	reg := registry.New()
	err = registry.Register(reg, func(ctx context.Context, task *pgwake.Task[Thumbnail]) error {
		time.Sleep(100 * time.Millisecond) // what the real handler does
		return nil
	}, nil)
	if err != nil {
		log.Fatal(err)
	}

	result, err := measure.Run(ctx, pool, reg, measure.Workload{
		Tasks:   9000,
		Payload: func(number int) pgwake.Payload { return Thumbnail{Image: number} },
		Rate:    300,
		Worker:  worker.Config{Slots: 50},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(result)
	if result.Start.P99 > time.Second {
		fmt.Println("too few")
	}
}
