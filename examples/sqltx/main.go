// Command sqltx enqueues a task inside a transaction of database/sql, together with a row of its own: both are there
// after the commit, or neither. One order is placed and one is rolled back; one receipt is sent.
//
//	go run ./cmd/pgwake migrate up
//	go run ./examples/sqltx
//
// Libraries on database/sql hand out the *sql.Tx that pgwake.SQLTx takes:
//
//	sqlc   the tx of queries.WithTx(tx)
//	sqlx   tx.Tx
//	GORM   tx.Statement.ConnPool.(*sql.Tx), inside db.Transaction(func(tx *gorm.DB) error { … })
//	ent    begin it on your *sql.DB and give ent a dialect.Driver that runs on it: ent.Tx does not hand out its own
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver "pgx"; lib/pq serves as well

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/registry"
	"github.com/pgwake/pgwake/worker"
)

// Receipt is to be sent for an order.
type Receipt struct {
	Item string `json:"item"`
}

// TaskType implements pgwake.Payload.
func (Receipt) TaskType() string { return "receipt.send" }

var errOutOfStock = errors.New("out of stock")

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, `create table if not exists example_orders (item text not null)`); err != nil {
		return err
	}

	// A client without a pool enqueues in its callers' transactions alone.
	client, err := pgwake.NewClient(ctx, nil, pgwake.ClientConfig{})
	if err != nil {
		return err
	}
	if err := placeOrder(ctx, db, client, "unicorn", 0); !errors.Is(err, errOutOfStock) {
		return fmt.Errorf("order of what is out of stock: %w", err)
	}
	fmt.Println("unicorn: rolled back, no receipt")
	if err := placeOrder(ctx, db, client, "teapot", 7); err != nil {
		return err
	}
	fmt.Println("teapot: ordered")
	return sendReceipts(ctx, url)
}

// placeOrder writes the order and the task that sends its receipt in one transaction.
func placeOrder(ctx context.Context, db *sql.DB, client *pgwake.Client, item string, stock int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	if _, err := tx.ExecContext(ctx, `insert into example_orders (item) values ($1)`, item); err != nil {
		return err
	}
	if _, err := client.EnqueueTx(ctx, pgwake.SQLTx(tx), Receipt{Item: item}, nil); err != nil {
		return err
	}
	if stock == 0 {
		return errOutOfStock // the order and the task go, and no worker ever hears of them
	}
	return tx.Commit()
}

// sendReceipts runs a worker until it has sent one receipt. Workers need a pool of pgx.
func sendReceipts(ctx context.Context, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	reg := registry.New()
	err = registry.Register(reg, func(ctx context.Context, task *pgwake.Task[Receipt]) error {
		fmt.Printf("%s: receipt sent\n", task.Payload.Item)
		stop()
		return nil
	}, nil)
	if err != nil {
		return err
	}
	w, err := worker.New(pool, reg, worker.Config{})
	if err != nil {
		return err
	}
	return w.Run(running)
}
