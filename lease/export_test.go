package lease

import "github.com/jackc/pgx/v5"

// Statements are the queue's statements by name.
func (q *Queue) Statements() map[string]string {
	sql := map[string]string{}
	for name, s := range q.named() {
		if s.sql == "" {
			continue // not of this table
		}
		sql[name] = s.sql
	}
	return sql
}

// StatementArgs are the values of a statement's parameters in their order.
func (q *Queue) StatementArgs(name string, args pgx.NamedArgs) []any {
	return q.named()[name].args(args)
}

func (q *Queue) named() map[string]statement {
	return map[string]statement{
		"claim": q.sql.claim, "turn": q.sql.turn, "claim expired": q.sql.claimExpired, "claim row": q.sql.claimRow,
		"renew": q.sql.renew, "settle": q.sql.settle, "finish": q.sql.finish, "state": q.sql.state, "look": q.sql.look, "look back": q.sql.lookBack,
		"requeue": q.sql.requeue, "bump": q.sql.bump, "pause": q.sql.pause, "resume": q.sql.resume, "counts": q.sql.counts,
	}
}

// PairArgs are the parameters of every priority of the types, from the marks on that a claim begins at.
func (q *Queue) PairArgs(types []string, limit int, m *Marks) pgx.NamedArgs {
	p := q.pairs(types, nil, limit)
	return p.args(m.start(p, false))
}

// SetDear has looks begin at the marks, as if one from the start took long.
func (m *Marks) SetDear() { m.dear = true }
