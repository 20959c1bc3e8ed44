package demo

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
)

// page handles crawl.page. An answer of the site, whatever its status, is stored; no answer, or one of a site in trouble,
// is tried again, and stored as what it is when that does not help.
func (c *crawler) page(ctx context.Context, task *pgwake.Task[Page]) error {
	started := time.Now()
	at, err := url.Parse(task.Payload.URL)
	if err != nil {
		return pgwake.Freeze(err)
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	answer, err := c.fetcher.fetch(ctx, task.Payload.URL)
	var failure *string
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && task.Attempt < taskAttempts:
		return err
	case err != nil:
		answer, failure = &response{tooLarge: true}, new(clean(err.Error()))
	case answer.overloaded() && task.Attempt < taskAttempts:
		err := fmt.Errorf("fetch %s: status %d", task.Payload.URL, answer.status)
		if answer.retryAfter > 0 {
			return pgwake.RetryAfter(answer.retryAfter, err)
		}
		return err
	case answer.tooLarge:
		failure = new(fmt.Sprintf("the body is larger than %d bytes and was not kept", maxBody))
	}

	body, err := compress(answer.body)
	if err != nil {
		return err
	}
	found := c.follow(at, answer)
	return c.settle(ctx, task.Run, started, func(tx pgx.Tx) error {
		var next *uuid.UUID
		if answer.status == 200 && answer.isText() && !answer.tooLarge {
			enqueued, err := c.client.EnqueueTx(ctx, tx, Extract{task.Payload.URL}, nil)
			if err != nil {
				return err
			}
			next = &enqueued.ID
		}
		if err := store(ctx, tx, task.Payload.URL, answer, failure, body, next); err != nil {
			return err
		}
		return c.discover(ctx, tx, found, &task.Payload.URL)
	})
}

// storeSQL stores a page. Parameters: address, status, content type, failure, size, hash, compressed body, task that
// extracts.
const storeSQL = `
insert into demo.page (url, status, content_type, error, bytes, sha256, body, extract_task)
values ($1, $2, $3, $4, $5, $6, $7, $8)`

func store(ctx context.Context, tx pgx.Tx, address string, r *response, failure *string, body []byte, next *uuid.UUID) error {
	_, err := tx.Exec(ctx, storeSQL, address, r.status, r.contentType, failure, len(r.body), r.sum(), body, next)
	if err != nil {
		return fmt.Errorf("store page: %w", err)
	}
	return nil
}

// follow lists the pages of the site that an answer leads to.
func (c *crawler) follow(at *url.URL, answer *response) []string {
	switch {
	case answer.location != "" && answer.status >= 300 && answer.status < 400:
		return links(at, &document{references: []string{answer.location}}, c.rules)
	case answer.status == 200 && answer.isHTML():
		if doc := parseHTML(answer.body); !doc.nofollow {
			return links(at, doc, c.rules)
		}
	}
	return nil
}

// paceSQL books the next fetch and returns how long it is until then. Parameter: the gap. It locks the one row for a
// moment.
const paceSQL = `
update demo.pace
set next_at = greatest(next_at, clock_timestamp()) + $1::interval
returning greatest(next_at - $1::interval - clock_timestamp(), interval '0')`

// wait keeps the whole fleet to the site's pace.
func (c *crawler) wait(ctx context.Context) error {
	if c.site.Gap == 0 {
		return nil
	}
	var d time.Duration
	if err := c.pool.QueryRow(ctx, paceSQL, c.site.Gap).Scan(&d); err != nil {
		return fmt.Errorf("book a fetch: %w", err)
	}
	return sleep(ctx, d)
}

// sleep waits for d, or returns the cause when ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func compress(body []byte) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(body); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return b.Bytes(), nil
}

func decompress(body []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return text, nil
}
