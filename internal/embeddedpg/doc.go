// Package embeddedpg runs a private PostgreSQL server for the demo, the tests and the benchmarks: one that is thrown away
// at Stop, or one whose directory is kept between runs.
//
// The programs (initdb, postgres) come from Config.BinDir or PGWAKE_POSTGRES_BIN, the PATH, pg_config, the folders
// distributions install to, and last from a download; see [Config.BinDir]. PostgreSQL refuses to run as root, so a root process
// runs them as user postgres, else nobody.
//
// # Layout
//
// Everything lies in one directory, Config.Dir or a temporary one:
//
//	lock           flock-ed by the process that owns the server, for as long as it lives; holds its process id
//	postgres.conf  the settings, written at every Start; includes data/postgresql.conf before them
//	postgres.log   what the server wrote since Start
//	data/          the data directory
//	run/           the Unix socket, if the path is short enough for one
//
// # Who ends the server
//
// The caller, by Stop; a program that wants this at SIGINT and SIGTERM too calls Stop on the way out of its signal context. The
// server is in a session of its own, so Ctrl-C in a terminal does not reach it before the program has drained.
//
//	owner ends by            Linux                                 other systems
//	Stop                     fast shutdown, directory removed      the same
//	SIGKILL, panic, os.Exit  kernel signals the postmaster, which  server runs on; the next Start
//	                         ends; next Start removes what it left stops it and removes what it left
//
// A kept directory is never removed, and a Start on one whose owner is gone ends a server that still runs there first.
//
// # Security
//
// The server listens on 127.0.0.1 and trusts whoever connects, as superuser. On a machine shared with people you do not trust,
// use a server of your own.
package embeddedpg
