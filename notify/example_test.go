package notify_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgwake/pgwake/notify"
)

// A program that keeps a cache of settings: every change is announced on a channel, and
// whatever was missed while disconnected is made good by a full look.
func ExampleNewListener() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	connConfig, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}

	var changes notify.Fanout
	listener, err := notify.NewListener(notify.Config{
		Connect: notify.Connector(connConfig),
		Ring: func(ctx context.Context, channel, payload string) error {
			_, err := pool.Exec(ctx, "select pg_catalog.pg_notify($1, $2)", channel, payload)
			return err
		},
		Channels:  map[string]func(string){notify.Channel("public", "settings"): changes.Ring},
		OnConnect: changes.RingAll,
	})
	if err != nil {
		log.Fatal(err)
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = listener.Run(ctx) // returns when ctx ends, for no other reason
	}()

	news := changes.Subscribe()
	defer news.Close()
	for {
		select {
		case <-news.C():
			fmt.Println("read the settings again")
		case <-ctx.Done():
			<-done
			return
		}
	}
}

func ExampleFanout() {
	var f notify.Fanout
	mail := f.Subscribe("mail")
	defer mail.Close()
	any := f.Subscribe()
	defer any.Close()

	f.Ring("mail")
	f.Ring("mail") // before anybody looked: the same wake-up
	f.Ring("image")

	<-mail.C()
	fmt.Println("mail: look for work")
	<-any.C()
	fmt.Println("any: look for work")
	select {
	case <-mail.C():
	default:
		fmt.Println("mail: sleep")
	}
	// Output:
	// mail: look for work
	// any: look for work
	// mail: sleep
}

func ExampleChannel() {
	fmt.Println(notify.Channel("pgwake", "tasks"))
	// Output: pgwake_216dd34994802857e36901462659fc92
}
