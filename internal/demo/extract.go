package demo

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
)

// extract handles crawl.extract. It reads the stored page, not the site.
func (c *crawler) extract(ctx context.Context, task *pgwake.Task[Extract]) error {
	started := time.Now()
	var stored response
	var body []byte
	err := c.pool.QueryRow(ctx, `select status, content_type, body from demo.page where url = $1`, task.Payload.URL).
		Scan(&stored.status, &stored.contentType, &body)
	if err != nil {
		return fmt.Errorf("read page: %w", err)
	}
	if stored.body, err = decompress(body); err != nil {
		return err
	}
	doc := describe(&stored)
	return c.settle(ctx, task.Run, started, func(tx pgx.Tx) error {
		return storeDocument(ctx, tx, task.Payload.URL, doc)
	})
}

// describe reads HTML as such and counts the words of other text.
func describe(r *response) *document {
	if r.isHTML() {
		return parseHTML(r.body)
	}
	return &document{words: len(bytes.Fields(r.body))}
}

// documentSQL stores what was read. Parameters: address, title, headings, words, links.
const documentSQL = `
insert into demo.document (url, title, headings, words, links)
values ($1, nullif($2, ''), coalesce($3::text[], '{}'), $4, $5)`

func storeDocument(ctx context.Context, tx pgx.Tx, address string, doc *document) error {
	if _, err := tx.Exec(ctx, documentSQL, address, doc.title, doc.headings, doc.words, doc.links); err != nil {
		return fmt.Errorf("store document: %w", err)
	}
	return nil
}
