// Package notify answers one question: when to look. It keeps one LISTEN
// session alive through everything that ends or silences connections, tells
// its owner when that session came into effect and when it was lost, and
// spreads what it hears over the goroutines that wait for it.
//
// It knows nothing of tasks and is usable alone by a program that only wants a
// LISTEN which survives. [Listener] is the session, [Fanout] the wake-up of
// waiting goroutines, [Channel] the naming shared with the SQL side,
// [Connector] and [KeepAlive] prepare the connection.
//
// # Guarantees
//
// Postgres forgets: a notification sent while nobody listens is gone. No
// listener can promise delivery, so this one promises to say when something may
// have been missed. After each call of Config.OnConnect, every notification
// that was committed from then on reaches its handler, or OnDisconnect is called.
// Between the two calls nothing is missed; outside them anything may be. The
// owner therefore looks once, fully, in (or rather woken by) OnConnect.
//
//   - OnConnect, the handlers and OnDisconnect run on one goroutine, in the
//     order of events, never at the same time. They must not block: while they
//     do, nothing is heard and the watchdog takes the connection for dead.
//   - Each OnConnect is followed by exactly one OnDisconnect before Run returns.
//   - "Connected" means: LISTEN is in effect on every channel, and the server
//     is a writable primary. A standby or a read-only database is an outage.
//   - A connection that died in silence is noticed by the watchdog within
//     Watchdog + ProbeTimeout when probes can be sent and are answered at
//     once, and within Watchdog + 2 × ProbeTimeout whatever happens.
//   - Every wait for the database has a deadline, Run returns within a second
//     of the end of its ctx, also while the network swallows everything.
//   - A panic in a callback is not recovered: it leaves Run, after the connection
//     was closed.
//
// # States
//
//	            Run
//	             │
//	             ▼      dial, LISTEN or check failed, deadline
//	┌────▶ connecting ────────────────────────────┐
//	│            │                                ▼
//	│            │ LISTEN on all channels,    backing off ── jittered, doubling from
//	│            │ server is writable             │ ▲       MinBackoff to MaxBackoff
//	│            ▼                                │ │
//	│       listening ──── socket error ──▶ lost ─┼─┘
//	│        │  ▲  │                          ▲   │
//	│ silent │  │  └── no echo, or two ───────┘   │
//	│        ▼  │      probes failed              │
//	│       probing                               │
//	└─────────────────────────────────────────────┘
//
// Entering listening resets the back-off and calls OnConnect; leaving it calls OnDisconnect. The end of ctx leaves any state at
// once. The log has one line for each outage and one for its end; attempts in
// between are logged at debug level.
//
// # What may fail, and what then happens
//
//	backend terminated            read fails at once; reconnected after about MinBackoff
//	server restarts or crashes    the same, then back-off until it accepts connections
//	connection refused            back-off, capped at MaxBackoff
//	connect or LISTEN hangs       given up after ConnectTimeout, back-off
//	half-open connection          probe has no echo: socket broken at once, reconnected
//	probe cannot be sent          no proof; after two in a row the connection is given up too
//	standby, read-only database   not connected; back-off until writable (ErrNotWritable)
//	fail-over                     the old session ends or falls silent; each dial resolves anew
//	client vanishes               the server ends the session within ~11 s (KeepAlive)
//	handler blocks                the watchdog gives the connection up; cured only by returning
//	handler panics                Run closes the connection and panics
//	Connect ignores its ctx       Run cannot end before it returns; do not do that
//	server turns read-only later  not noticed until the session ends: NOTIFY works regardless
//
// # The gate
//
// A transaction that notifies takes a lock of the whole cluster at commit and holds it until it is on disk, so such
// transactions commit one at a time. A notification is only useful while somebody sleeps, and [Gate] makes it sent only
// then. Topics fall into 1,024 buckets, and each has three advisory locks on a table:
//
//   - The gate's own. Whoever wants to be rung holds it exclusively: armed. The table's trigger runs inside the commit and
//     tries it shared: got it, nobody sleeps, no notification; refused, it rings. The shared lock goes only after the row is
//     visible.
//
//   - The keeper's. Whoever holds it is responsible for the topic, armed or not: it looks, arms when it finds nothing, looks
//     again and only then sleeps. All others may sleep at once. At a rate at which ringing costs more than looking it
//     disarms and looks by itself, and nobody else is woken by that. One that cannot go on lets go and calls the others.
//
//   - The deputy's. Its holder sees now and then whether there is a keeper, and looks behind the keeper's back after a ring.
//
// The states of a session for a topic:
//
//	Keep: its lock got       Arm: nothing found, commits in flight are through
//	┌─► outside ─────────────► keeper ────────────────────────────────────► armed ◄─┐
//	│   or deputy              │  │ ▲                                        │ │ │  │ ring:
//	│       ▲ ▲     Release    │  │ └───────── Disarm: rings too fast ───────┘ │ │  │ look,
//	│       │ └────────────────┘  │                                            │ └──┘ nothing,
//	│       └─────────────────────┼───────────────── Release ──────────────────┘      sleep
//	└──── session lost: its locks are gone
//
// A keeper whose process is stopped or cut off holds its locks until its session ends. [Gate.Judge] ends it when it has
// done nothing although there was something to do.
//
// Why no wake-up is lost. A row becomes visible before its inserter's shared lock goes, or its inserter was refused. Arming
// waits for all shared locks. So the look that follows arming sees every row whose inserter was not refused, and every
// inserter that is refused rings after its row is visible, while the keeper is armed or, if it has let go by then, after
// the next keeper's lock was free, whose look after arming sees the row. The order is arm, look, sleep; looking before
// arming loses rows, and so does a flag that inserters read without holding a lock up to visibility, and sleeping because
// arming failed while commits were in flight. docs/model/gate.pml says all that to the model checker spin, which finds no
// fault in it and refutes each of these variants.
//
// A pooler in transaction mode (PgBouncer) cannot carry a LISTEN: a client hears
// its own notifications through it and nobody else's, so the probe, which comes
// from another connection, has no echo and the listener never stays connected.
// Give it a direct session.
package notify
