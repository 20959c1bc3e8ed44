//go:build !linux

package notify

import (
	"net"
	"time"
)

// setUserTimeout does nothing: only Linux has TCP_USER_TIMEOUT. Keepalive and the
// watchdog remain.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
