package doctor

import (
	"testing"

	"github.com/pgwake/pgwake/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
