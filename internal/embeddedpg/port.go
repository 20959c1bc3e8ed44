package embeddedpg

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// choosePort returns the port asked for, or a free one below the ranges systems take client ports from (32768 up on Linux, 49152 up
// elsewhere). From inside that range a client's connection could take the port while the server is down between Crash and
// Restart; even a client that dials it may be given it as its own port, and so reach itself.
func choosePort(fixed string) (int, error) {
	if fixed != "" {
		port, err := strconv.Atoi(fixed)
		if err != nil {
			return 0, fmt.Errorf("setting port: %w", err)
		}
		return port, nil
	}
	for range 100 {
		port := 15000 + rand.IntN(32000-15000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("find a free port: none of 100 tried between 15000 and 32000 on 127.0.0.1 is free")
}
