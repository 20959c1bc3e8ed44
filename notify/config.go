package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config tells a [Listener] how to connect, what to listen to and whom to tell.
// Connect and Channels are required; the zero value of every other field is its
// default.
type Config struct {
	// Connect returns a session for the listener alone, which closes it. It must
	// be direct (no pooler in transaction mode) and must return when ctx ends.
	// [Connector] makes one that also leaves nothing behind when the connection
	// breaks; with another function pgx may keep a goroutine for up to 15 s
	// that tries to send a cancel request over a dead network.
	Connect func(ctx context.Context) (*pgx.Conn, error)

	// Ring sends a notification, and must use another connection than the
	// listener's: it is the watchdog's probe. It must return when ctx ends, and is called about once
	// per Watchdog of silence. Nil switches the watchdog off; a half-open
	// connection is then noticed only by TCP, see [KeepAlive].
	Ring func(ctx context.Context, channel, payload string) error

	// Channels maps each channel to its handler, called with the payload on the
	// reading goroutine; it must not block. At least one is required. Names have
	// 1 to 63 bytes and are taken literally, case included.
	Channels map[string]func(payload string)

	// OnConnect is called on the reading goroutine after each connect, when
	// LISTEN is in effect on every channel and the server is a writable primary,
	// before any handler. Whatever was committed earlier may have been missed:
	// have somebody look. It must not block.
	OnConnect func()

	// OnDisconnect is called on the reading goroutine once after each OnConnect,
	// when the connection is known to be lost or Run ends. It must not block.
	OnDisconnect func()

	// Watchdog is the silence after which the connection is probed. Any
	// notification counts as a sign of life. Default 10 s.
	Watchdog time.Duration

	// ProbeTimeout bounds the sending of a probe, and then the wait for its
	// echo. Default 5 s.
	ProbeTimeout time.Duration

	// ConnectTimeout bounds the call of Connect, and then LISTEN on all channels
	// with the check of the server. Default 10 s.
	ConnectTimeout time.Duration

	// MinBackoff is the wait, give or take a third, before the first attempt to reconnect.
	// It doubles with each failure. Default 50 ms.
	MinBackoff time.Duration

	// MaxBackoff is the longest wait between two attempts; once reached, waits
	// lie between half of it and all of it. Default 5 s.
	MaxBackoff time.Duration

	// Logger receives one line per change of state. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns a copy that the caller's later writes do not reach.
func (c Config) withDefaults() Config {
	setDefault(&c.Watchdog, 10*time.Second)
	setDefault(&c.ProbeTimeout, 5*time.Second)
	setDefault(&c.ConnectTimeout, 10*time.Second)
	setDefault(&c.MinBackoff, 50*time.Millisecond)
	setDefault(&c.MaxBackoff, max(5*time.Second, c.MinBackoff))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Channels = maps.Clone(c.Channels)
	return c
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

func (c Config) validate() error {
	if c.Connect == nil {
		return errors.New("notify: Config.Connect is required")
	}
	if len(c.Channels) == 0 {
		return errors.New("notify: Config.Channels is empty: name at least one channel")
	}
	for channel, handler := range c.Channels {
		if channel == "" || len(channel) > maxChannel {
			return fmt.Errorf("notify: channel name %q has %d bytes: Postgres takes 1 to %d", channel, len(channel), maxChannel)
		}
		if strings.ContainsRune(channel, 0) {
			return fmt.Errorf("notify: channel name %q contains NUL, which Postgres does not take", channel)
		}
		if handler == nil {
			return fmt.Errorf("notify: channel %q has no handler", channel)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Watchdog", c.Watchdog},
		{"ProbeTimeout", c.ProbeTimeout},
		{"ConnectTimeout", c.ConnectTimeout},
		{"MinBackoff", c.MinBackoff},
		{"MaxBackoff", c.MaxBackoff},
	} {
		if d.value < 0 {
			return fmt.Errorf("notify: Config.%s is negative: %v", d.name, d.value)
		}
	}
	if c.MaxBackoff < c.MinBackoff {
		return fmt.Errorf("notify: Config.MaxBackoff %v is below MinBackoff %v", c.MaxBackoff, c.MinBackoff)
	}
	return nil
}
