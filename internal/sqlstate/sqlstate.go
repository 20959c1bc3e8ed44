// Package sqlstate is the one place that judges PostgreSQL's error codes.
package sqlstate

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// of returns the error's SQLSTATE and constraint, both empty if no server sent it. It looks for methods too, so that
// errors of database/sql drivers other than pgx are understood.
func of(err error) (code, constraint string) {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code, pgErr.ConstraintName
	}
	var other interface{ SQLState() string }
	if errors.As(err, &other) {
		return other.SQLState(), ""
	}
	return "", ""
}

// Retryable reports a failure that the same transaction, run again, may well not have: serialization failure, deadlock.
func Retryable(err error) bool {
	code, _ := of(err)
	return code == "40001" || code == "40P01"
}

// Data reports that the values of a statement are to blame, so that repeating it as it is cannot help: classes 21
// (cardinality violation), 22 (data exception), 23 (integrity constraint violation) and 54 (program limit exceeded).
func Data(err error) bool {
	code, _ := of(err)
	return len(code) == 5 && strings.Contains("21 22 23 54", code[:2])
}

// Row reports a failure that one row of a statement may have caused: any of a server's but those of the session, of the
// server's state or of its resources, which every row would meet. A statement that timed out may have met one slow row.
func Row(err error) bool {
	code, _ := of(err)
	return code == "57014" || len(code) == 5 && !strings.Contains("08 25 28 3D 40 53 55 57 58", code[:2])
}

// ReadOnly reports that the server is no primary, or no longer one.
func ReadOnly(err error) bool {
	code, _ := of(err)
	return code == "25006"
}

// Unique reports a violation of the unique constraint or index named.
func Unique(err error, constraint string) bool {
	code, name := of(err)
	return code == "23505" && (name == constraint || name == "" && strings.Contains(err.Error(), constraint))
}

// NoPartition reports a row for which a partitioned table has no partition. The code is that of a check violation; only
// the latter names a constraint.
func NoPartition(err error) bool {
	code, constraint := of(err)
	return code == "23514" && constraint == ""
}

// Missing reports a schema, table or function that does not exist.
func Missing(err error) bool {
	code, _ := of(err)
	return code == "42P01" || code == "3F000" || code == "42883"
}

// LockTimeout reports that a lock was not to be had in time.
func LockTimeout(err error) bool {
	code, _ := of(err)
	return code == "55P03"
}

// Denied reports a missing privilege.
func Denied(err error) bool {
	code, _ := of(err)
	return code == "42501"
}

// Server reports whether a server answered at all: an error without a code is one of the connection.
func Server(err error) bool {
	code, _ := of(err)
	return code != ""
}
