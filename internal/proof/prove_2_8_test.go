//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake"
	"github.com/pgwake/pgwake/internal/pgtest"
	"github.com/pgwake/pgwake/internal/tcpproxy"
)

// Whatever happens to the worker that is to be woken, one task starts late, within a second, and the ones after it start as
// if nothing had happened. A task whose row is locked when it falls due starts when that lock ends.
func TestProve_2_8(t *testing.T) {
	p := prove(t, "2.8", "keeper gone: one task ≤ 1 s late, all others ≤ 100 ms; locked row: ≤ 200 ms after the lock")
	for _, part := range []struct {
		name string
		run  func(*testing.T, *proof)
	}{
		{"killed", func(t *testing.T, p *proof) { newSuccession(t, p, "killed").killed() }},
		{"stopped", func(t *testing.T, p *proof) { newSuccession(t, p, "stopped").stopped() }},
		{"cut off", func(t *testing.T, p *proof) { newSuccession(t, p, "cut off").cutOff() }},
		{"row locked when it falls due", lockedWhenDue},
	} {
		t.Run(part.name, func(t *testing.T) {
			if !*full {
				t.Parallel()
			}
			part.run(t, p)
		})
	}
}

const (
	oneLate = time.Second            // how late one task may be
	prompt  = 100 * time.Millisecond // how late the others may be
)

// noted notes when it began.
func (w *worked) noted(_ context.Context, run *pgwake.Run) error { return w.event(run, "begun", "") }

// succession is a fleet whose keeper comes to harm.
type succession struct {
	*bench
	p     *proof
	name  string
	born  int
	fleet []*process
	harms int

	first, after times // lateness of the first late task after each harm, and of all others
}

func newSuccession(t *testing.T, p *proof, name string) *succession {
	return &succession{bench: newBench(t), p: p, name: name}
}

// join adds a worker process that reaches the database by a URL.
func (s *succession) join(url string) *process {
	s.Helper()
	b := *s.bench
	b.url = url
	s.born++
	w := b.launch(job{
		Role: "noted", Name: fmt.Sprintf("%s %d", s.name, s.born), Slots: 4, Lease: time.Minute, Sweep: farSweep, Drain: patience,
	}).ready()
	s.fleet = append(s.fleet, w)
	return w
}

// keeperSQL names the sessions that keep the gate of a type, and that wait to be rung by it.
const keeperSQL = `
select a.application_name
from pg_locks as l
join pg_stat_activity as a using (pid)
where l.locktype = 'advisory' and l.granted and l.mode = 'ExclusiveLock' and l.classid = 'pgwake.tasks'::regclass
  and l.database = (select oid from pg_database where datname = current_database())
  and l.objid::bigint in (hashtext($1) & 1023, (hashtext($1) & 1023) + 1024)
order by l.objid`

// keeper waits until one worker keeps the gate and is armed, and returns its process.
func (s *succession) keeper() *process {
	s.Helper()
	var name string
	pgtest.WaitFor(s, patience, "one keeper, armed", func() bool {
		names := list[string](s.bench, keeperSQL, "noted")
		if len(names) != 2 || names[0] != names[1] {
			return false
		}
		name = strings.TrimPrefix(names[0], workerSessions)
		return true
	})
	for _, w := range s.fleet {
		if w.name == name {
			return w
		}
	}
	s.Fatalf("the keeper is %q", name)
	return nil
}

// late enqueues a task and returns how long after its transaction began it started.
func (s *succession) late() time.Duration {
	s.Helper()
	id := s.enqueue(1, pgwake.Raw{Type: "noted"})[0]
	s.await(1, "task begun", `select count(*) from proof.event where task = $1`, id)
	s.await(0, "tasks left", `select count(*) from pgwake.tasks where id = $1`, id)
	return scan[time.Duration](s.bench, `
		select e.at - a.due_at from proof.event as e join pgwake.task_archive as a on a.id = e.task where e.task = $1`, id)
}

// harmed measures what follows on a harm, for some time. One task may be late: not always the first one, whose ring may
// have come before the harm took effect.
func (s *succession) harmed(span time.Duration) {
	s.Helper()
	began, lateBefore := time.Now(), 0
	for n, passed := 1, time.Duration(0); passed < span; n, passed = n+1, time.Since(began) {
		late := s.late()
		if late > prompt {
			s.Logf("%s: task %d, enqueued %s after the harm, is late by %s", s.name, n, passed, late)
			lateBefore++
		}
		if lateBefore == 1 && late > prompt {
			s.first = append(s.first, late)
		} else {
			s.after = append(s.after, late)
		}
		pause(rand.N(sized(200*time.Millisecond, 40*time.Millisecond)))
	}
	s.harms++
}

func (s *succession) judge() {
	s.Helper()
	s.p.figure("%d times %s: a task late by %s, %d others by %s", s.harms, s.name, s.first, len(s.after), s.after)
	s.p.timely(s.first.max() <= oneLate, "%s: a task is late by %s", s.name, s.first.max())
	s.p.timely(s.after.max() <= prompt, "%s: a second task is late, by %s", s.name, s.after.max())
	if n := s.count(`select count(*) from pgwake.task_archive where attempt > 1`); n > 0 {
		s.Errorf("%s: %d tasks ran more than once", s.name, n)
	}
}

// killed ends the keeper by SIGKILL and puts another process in its place.
func (s *succession) killed() {
	for range 3 {
		s.join(s.url)
	}
	for range sized(20, 2) {
		keeper := s.keeper()
		s.late()
		pause(rand.N(time.Second)) // in whatever part of its turns the deputy is
		keeper.kill()
		s.harmed(sized(3*time.Second, 1500*time.Millisecond))
		s.join(s.url)
	}
	s.judge()
}

// stopped ends the keeper's part by SIGSTOP, for 30 s, in which its sessions are alive.
func (s *succession) stopped() {
	for range 3 {
		s.join(s.url)
	}
	for range sized(3, 1) {
		keeper := s.keeper()
		s.late()
		pause(rand.N(time.Second))
		keeper.freeze()
		s.harmed(sized(30*time.Second, 2*time.Second))
		if now := s.keeper(); now == keeper {
			s.Errorf("%s is still the keeper", now.name)
		}
		keeper.thaw()
		for range 5 { // it does no harm when it is back
			s.after = append(s.after, s.late())
		}
	}
	s.judge()
}

// cutOff swallows everything between the keeper and the server, which closes nothing.
func (s *succession) cutOff() {
	address, err := url.Parse(s.url)
	if err != nil {
		s.Fatal(err)
	}
	for range sized(2, 1) {
		proxy := tcpproxy.New(s, address.Host)
		through := *address
		through.Host = proxy.Addr()
		cut := s.join(through.String())
		s.keeper()
		others := []*process{s.join(s.url), s.join(s.url)}
		if keeper := s.keeper(); keeper != cut {
			s.Fatalf("%s is the keeper, not %s", keeper.name, cut.name)
		}
		s.late()
		pause(rand.N(time.Second))
		proxy.Blackhole(true)
		s.harmed(sized(30*time.Second, 2*time.Second))
		proxy.Blackhole(false)
		for range 5 {
			s.after = append(s.after, s.late())
		}
		for _, w := range append(others, cut) {
			w.kill()
		}
		s.awaitNobody()
	}
	s.judge()
}

// awaitNobody waits until the sessions of killed processes are gone.
func (s *succession) awaitNobody() {
	s.Helper()
	s.await(0, "sessions of workers", `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'pgwake %'`)
}

// lockedWhenDue has another session lock the row of a task when it falls due, and let it go some time later, with a
// change or without. Nothing rings then.
func lockedWhenDue(t *testing.T, p *proof) {
	const limit = 200 * time.Millisecond
	s := newSuccession(t, p, "locked")
	for range 2 {
		s.join(s.url)
	}
	s.keeper()
	holds := sized([]time.Duration{50 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 15 * time.Second}, []time.Duration{300 * time.Millisecond})
	var late times
	for range sized(2, 1) {
		for _, hold := range holds {
			for _, sql := range []string{
				`select from pgwake.tasks where id = $1 for update`,
				`update pgwake.tasks set metadata = '{"seen": true}' where id = $1`,
			} {
				late = append(late, s.locked(sql, hold-hold/8+rand.N(hold/4)))
			}
		}
	}
	p.figure("%d tasks locked when due, for up to %s: started %s after the lock", len(late), holds[len(holds)-1], late)
	p.timely(late.max() <= limit, "a task started %s after its row was no longer locked", late.max())
}

// locked locks a task's row by a statement before it falls due, for some time after that, and returns how long after the
// lock's end the task started.
func (s *succession) locked(sql string, hold time.Duration) time.Duration {
	s.Helper()
	const ahead = 200 * time.Millisecond
	ctx := s.Context()
	e, err := s.client.Enqueue(ctx, pgwake.Raw{Type: "noted"}, &pgwake.EnqueueOptions{Delay: ahead})
	if err != nil {
		s.Fatal(err)
	}
	var released time.Time
	if err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sql, e.ID); err != nil {
			return err
		}
		pause(ahead + hold)
		return tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&released)
	}); err != nil {
		s.Fatal(err)
	}
	s.await(1, "task begun", `select count(*) from proof.event where task = $1`, e.ID)
	began := scan[time.Time](s.bench, `select at from proof.event where task = $1`, e.ID)
	if began.Before(released) {
		s.Errorf("task %s began %s before its row was free", e.ID, released.Sub(began))
	}
	return began.Sub(released)
}
