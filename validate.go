package pgwake

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

var errSQLNoRows = sql.ErrNoRows

// Limits of what a task holds; the tables check them too.
const (
	maxTypeBytes   = 200
	maxKeyBytes    = 500
	maxMaxAttempts = 1_000_000
	// maxDelay is so far ahead that only an overflow can have meant it.
	maxDelay = 200 * 365 * 24 * time.Hour

	defaultPriority = 5
)

// prepare checks a task and fills in its defaults, so that what the database would refuse, or hold for ever, is refused
// here in words that say what to change.
func (c *Client) prepare(task NewTask) (taskRow, error) {
	if task.Payload == nil {
		return taskRow{}, errors.New("enqueue: payload is nil")
	}
	name := task.Payload.TaskType()
	if err := CheckType(name); err != nil {
		return taskRow{}, fmt.Errorf("enqueue: %w", err)
	}
	row, err := c.fill(name, task)
	if err != nil {
		return taskRow{}, wrapTask(name, err)
	}
	return row, nil
}

func (c *Client) fill(name string, task NewTask) (row taskRow, err error) {
	var opts EnqueueOptions
	if task.Options != nil {
		opts = *task.Options
	}
	defaults := c.defaults(name)
	row = taskRow{ID: opts.ID, Type: name, Priority: defaultPriority}

	if row.Payload, err = encode(task.Payload); err != nil {
		return row, fmt.Errorf("payload: %w", err)
	}
	if opts.Metadata != nil {
		if row.Metadata, err = encode(opts.Metadata); err != nil {
			return row, fmt.Errorf("metadata: %w", err)
		}
	}

	if row.ID == uuid.Nil {
		if row.ID, err = uuid.NewV7(); err != nil {
			return row, err
		}
	}

	switch {
	case !opts.DueAt.IsZero():
		if y := opts.DueAt.UTC().Year(); y < 1970 || y > 9999 {
			return row, fmt.Errorf("due time %s is not between the years 1970 and 9999", opts.DueAt)
		}
		// As the column holds it, so that no driver or statement rounds it in its own way.
		row.DueAt = opts.DueAt.UTC().Truncate(time.Microsecond)
	case opts.Delay < 0 || opts.Delay > maxDelay:
		return row, fmt.Errorf("delay %s is not between 0 and %s", opts.Delay, maxDelay)
	case opts.Delay > 0:
		row.Delay = max(opts.Delay.Microseconds(), 1)
	}

	if p := cmp.Or(opts.Priority, defaults.Priority); p != nil {
		if *p < 0 || *p > 9 {
			return row, fmt.Errorf("priority %d is not between 0 (first) and 9 (last)", *p)
		}
		row.Priority = int16(*p)
	}

	attempts := cmp.Or(opts.MaxAttempts, defaults.MaxAttempts)
	if attempts < 0 || attempts > maxMaxAttempts {
		return row, fmt.Errorf("max attempts %d is not between 1 (no retry) and %d", attempts, maxMaxAttempts)
	}
	row.MaxAttempts = int32(attempts)

	row.UniqueKey = opts.UniqueKey
	if row.UniqueKey == "" && len(defaults.UniqueFields) > 0 {
		if row.UniqueKey, err = uniqueKey(row.Payload, defaults.UniqueFields); err != nil {
			return row, err
		}
	}
	return row, checkText("unique key", row.UniqueKey, maxKeyBytes)
}

// CheckType returns an error that says what is wrong with a task type's name, if anything is.
func CheckType(name string) error {
	if strings.TrimSpace(name) == "" {
		return errors.New("task type is empty")
	}
	return checkText("task type", name, maxTypeBytes)
}

func checkText(what, s string, limit int) error {
	switch {
	case len(s) > limit:
		return fmt.Errorf("%s has %d bytes, more than the %d allowed: %.40q…", what, len(s), limit, s)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %q is not valid UTF-8", what, s)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%s %q contains a NUL, which PostgreSQL cannot store", what, s)
	}
	return nil
}

// encode marshals a value to JSON that jsonb can hold. What it returns is the caller's own.
func encode(v any) ([]byte, error) {
	raw, given := v.(Raw)
	if given && len(raw.JSON) > 0 {
		if !json.Valid(raw.JSON) {
			return nil, errors.New("not valid JSON")
		}
		return bytes.Clone(raw.JSON), checkJSON(raw.JSON, true)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return text, checkJSON(text, given)
}

// checkJSON looks through valid JSON for what jsonb cannot hold: a NUL, written \u0000, half of a surrogate pair, bytes
// that are not UTF-8, and numbers beyond numeric. Marshalling writes the escape \ufffd for a Go string's invalid bytes, and only for them, so
// that escape is refused as well unless the JSON was given as such. A text that merely shows such an escape has its
// backslash escaped and passes.
func checkJSON(text []byte, given bool) error {
	if !utf8.Valid(text) {
		return errors.New("text is not valid UTF-8")
	}
	inString := false
	high := false // the escape before was the first half of a surrogate pair
	for i := 0; i < len(text); i++ {
		unit, isUnit := uint64(0), false
		switch c := text[i]; {
		case c == '"':
			inString = !inString
		case !inString && (c == '-' || c >= '0' && c <= '9'):
			number, exponent := i, false
			for i+1 < len(text) && strings.IndexByte("+-.eE0123456789", text[i+1]) >= 0 {
				i++
				exponent = exponent || text[i]|0x20 == 'e'
			}
			if exponent || i-number >= maxFraction { // others are in range
				if err := checkNumber(string(text[number : i+1])); err != nil {
					return err
				}
			}
		case c == '\\':
			if i+6 <= len(text) && text[i+1] == 'u' {
				var err error
				if unit, err = strconv.ParseUint(string(text[i+2:i+6]), 16, 16); err != nil {
					return fmt.Errorf("bad escape %q", text[i:i+6])
				}
				isUnit = true
				i += 4
			}
			i++
		}
		low := isUnit && unit >= 0xdc00 && unit <= 0xdfff
		switch {
		case high != low:
			return errors.New("half of a surrogate pair is not a character, and PostgreSQL cannot store it")
		case isUnit && unit == 0:
			return errors.New("a NUL character (\\u0000) cannot be stored by PostgreSQL: remove it, or encode the bytes, as base64 for example")
		case isUnit && unit == 0xfffd && !given:
			return errors.New("a string is not valid UTF-8: use []byte for bytes, or clean it with strings.ToValidUTF8")
		}
		high = isUnit && unit >= 0xd800 && unit <= 0xdbff
	}
	if high {
		return errors.New("half of a surrogate pair is not a character, and PostgreSQL cannot store it")
	}
	return nil
}

// maxFraction is how many digits PostgreSQL's numeric can have after the decimal point.
const maxFraction = 16_383

// checkNumber holds a JSON number to what PostgreSQL's numeric can have: 131,072 digits before the decimal point and
// 16,383 after it.
func checkNumber(number string) error {
	mantissa, exponent := strings.TrimPrefix(number, "-"), 0
	if at := strings.IndexAny(mantissa, "eE"); at >= 0 {
		var err error
		if exponent, err = strconv.Atoi(mantissa[at+1:]); err != nil || max(exponent, -exponent) > 1_000_000 {
			return fmt.Errorf("number %.40s is out of range", number)
		}
		mantissa = mantissa[:at]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := len(strings.TrimLeft(whole, "0"))
	if digits == 0 {
		digits = len(strings.TrimLeft(fraction, "0")) - len(fraction)
	}
	switch {
	case len(fraction)-exponent > maxFraction:
		return fmt.Errorf("number %.40s has more than the 16,383 digits after the decimal point that PostgreSQL can hold", number)
	case digits+exponent > 131_072 && strings.Trim(mantissa, "0.") != "":
		return fmt.Errorf("number %.40s has more than the 131,072 digits that PostgreSQL can hold", number)
	}
	return nil
}

// uniqueKey is the JSON array of the values of the payload's fields, or its hash where that is long.
func uniqueKey(payload []byte, fields []string) (string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(payload, &object); err != nil {
		return "", fmt.Errorf("unique fields need a payload that is a JSON object: %w", err)
	}
	values := make([]json.RawMessage, len(fields))
	for i, f := range fields {
		if values[i] = object[f]; values[i] == nil {
			values[i] = json.RawMessage("null")
		}
	}
	// Through any, so that objects have their keys sorted and equal values are equal text.
	var canonical any
	text, err := json.Marshal(values)
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber() // a float64 would make large integers equal that are not
		err = decoder.Decode(&canonical)
	}
	if err == nil {
		text, err = json.Marshal(canonical)
	}
	if err != nil {
		return "", fmt.Errorf("unique fields: %w", err)
	}
	if len(text) > 200 {
		sum := sha256.Sum256(text)
		return "sha256:" + hex.EncodeToString(sum[:]), nil
	}
	return string(text), nil
}
