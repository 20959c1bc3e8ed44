package lease

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// markSlack is how far behind the clock marks stay, as SQL. Transactions commit out of order; a row that is older than a
// second when its transaction commits must be told of by [Marks.Lower].
const markSlack = `interval '2 s'`

// markFloor is the least (retry_at, key) of a pair to be looked at, as SQL over its mark.
func markFloor(alias string) string {
	return strings.ReplaceAll(`least(p.mark_at, now() - `+markSlack+`), case when p.mark_at <= now() - `+markSlack+` then p.mark_key end`, "p.", alias+".")
}

// dearLook is how long a look at everything may take before looks begin at the marks, too.
const dearLook = 10 * time.Millisecond

// Marks remember how far a claimer has come in the order of due rows, by type and priority. Claimed rows leave dead index
// entries behind, which vacuum cannot remove while somebody holds an old snapshot; a claim that begins at its mark does
// not walk over them.
//
// What is queued before a mark is not lost: every [Queue.Look] begins at the start, and takes marks back to what it finds.
// Only while that is dear, because of a held snapshot, does it begin where the last one ended, and what appears still
// further back is found by [Queue.LookBack], or told of by [Marks.Lower].
//
// A Marks belongs to one claimer; Lower, Reset and LookBack may be called from anywhere. The zero value is ready to use,
// and a nil Marks begins at the start always.
type Marks struct {
	mu      sync.Mutex
	of      map[pair]*mark
	lowered int       // how often somebody has lowered a mark
	since   int       // lowered, as of the claim or look under way
	dear    bool      // looks begin at the marks
	slow    int       // looks in a row that took too long
	floor   time.Time // how far marks could go at the last look
	back    sweepBack
}

// pair is what a claim probes the index for.
type pair struct {
	typ      string
	priority int16
}

// mark is how far the claims of a pair have come, and how far looks have seen nothing queued.
type mark struct{ taken, seen place }

// place is a place in the order of due rows; the zero place is before all of them.
type place struct {
	at  time.Time
	key string
}

// before compares keys as text, which is right for those of type uuid; see [Queue.place].
func (a place) before(b place) bool { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.key, b.key)) < 0 }

func earlier(a, b place) place {
	if b.before(a) {
		return b
	}
	return a
}

// place is that of a row. Keys of other types than uuid are not ordered here; the place is then before all rows of the
// same instant.
func (q *Queue) place(at time.Time, key string) place {
	if q.table.KeyType != "uuid" {
		return place{at: at.Add(-time.Microsecond)}
	}
	return place{at, key}
}

// Lower takes the marks of a type back to an instant: rows due since then have appeared late. The zero time stands for all
// rows.
func (m *Marks) Lower(typ string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lowered++
	to := place{}
	if !at.IsZero() {
		to.at = at.Add(-time.Microsecond)
	}
	for p, mark := range m.of {
		if p.typ == typ {
			mark.taken, mark.seen = earlier(mark.taken, to), earlier(mark.seen, to)
		}
	}
}

// Reset takes all marks back to the start: anything may have appeared.
func (m *Marks) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lowered++
	m.of, m.dear = nil, false
}

// pairs are all priorities of all types, most urgent priority first.
type pairs struct {
	list       []pair
	types      []string
	priorities []int16
	limits     []int32
}

func (q *Queue) pairs(types []string, limits []int32, limit int) pairs {
	priorities := int16(1)
	if q.table.Priority != "" {
		priorities = Priorities
	}
	var ps pairs
	for priority := range priorities {
		for i, typ := range types {
			most := int32(limit)
			if limits != nil {
				most = limits[i]
			}
			ps.list = append(ps.list, pair{typ, priority})
			ps.types, ps.priorities, ps.limits = append(ps.types, typ), append(ps.priorities, priority), append(ps.limits, most)
		}
	}
	return ps
}

// args are the pairs as parameters of a statement, with their marks.
func (ps pairs) args(marks []place) pgx.NamedArgs {
	ats, keys := make([]pgtype.Timestamptz, len(marks)), make([]*string, len(marks))
	for i, m := range marks {
		ats[i] = pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}
		if !m.at.IsZero() {
			ats[i] = pgtype.Timestamptz{Valid: true, Time: m.at}
		}
		if m.key != "" {
			keys[i] = &m.key
		}
	}
	return pgx.NamedArgs{"types": ps.types, "priorities": ps.priorities, "limits": ps.limits, "mark_ats": ats, "mark_keys": keys}
}

// start are the marks that a claim, or a look if seen is true, begins at.
func (m *Marks) start(ps pairs, seen bool) []place {
	places := make([]place, len(ps.list))
	if m == nil {
		return places
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.since = m.lowered
	for i, p := range ps.list {
		if mark := m.of[p]; mark != nil && !seen {
			places[i] = mark.taken
		} else if mark != nil && m.dear {
			places[i] = mark.seen
		}
	}
	return places
}

// claimed moves marks on to the last rows claimed, unless somebody has lowered one meanwhile.
func (m *Marks) claimed(q *Queue, leases []*Lease) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lowered != m.since {
		return
	}
	for _, l := range leases {
		mark := m.mark(pair{l.Type, int16(l.Priority)})
		if at := q.place(l.DueAt, l.Key); mark.taken.before(at) {
			mark.taken = at
		}
	}
}

func (m *Marks) mark(p pair) *mark {
	if m.of == nil {
		m.of = map[pair]*mark{}
	}
	if m.of[p] == nil {
		m.of[p] = &mark{}
	}
	return m.of[p]
}

// looked takes note of the first queued row of each pair, where there is one, and that there is nothing queued before
// that, or before the floor. The look took so long.
func (m *Marks) looked(ps pairs, first map[pair]place, floor time.Time, took time.Duration) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.floor = floor; took <= dearLook {
		m.slow = 0
	} else if m.slow++; m.slow > 1 { // once may have been the machine
		m.dear = true
	}
	if m.lowered != m.since {
		return
	}
	for _, p := range ps.list {
		mark, seen := m.mark(p), place{at: floor}
		if at, found := first[p]; found {
			seen, mark.taken = earlier(seen, at), earlier(mark.taken, at)
		}
		mark.seen = seen
		if mark.taken.before(seen) {
			mark.taken = seen
		}
	}
}
