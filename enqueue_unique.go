package pgwake

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// enqueueUniqueSQL inserts those tasks whose unique key no live task holds, and returns the JSON array of their ids.
const enqueueUniqueSQL = `
with made as (` + enqueueManySQL + unlessLive + `
returning t.id
)
select coalesce(json_agg(made.id), '[]')::text
from made`

// liveManySQL finds the live tasks that hold the unique keys of a JSON array of tasks.
const liveManySQL = `
select coalesce(json_agg(json_build_object('id', t.id, 'type', t.type, 'unique_key', t.unique_key)), '[]')::text
from jsonb_to_recordset($1::jsonb) as r(type text, unique_key text)
join %s as t on t.type = r.type and t.unique_key = r.unique_key`

// insertUnique inserts rows of which some have unique keys, and finds who holds the keys of the others.
func (c *Client) insertUnique(ctx context.Context, tx Tx, rows []taskRow) ([]Enqueued, error) {
	results := inserted(rows)
	pending := make([]int, len(rows)) // indices of rows neither inserted nor found to be there
	for i := range pending {
		pending[i] = i
	}
	// By key, so that two batches never wait for each other's keys in turn; with equal keys in the order given, so that
	// the first of them is inserted.
	slices.SortStableFunc(pending, func(a, b int) int {
		return cmp.Or(strings.Compare(rows[a].Type, rows[b].Type), strings.Compare(rows[a].UniqueKey, rows[b].UniqueKey))
	})
	for len(pending) > 0 {
		var columns arrays
		for _, i := range pending {
			columns.add(&rows[i])
		}
		var ids []uuid.UUID
		if err := queryJSON(ctx, tx, c.sql.manyUnique, &ids, columns.args()...); err != nil {
			return nil, enqueueError(rows, err)
		}
		made := make(map[uuid.UUID]bool, len(ids))
		for _, id := range ids {
			made[id] = true
		}
		pending = slices.DeleteFunc(pending, func(i int) bool { return made[rows[i].ID] })
		if len(pending) == 0 {
			break
		}
		holders, err := c.findLive(ctx, tx, rows, pending)
		if err != nil {
			return nil, enqueueError(rows, err)
		}
		// Those whose holder has been settled in the meantime stay pending.
		pending = slices.DeleteFunc(pending, func(i int) bool {
			id, held := holders[uniqueTask{rows[i].Type, rows[i].UniqueKey}]
			if held {
				results[i].ID, results[i].Duplicate = id, true
			}
			return held
		})
	}
	return results, nil
}

// uniqueTask is what one live task at most can be.
type uniqueTask struct {
	Type      string `json:"type"`
	UniqueKey string `json:"unique_key"`
}

// findLive finds who holds the keys of the rows.
func (c *Client) findLive(ctx context.Context, tx Tx, rows []taskRow, pending []int) (map[uniqueTask]uuid.UUID, error) {
	wanted := make([]uniqueTask, len(pending))
	for k, i := range pending {
		wanted[k] = uniqueTask{rows[i].Type, rows[i].UniqueKey}
	}
	text, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID uuid.UUID `json:"id"`
		uniqueTask
	}
	if err := queryJSON(ctx, tx, c.sql.liveMany, &found, string(text)); err != nil {
		return nil, err
	}
	holders := make(map[uniqueTask]uuid.UUID, len(found))
	for _, f := range found {
		holders[f.uniqueTask] = f.ID
	}
	return holders, nil
}

// queryJSON reads a statement's one value, which is JSON as text: the form that every driver has.
func queryJSON(ctx context.Context, tx Tx, query string, out any, args ...any) error {
	var answer string
	if err := tx.QueryRow(ctx, query, args...).Scan(&answer); err != nil {
		return err
	}
	return json.Unmarshal([]byte(answer), out)
}
