package lease

// Statements are the queue's statements by name.
func (q *Queue) Statements() map[string]string {
	return map[string]string{
		"claim": q.sql.claim, "claim expired": q.sql.claimExpired, "claim row": q.sql.claimRow,
		"renew": q.sql.renew, "settle": q.sql.settle, "state": q.sql.state, "look": q.sql.look,
		"requeue": q.sql.requeue, "bump": q.sql.bump, "pause": q.sql.pause, "resume": q.sql.resume, "counts": q.sql.counts,
	}
}
