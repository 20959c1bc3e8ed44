// Package lease decides who may run a row. It works on any table with a status column and a time column, described by a
// [Table], and knows nothing of tasks or workers.
//
// # The protocol
//
// Two columns carry the queue. The time column, retry_at, is due time, lease and pause in one:
//
//	retry_at   queued                 running
//	past       due: may be claimed    the lease has ended: may be claimed
//	future     due then               leased until then
//	infinity   paused                 paused
//	null       nothing to do          nothing to do
//
// A claim takes a row only if it is still due, in the statement that writes the lease:
//
//	         Claim                    Renew
//	queued ─────────► running ◄──────────┐
//	  ▲  ▲              │ │ │ └──────────┘
//	  │  └──────────────┘ │ └─► ClaimExpired, ClaimSuspects: another holder, a higher fence
//	  │     Settle,       │
//	  │     Requeue       ├─► frozen, or a final state: row archived, or retry_at null
//	  │                   │     Settle
//	  └──── paused ◄──────┘
//	 Resume       Pause
//
// # Guarantees
//
//   - Every write of a holder names the fence and the holder of its lease and is refused if the row has others:
//     [ErrLeaseLost]. A fence never comes again, not even after a crash of the server that forgot the claim, because it
//     is made from the clock and not from the last one alone.
//   - Only the database's clock decides. [Lease.Expires] is a local bound that is never later.
//   - A lease is handed out once its claim has committed.
//   - Statements over many rows lock them in key order and pass over rows that others have locked. So one locked row
//     delays no other, batches do not deadlock, and a row that was passed over is not lost: [Queue.Lost] tells.
//   - A table without a fence column is fenced by the value of its lease, which every claim and renewal makes anew. Then
//     a renewal and a settlement of one row must not be under way at once.
//
// # Failures
//
//	the holder dies                  the row may be claimed when its lease ends
//	the holder is stopped and wakes  its writes are refused if somebody has claimed the row since
//	the server loses a claim         the row is due again; the forgotten holder's writes are refused
//	an operator pauses the row       the holder's next write is refused
//	somebody locks the row           claims, renewals and settlements of others go on; Look reports it as due
//
// Statements expect READ COMMITTED, and plans that do not depend on the table's size when they were made: either set
// plan_cache_mode to force_custom_plan, or, on a connection that only claims and looks, force_generic_plan with
// enable_seqscan, enable_bitmapscan, enable_sort, enable_hashjoin and enable_mergejoin off.
package lease
