package notify

import (
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
)

// maxChannel is NAMEDATALEN - 1: LISTEN silently cuts longer names,
// pg_notify refuses them.
const maxChannel = 63

// Channel returns the channel on which changes of a table are announced:
// "pgwake_" and the md5 of schema, a dot and table in hex, 39 bytes whatever the
// names are. A hash, because schema and table may have 63 bytes each and a
// channel has no more than 63. SQL computes the same as
//
//	'pgwake_' || pg_catalog.md5(schema || '.' || table)
//
// (in a database whose encoding is UTF-8, or with ASCII names). Two tables
// whose joined names are equal ("a.b" + "c", "a" + "b.c") share a channel; they
// wake each other needlessly and lose nothing.
func Channel(schema, table string) string {
	sum := md5.Sum([]byte(schema + "." + table))
	return "pgwake_" + hex.EncodeToString(sum[:])
}

// probeChannel returns a channel name that no other listener has.
func probeChannel() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return "pgwake_" + hex.EncodeToString(b[:])
}
