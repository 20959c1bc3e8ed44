package embeddedpg

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// ownerVariable makes the test binary start a server, tell about it on stdout, and wait to be killed. Its value is Config.Dir.
const ownerVariable = "EMBEDDEDPG_TEST_OWNER"

type owned struct {
	PID int
	Dir string
	URL string
}

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(ownerVariable); ok {
		own(dir)
	}
	goleak.VerifyTestMain(m)
}

func own(dir string) {
	s, err := Start(context.Background(), Config{Dir: dir})
	if err != nil {
		panic(err)
	}
	// Threads end all the time; none of these may be the one the server was started on.
	var threads sync.WaitGroup
	for range 20 {
		threads.Go(runtime.LockOSThread)
	}
	threads.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(owned{s.PID(), s.Dir(), s.URL("")}); err != nil {
		panic(err)
	}
	select {}
}
