package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Standing is what a [Gate] is for the topics of a sleeper: the best of what it is for each, but Keeper if not
// all that it keeps is armed.
type Standing int

const (
	// Outside: another session keeps the topics, and a third is its deputy. A sleeper need not do anything.
	Outside Standing = iota
	// Deputy: another session keeps the topics, and this one is to see that it does: arm again within a second or so, to
	// take over from one that is gone.
	Deputy
	// Keeper: this session is responsible for the topics and not armed for all of them. Not a reason to sleep: look, and arm
	// when there is nothing.
	Keeper
	// Armed: this session keeps the topic and whatever becomes visible from now on rings. Look once, and sleep if that
	// finds nothing.
	Armed
)

// Arming is what came of [Gate.Arm].
type Arming struct {
	Standing
	// Fresh: a gate was armed that was not before. Look before you sleep.
	Fresh bool
	// Partial: others keep some of the topics.
	Partial bool
	// Deputy: the session is deputy for some of those.
	Deputy bool
	// Open: others keep some of the topics and are not armed for them. They look by themselves, or have stopped to.
	Open bool
}

// Advisory locks have two integers: the table's oid, and one of these ranges plus the bucket of the topic.
const (
	buckets = 1024
	// The first range is the gate's own: held exclusively by the session that is to be rung, tried shared by those that
	// insert. keeperRange: held by the session that is responsible for the topic, armed or looking.
	keeperRange = 1 * buckets
	// deputyRange: held by the session that waits to become keeper.
	deputyRange = 2 * buckets
)

// armWait bounds the wait for commits in flight. It is below PostgreSQL's deadlock_timeout, so that no deadlock check
// runs, and a waiting request already makes new inserters ring.
const armWait = 20 * time.Millisecond

// Gate keeps the wake-ups of a table on one session, for one or several sleepers of a process. The session must not
// insert into the table: its own exclusive lock would not refuse its own shared try. A Gate is not safe for concurrent
// use; whoever has the session has the Gate.
type Gate struct {
	table string // as regclass reads it

	// What the session holds. Another session holds nothing.
	conn   *pgx.Conn
	oid    int32
	bucket map[string]int32
	kept   map[int32]sleepers // this session is keeper, on behalf of these
	armed  map[int32]sleepers
	deputy map[int32]sleepers
}

// sleepers are those of the process for whom a lock is held; it is released with the last.
type sleepers map[any]struct{}

// NewGate returns the gate of a table, which must have the ring trigger.
func NewGate(schema, table string) *Gate {
	return &Gate{table: pgx.Identifier{schema, table}.Sanitize()}
}

// on makes the Gate speak of the session conn. The locks of the one before are gone with it.
func (g *Gate) on(ctx context.Context, conn *pgx.Conn, topics []string) ([]int32, error) {
	if g.conn != conn {
		*g = Gate{table: g.table, bucket: map[string]int32{}, kept: map[int32]sleepers{}, armed: map[int32]sleepers{}, deputy: map[int32]sleepers{}}
		if err := conn.QueryRow(ctx, `select $1::text::regclass::oid::integer`, g.table).Scan(&g.oid); err != nil {
			return nil, fmt.Errorf("find table %s: %w", g.table, err)
		}
		g.conn = conn
	}
	var unknown []string
	for _, t := range topics {
		if _, ok := g.bucket[t]; !ok {
			unknown = append(unknown, t)
		}
	}
	if len(unknown) > 0 {
		rows, _ := conn.Query(ctx, `select t, hashtext(t) & 1023 from unnest($1::text[]) as t`, unknown)
		var topic string
		var bucket int32
		if _, err := pgx.ForEachRow(rows, []any{&topic, &bucket}, func() error {
			g.bucket[topic] = bucket
			return nil
		}); err != nil {
			return nil, fmt.Errorf("hash topics: %w", err)
		}
	}
	list := make([]int32, 0, len(topics))
	for _, t := range topics {
		if b := g.bucket[t]; !slices.Contains(list, b) {
			list = append(list, b)
		}
	}
	return list, nil
}

// armSQL tries to become keeper of buckets, and to arm those that this session keeps, else to be deputy. Tries do not
// wait, so no error can leave a lock behind that nobody knows of. A deputy that waited for the keeper's lock would have a
// snapshot all that time, and keep vacuum from the table's dead rows; so it tries now and then.
const armSQL = `
select
  u.b,
  k.keeper,
  case when k.keeper and $5 then pg_try_advisory_lock($1, u.b) else false end,
  case when k.keeper then false when u.deputy then true else pg_try_advisory_lock($1, u.b + 2048) end,
  case when k.keeper then false else pg_try_advisory_xact_lock_shared($1, u.b) end
from unnest($2::integer[], $3::boolean[], $4::boolean[]) as u(b, kept, deputy)
cross join lateral (
  select case when u.kept then true else pg_try_advisory_lock($1, u.b + 1024) end as keeper
  offset 0
) as k`

// Keep makes this session the keeper of the sleeper's topics, as far as nobody else is, and the deputy of others. A keeper
// looks, and arms when it finds nothing.
func (g *Gate) Keep(ctx context.Context, conn *pgx.Conn, sleeper any, topics []string) (Arming, error) {
	return g.take(ctx, conn, sleeper, topics, false)
}

// Arm is Keep, and arms the gates of what the session keeps. If that is fresh the sleeper looks once more, and may sleep if
// that finds nothing. A topic that is armed already stays so and costs nothing. Commits in flight may hold a gate open:
// then the session is Keeper, and the sleeper looks, waits a little and arms again.
func (g *Gate) Arm(ctx context.Context, conn *pgx.Conn, sleeper any, topics []string) (Arming, error) {
	return g.take(ctx, conn, sleeper, topics, true)
}

func (g *Gate) take(ctx context.Context, conn *pgx.Conn, sleeper any, topics []string, arm bool) (Arming, error) {
	list, err := g.on(ctx, conn, topics)
	if err != nil {
		return Arming{}, err
	}
	fresh, open, err := g.try(ctx, list, sleeper, arm)
	if err != nil {
		return Arming{}, err
	}
	result := Arming{Open: open}
	for _, b := range list {
		if g.kept[b] == nil {
			result.Partial = true
			if g.deputy[b] != nil {
				result.Deputy, result.Standing = true, max(result.Standing, Deputy)
			}
			continue
		}
		if g.deputy[b] != nil { // no longer: somebody else's turn to watch
			delete(g.deputy, b)
			if err := g.unlockKeys(ctx, []int32{b + deputyRange}); err != nil {
				return Arming{}, err
			}
		}
		add(g.kept, b, sleeper)
		if arm && g.armed[b] == nil && result.Standing != Keeper { // one wait in vain is enough
			if got, err := g.wait(ctx, b); err != nil {
				return Arming{}, err
			} else if got {
				g.armed[b] = sleepers{}
			}
		}
		if g.armed[b] == nil {
			result.Standing = Keeper
			continue
		}
		if _, before := g.armed[b][sleeper]; !before || fresh[b] {
			result.Fresh = true
		}
		add(g.armed, b, sleeper)
		if result.Standing != Keeper {
			result.Standing = Armed
		}
	}
	return result, nil
}

// try takes what locks there are to be had without a wait, and returns the buckets that it tried to arm, and whether one
// that others keep is not armed.
func (g *Gate) try(ctx context.Context, list []int32, sleeper any, arm bool) (fresh map[int32]bool, open bool, err error) {
	var buckets []int32
	var kept, deputy []bool
	fresh = map[int32]bool{}
	for _, b := range list {
		if g.armed[b] == nil && (arm || g.kept[b] == nil) {
			buckets, kept, deputy = append(buckets, b), append(kept, g.kept[b] != nil), append(deputy, g.deputy[b] != nil)
			fresh[b] = true
		}
	}
	if len(buckets) == 0 {
		return fresh, false, nil
	}
	rows, _ := g.conn.Query(ctx, armSQL, g.oid, buckets, kept, deputy, arm)
	var b int32
	var isKeeper, isArmed, isDeputy, isOpen bool
	if _, err := pgx.ForEachRow(rows, []any{&b, &isKeeper, &isArmed, &isDeputy, &isOpen}, func() error {
		open = open || isOpen
		for _, got := range []struct {
			is bool
			m  map[int32]sleepers
		}{{isKeeper, g.kept}, {isArmed, g.armed}, {isDeputy, g.deputy}} {
			if got.is {
				add(got.m, b, sleeper)
			}
		}
		return nil
	}); err != nil {
		return nil, false, g.failed(fmt.Errorf("arm: %w", err))
	}
	return fresh, open, nil
}

// wait arms a bucket that commits in flight hold open, in the time that armWait allows. The wait is for a lock of the
// transaction, which an error releases; a wait for the session's lock could end in an error and hold the lock. While it
// waits, inserters that come find their try refused, and ring.
func (g *Gate) wait(ctx context.Context, b int32) (bool, error) {
	// One string of statements is one transaction.
	_, err := g.conn.PgConn().Exec(ctx, fmt.Sprintf(
		"set local lock_timeout = %d; select pg_advisory_xact_lock(%d, %d), pg_try_advisory_lock(%d, %d)",
		armWait.Milliseconds(), g.oid, b, g.oid, b)).ReadAll()
	var pgErr *pgconn.PgError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &pgErr) && pgErr.Code == "55P03":
		return false, nil
	}
	return false, g.failed(fmt.Errorf("arm: %w", err))
}

// Disarm stops the ringing for the sleeper, who looks by itself from now on and stays responsible: it is still keeper.
func (g *Gate) Disarm(ctx context.Context, conn *pgx.Conn, sleeper any) error {
	if g.conn != conn {
		return nil
	}
	return g.unlock(ctx, remove(g.armed, sleeper), nil)
}

// Release ends the sleeper's responsibility, armed or not: it is full, or stops. Somebody else should take over.
func (g *Gate) Release(ctx context.Context, conn *pgx.Conn, sleeper any) error {
	if g.conn != conn {
		return nil
	}
	return g.unlock(ctx, remove(g.armed, sleeper), append(shifted(remove(g.kept, sleeper), keeperRange), shifted(remove(g.deputy, sleeper), deputyRange)...))
}

// KeepsTopic reports whether the session is keeper of the topic's bucket for whatever sleeper, and so is rung for it.
func (g *Gate) KeepsTopic(ctx context.Context, conn *pgx.Conn, topic string) (bool, error) {
	if g.conn != conn || len(g.kept) == 0 {
		return false, nil
	}
	if len(g.bucket) > maxTopics {
		clear(g.bucket)
	}
	list, err := g.on(ctx, conn, []string{topic})
	return err == nil && g.kept[list[0]] != nil, err
}

// maxTopics bounds the memory of topics that others ring.
const maxTopics = 10_000

// Kept returns those of the topics that the session keeps for the sleeper.
func (g *Gate) Kept(conn *pgx.Conn, sleeper any, topics []string) (kept []string) {
	if g.conn != conn {
		return nil
	}
	for _, t := range topics {
		if b, known := g.bucket[t]; known {
			if _, ok := g.kept[b][sleeper]; ok {
				kept = append(kept, t)
			}
		}
	}
	return kept
}

// Keeps reports whether the session is keeper of any topic for the sleeper.
func (g *Gate) Keeps(conn *pgx.Conn, sleeper any) bool {
	if g.conn != conn {
		return false
	}
	for _, s := range g.kept {
		if _, ok := s[sleeper]; ok {
			return true
		}
	}
	return false
}

// unlock releases the gates first, the keeper's locks after: whoever becomes keeper then finds the gates free.
func (g *Gate) unlock(ctx context.Context, gates, keepers []int32) error {
	return g.unlockKeys(ctx, append(gates, keepers...))
}

func shifted(list []int32, by int32) []int32 {
	for i := range list {
		list[i] += by
	}
	return list
}

func (g *Gate) unlockKeys(ctx context.Context, keys []int32) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := g.conn.Exec(ctx, `select pg_advisory_unlock($1, k) from unnest($2::integer[]) as k`, g.oid, keys); err != nil {
		return g.failed(fmt.Errorf("unlock gate: %w", err))
	}
	return nil
}

// failed forgets what the session holds, which is no longer certain, and ends the session, which makes it nothing.
func (g *Gate) failed(err error) error {
	conn := g.conn
	g.conn = nil
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	return err
}

func add(m map[int32]sleepers, b int32, sleeper any) {
	if m[b] == nil {
		m[b] = sleepers{}
	}
	m[b][sleeper] = struct{}{}
}

// remove takes the sleeper out and returns the buckets that nobody is left for.
func remove(m map[int32]sleepers, sleeper any) []int32 {
	var empty []int32
	for b, s := range m {
		delete(s, sleeper)
		if len(s) == 0 {
			delete(m, b)
			empty = append(empty, b)
		}
	}
	return empty
}
