// Package demo archives a web site with a fleet of worker processes, kills one of them with SIGKILL half-way, and then
// proves from the database and from fresh fetches that nothing was lost and nothing was done twice.
//
// # What runs where
//
//	parent      PostgreSQL (unless one is given), the web site (unless one is given), the view, the kill, the proof
//	worker-1…n  this program again, with a hidden subcommand: handlers crawl.page, crawl.extract and demo.ping
//
// A worker's standard input is a pipe whose other end the parent holds; its end tells the worker to stop, however the
// parent ended. On Linux the kernel kills the workers of a dead parent as well.
//
// # Exactly once
//
// A handler writes what it found, the tasks that follow from it, one row of demo.effect and its own completion in one
// transaction. Only demo.url, the set of known addresses, has a unique key; the other tables have none on purpose, so that
// a task settled twice would leave its effects twice, to be counted.
package demo
