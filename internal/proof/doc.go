// Package proof shows what pgwake promises of its row protocol, its wake-ups and its recovery, with real servers, real
// processes and real signals. It has tests alone, one a promise, each of which ends with one line:
//
//	prove 1.5: kill: 20 of 20 run elsewhere after 13.2 s, … (goal …) ok
//
// The line says what was measured, what was promised, and "ok" or "short". A test that is short fails.
//
//	1.3  an idle worker starts a task as soon as it is enqueued
//	1.4  a scheduled task starts when it is due
//	1.5  the tasks of a killed worker run elsewhere when their leases end, those of a stopped one at once
//	1.6  a worker that was frozen past its leases can write nothing any more
//	1.7  effects happen exactly once and no task is lost while worker processes are killed
//	1.8  what breaks lease protocols does not break this one: a server crash before the claim is on disk, a row locked by
//	     somebody, operators that move running tasks, plans made while the queue was empty
//	2.3  no task waits beside a free slot, at whatever rate and in whatever transactions it comes, listeners lost or not
//	2.8  when the worker that is to be woken is killed, stopped or cut off, one task is a little late and no more; a task
//	     whose row is locked when it falls due starts when the lock ends
//
// Without a flag each runs in a small version, beside the tests of other packages, which judges what happens but not how
// fast. The full version wants a quiet machine for some minutes:
//
//	go test ./internal/proof -run '^TestProve_1_3$' -count=1 -timeout 30m -v -args -full
//
// Worker processes are this test binary again; an environment variable tells it so before any test begins.
package proof
