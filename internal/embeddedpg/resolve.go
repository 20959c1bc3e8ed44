package embeddedpg

import (
	"cmp"
	"os"
)

// Resolve returns the URL of a server that runs already: explicit if given, else PGWAKE_DATABASE_URL, else DATABASE_URL, else "", for
// which the caller may Start one.
func Resolve(explicit string) string {
	return cmp.Or(explicit, os.Getenv("PGWAKE_DATABASE_URL"), os.Getenv("DATABASE_URL"))
}
