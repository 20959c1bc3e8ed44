//go:build unix

package proof_test

import (
	"os"
	"testing"

	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		os.Exit(work(text))
	}
	pgtest.Main(m)
}
