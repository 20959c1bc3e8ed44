// Package worker runs tasks: it is woken by notifications, claims, runs handlers in bounded groups of goroutines, renews
// their leases and settles them.
//
//	w, err := worker.New(pool, reg, worker.Config{})
//	…
//	err = w.Run(ctx) // until ctx ends, then drains
//
// # Parts
//
// Each part is a goroutine that Run starts and waits for.
//
//	listener    LISTEN on its own connection; rings the dispatchers, all of them after each reconnect
//	dispatcher  one for each group of slots: claims when there is room, on a ring, a slot set free, the due timer and the
//	            sweep, and looks before it sleeps when the next row falls due and the next lease ends
//	handlers    an errgroup bounded by the slots; panics are recovered here and nowhere else
//	heartbeat   renews all leases in one statement every third of a lease
//	settler     writes results, those that come in while a statement is under way together in the next
//	report      renews this worker's row in the workers table
//	history     makes and drops partitions of the archive
//
// # Connections
//
// A worker's statements never use the handlers' pool, so handlers cannot starve them. Idle it has 2 connections of its
// own, the listener's and the dispatchers'; busy up to 4, with the heartbeat's and the settler's, and for a moment once an
// hour one for the history.
//
// # A run
//
//	claimed ──► handler runs ──► returned ──► settled
//	               │   │             ▲
//	               │   └─ timeout: context ends ─► returned, or 5 s later settled as failed without it: stuck
//	               └─ lease lost: context ends, nothing of the run is written any more
//
// The outcome is decided once, by whichever comes first; what the handler does later is dropped and logged.
//
// # Failures
//
//	worker killed            its tasks run elsewhere when their leases end, at most Lease after the last renewal
//	worker stopped           drains; nothing waits for a lease
//	task kills its worker    from the second time on it runs alone among its like, and is frozen when out of attempts
//	handler panics           a failure with its stack; the slot is free
//	handler ignores context  its run is settled without it, the slot stays taken and Health counts it as stuck
//	listener lost            sweeps find what is due until it is back; then leases are renewed and all dispatchers look
//	database gone            every loop backs off and goes on trying; handlers whose lease cannot be renewed in time end
//	result cannot be written repeated until it can, or until the database says that the lease is lost
package worker
