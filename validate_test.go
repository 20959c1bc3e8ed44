package pgwake

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgwake/pgwake/internal/pgtest"
)

// offline is a client without a database: what it refuses is refused before one is asked.
func offline(t testing.TB) *Client {
	t.Helper()
	c, err := NewClient(t.Context(), nil, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// noTx fails the test if a statement is sent.
type noTx struct{ testing.TB }

func (n noTx) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	n.Fatalf("sent to the database: %s", sql)
	return nil
}

func TestRefused(t *testing.T) {
	t.Parallel()
	c := offline(t)
	year := func(y int) time.Time { return time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC) }
	opts := func(o EnqueueOptions) *EnqueueOptions { return &o }
	for name, tc := range map[string]struct {
		payload Payload
		opts    *EnqueueOptions
		want    string // what to change
	}{
		"nil":                      {nil, nil, "payload is nil"},
		"empty type":               {task("", ""), nil, "task type is empty"},
		"blank type":               {task(" \t", ""), nil, "task type is empty"},
		"long type":                {task(strings.Repeat("x", 201), ""), nil, "201 bytes, more than the 200 allowed"},
		"long type of 4 bytes":     {task(strings.Repeat("😀", 51), ""), nil, "204 bytes, more than the 200 allowed"},
		"type not UTF-8":           {task("a\xff", ""), nil, "not valid UTF-8"},
		"type with NUL":            {task("a\x00b", ""), nil, "NUL"},
		"payload not JSON":         {task("a", "{"), nil, "not valid JSON"},
		"two payloads":             {task("a", "{} {}"), nil, "not valid JSON"},
		"string with NUL":          {typed{Text: "a\x00b"}, nil, "base64"},
		"string not UTF-8":         {typed{Text: "a\xffb"}, nil, "strings.ToValidUTF8"},
		"key with NUL":             {typed{Map: map[string]any{"a\x00": 1}}, nil, "base64"},
		"key not UTF-8":            {typed{Map: map[string]any{"a\xff": 1}}, nil, "strings.ToValidUTF8"},
		"deep string with NUL":     {typed{Any: []any{map[string]any{"x": []string{"\x00"}}}}, nil, "base64"},
		"raw NUL":                  {task("a", `"\u0000"`), nil, "base64"},
		"raw NUL after backslash":  {task("a", `"\\\u0000"`), nil, "base64"},
		"raw bytes":                {task("a", "\"\xff\""), nil, "not valid UTF-8"},
		"lone high surrogate":      {task("a", `"\ud800"`), nil, "surrogate"},
		"lone low surrogate":       {task("a", `"\udc00"`), nil, "surrogate"},
		"surrogates turned":        {task("a", `"\udc00\ud800"`), nil, "surrogate"},
		"two high surrogates":      {task("a", `"\ud800\ud800\udc00"`), nil, "surrogate"},
		"surrogate before text":    {task("a", `"\ud800x\udc00"`), nil, "surrogate"},
		"surrogate before escape":  {task("a", `"\uD800\n\uDC00"`), nil, "surrogate"},
		"surrogate in key":         {task("a", `{"\ud800": 1}`), nil, "surrogate"},
		"large number":             {task("a", "1e131072"), nil, "number"},
		"larger number":            {task("a", "[0, 1E+99999999999999999999]"), nil, "number"},
		"long number":              {task("a", "-"+strings.Repeat("9", 131073)), nil, "number"},
		"small number":             {task("a", "1e-16384"), nil, "number"},
		"long fraction":            {task("a", "0."+strings.Repeat("1", 16384)), nil, "number"},
		"unmarshallable":           {typed{Any: math.Inf(1)}, nil, "unsupported value"},
		"metadata with NUL":        {typed{}, opts(EnqueueOptions{Metadata: map[string]any{"a": "\x00"}}), "metadata: "},
		"metadata not UTF-8":       {typed{}, opts(EnqueueOptions{Metadata: map[string]any{"a": "\xff"}}), "metadata: "},
		"metadata unmarshallable":  {typed{}, opts(EnqueueOptions{Metadata: map[string]any{"a": func() {}}}), "metadata: "},
		"priority -1":              {typed{}, opts(EnqueueOptions{Priority: new(-1)}), "between 0 (first) and 9 (last)"},
		"priority 10":              {typed{}, opts(EnqueueOptions{Priority: new(10)}), "between 0 (first) and 9 (last)"},
		"priority beyond smallint": {typed{}, opts(EnqueueOptions{Priority: new(65_536)}), "between 0 (first) and 9 (last)"},
		"attempts -1":              {typed{}, opts(EnqueueOptions{MaxAttempts: -1}), "between 1 (no retry) and 1000000"},
		"attempts 1000001":         {typed{}, opts(EnqueueOptions{MaxAttempts: 1_000_001}), "between 1 (no retry) and 1000000"},
		"attempts beyond integer":  {typed{}, opts(EnqueueOptions{MaxAttempts: 1 << 32}), "between 1 (no retry) and 1000000"},
		"delay -1 ns":              {typed{}, opts(EnqueueOptions{Delay: -1}), "not between 0 and"},
		"delay overflown":          {typed{}, opts(EnqueueOptions{Delay: math.MaxInt64}), "not between 0 and"},
		"due in 1969":              {typed{}, opts(EnqueueOptions{DueAt: year(1970).Add(-1)}), "between the years 1970 and 9999"},
		"due in 10000":             {typed{}, opts(EnqueueOptions{DueAt: year(10_000)}), "between the years 1970 and 9999"},
		"due in 292277":            {typed{}, opts(EnqueueOptions{DueAt: time.Unix(math.MaxInt64/1_000_000, 0)}), "between the years 1970 and 9999"},
		"long key":                 {typed{}, opts(EnqueueOptions{UniqueKey: strings.Repeat("k", 501)}), "501 bytes, more than the 500 allowed"},
		"key not UTF-8 ":           {typed{}, opts(EnqueueOptions{UniqueKey: "\xff"}), "unique key"},
		"key with NUL ":            {typed{}, opts(EnqueueOptions{UniqueKey: "\x00"}), "unique key"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.EnqueueTx(t.Context(), noTx{t}, tc.payload, tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%.300v, want %q in it", err, tc.want)
			}
			_, err := c.EnqueueManyTx(t.Context(), noTx{t}, []NewTask{{typed{}, nil}, {tc.payload, tc.opts}})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "task 1: ") {
				t.Errorf("many: %.300v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestNoPool(t *testing.T) {
	t.Parallel()
	c := offline(t)
	for what, call := range map[string]func() error{
		"enqueue": func() error { _, err := c.Enqueue(t.Context(), typed{}, nil); return err },
		"many":    func() error { _, err := c.EnqueueMany(t.Context(), nil); return err },
		"task":    func() error { _, err := c.Inspector().Task(t.Context(), [16]byte{1}); return err },
		"tasks":   func() error { _, err := c.Inspector().Tasks(t.Context(), TaskFilter{}); return err },
		"counts":  func() error { _, err := c.Inspector().Counts(t.Context()); return err },
		"workers": func() error { _, err := c.Inspector().Workers(t.Context(), time.Hour); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "no pool") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// What is at the limits, or only looks bad, goes through and comes back as it was.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	b := newBundle(t, ClientConfig{})
	year := func(y int) time.Time { return time.Date(y, 12, 31, 23, 59, 59, 999_999_000, time.UTC) }
	for name, tc := range map[string]struct {
		payload Payload
		opts    EnqueueOptions
	}{
		"literal escape":     {typed{Text: `\u0000 \ud800 \ufffd`}, EnqueueOptions{}},
		"raw literal escape": {task("a", `"\\u0000 \\\\u0000 \\ud800"`), EnqueueOptions{}},
		"pair":               {task("a", `{"\ud83d\ude00": "\uD83D\uDE00"}`), EnqueueOptions{}},
		"replacement":        {typed{Text: "\ufffd"}, EnqueueOptions{}},
		"given replacement":  {task("a", `"\ufffd"`), EnqueueOptions{}},
		"html":               {typed{Text: "<a>&\u2028"}, EnqueueOptions{}},
		"bytes":              {typed{Bytes: []byte{0, 0xff}}, EnqueueOptions{}},
		"controls":           {typed{Text: "\x01\x1f\x7f\u0085"}, EnqueueOptions{}},
		"null":               {task("a", "null"), EnqueueOptions{}},
		"number":             {task("a", "12345678901234567890.123456789"), EnqueueOptions{}},
		"large number":       {task("a", "1e131071"), EnqueueOptions{}},
		"long type":          {task(strings.Repeat("😀", 50), ""), EnqueueOptions{}},
		"deep":               {task("a", strings.Repeat("[", 9000)+strings.Repeat("]", 9000)), EnqueueOptions{}},
		"limits": {typed{}, EnqueueOptions{
			UniqueKey: strings.Repeat("ü", 250), MaxAttempts: 1_000_000, Priority: new(9), DueAt: year(9999),
			Metadata: map[string]any{`\u0000`: []any{nil, true, 1.5, "ü"}},
		}},
		"other limits": {typed{}, EnqueueOptions{UniqueKey: "'", MaxAttempts: 1, Priority: new(0), DueAt: time.Unix(0, 0)}},
	} {
		got, err := b.Inspector().Task(t.Context(), b.enqueue(t, tc.payload, &tc.opts))
		if err != nil {
			t.Fatal(name, err)
		}
		sent, err := json.Marshal(tc.payload)
		if err != nil {
			t.Fatal(err)
		}
		if !sameJSON(t, got.Payload, sent) {
			t.Errorf("%s: payload %s, sent %s", name, got.Payload, sent)
		}
		if tc.opts.Metadata != nil {
			if sent, _ := json.Marshal(tc.opts.Metadata); !sameJSON(t, got.Metadata, sent) {
				t.Errorf("%s: metadata %s", name, got.Metadata)
			}
		}
		if got.Type != tc.payload.TaskType() || tc.opts.UniqueKey != "" && *got.UniqueKey != tc.opts.UniqueKey ||
			tc.opts.MaxAttempts != 0 && got.MaxAttempts != tc.opts.MaxAttempts || tc.opts.Priority != nil && got.Priority != *tc.opts.Priority ||
			!tc.opts.DueAt.IsZero() && (!got.DueAt.Equal(tc.opts.DueAt) || !got.RetryAt.Equal(tc.opts.DueAt)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// sameJSON compares by value, numbers by their digits.
func sameJSON(t testing.TB, a, b []byte) bool {
	t.Helper()
	plain := func(text []byte) string {
		var v any
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		out, _ := json.Marshal(v)
		return string(out)
	}
	x, y := plain(a), plain(b)
	return x == y || strings.HasPrefix(y, "1e") && len(x) > 100_000 // PostgreSQL writes the digits out
}

// reference is a slow decoder of JSON strings: it reports whether valid JSON text holds only what jsonb can hold, numbers
// and depth aside. It is written from RFC 8259 §7 and PostgreSQL's documentation of jsonb, §8.14.
func reference(text string) bool {
	if !utf8.ValidString(text) {
		return false
	}
	inString := false
	var units []uint16 // of the string being read
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case !inString:
			inString = c == '"'
			units = nil
		case c == '"':
			inString = false
			for k := 0; k < len(units); k++ {
				switch {
				case units[k] == 0:
					return false
				case !utf16.IsSurrogate(rune(units[k])):
				case k+1 < len(units) && utf16.DecodeRune(rune(units[k]), rune(units[k+1])) != utf8.RuneError:
					k++
				default:
					return false
				}
			}
		case c == '\\' && text[i+1] == 'u':
			var unit uint16
			for _, h := range text[i+2 : i+6] {
				unit = unit<<4 | uint16(strings.IndexRune("0123456789abcdef", h|0x20))
				if h >= '0' && h <= '9' {
					unit = unit&^0xf | uint16(h-'0')
				}
			}
			units = append(units, unit)
			i += 5
		case c == '\\':
			units = append(units, 'x')
			i++
		default:
			units = append(units, 'x')
		}
	}
	return true
}

var seeds = []string{
	`{}`, `""`, `"\u0000"`, `"\\u0000"`, `"\\\u0000"`, `"\ud800"`, `"\ud83d\ude00"`, `"\ud800\\udc00"`, `"\udc00"`, `"\ud800\u0041"`,
	`"\ud800","\udc00"`, `["\ud800","\udc00"]`, `{"\ud800":"\udc00"}`, `"\uD83D\uDE00\ufffd\uFFFD"`, "\"\xff\"", `[1,-0,1e5,true,null]`, `"\/\b\f\n\r\t\""`, `"\u005cu0000"`,
}

func FuzzCheckJSON(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			t.Skip()
		}
		err := checkJSON([]byte(text), true)
		if want := reference(text); (err == nil) != want {
			if err != nil && strings.Contains(err.Error(), "number") {
				t.Skip() // not in the reference
			}
			t.Errorf("%q: %v, reference says %v", text, err, want)
		}
	})
}

// FuzzPayload holds validation to its word: what passes, the database accepts; and what it refuses, the database would
// refuse too, if the text was given as JSON.
func FuzzPayload(f *testing.F) {
	for _, s := range seeds {
		f.Add(s, true)
		f.Add(s, false)
	}
	for range 300 {
		f.Add(randomJSON(0), true)
		f.Add(randomText(), false)
	}
	c := offline(f)
	pool := pgtest.New(f)
	f.Fuzz(func(t *testing.T, text string, isJSON bool) {
		var payload Payload = typed{Text: text}
		if isJSON {
			payload = task("a", text)
			if len(text) == 0 {
				t.Skip()
			}
		}
		row, err := c.prepare(NewTask{payload, nil})
		sent := text
		if err == nil {
			sent = string(row.Payload)
		} else if !isJSON {
			if utf8.ValidString(text) && !strings.ContainsRune(text, 0) {
				t.Errorf("%q refused: %v", text, err)
			}
			return
		}
		var stored *string
		dbErr := pool.QueryRow(t.Context(), "select $1::text::jsonb::text", sent).Scan(&stored)
		if (err == nil) != (dbErr == nil) {
			t.Errorf("%q: validation says %v, the database %v", sent, err, dbErr)
		}
	})
}

func randomText() string {
	var b strings.Builder
	for range rand.IntN(12) {
		b.WriteString([]string{"a", "ü", "😀", "\x00", "\xff", "\ufffd", "\xed\xa0\x80", `\`, `\u0000`, `"`, "<", "\u2028", "\n"}[rand.IntN(13)])
	}
	return b.String()
}

// randomJSON is mostly valid.
func randomJSON(depth int) string {
	quoted := func() string {
		var b strings.Builder
		b.WriteByte('"')
		for range rand.IntN(6) {
			b.WriteString([]string{"a", "ü", "😀", `\\`, `\"`, `\u0041`, `\ud83d\ude00`, `\ud83d`, `\ude00`, `\u0000`, `\\u0000`, `\n`, `\/`, `\uFFFD`, `\uffff`}[min(rand.IntN(20), 14)])
		}
		b.WriteByte('"')
		return b.String()
	}
	switch n := rand.IntN(8); {
	case n < 3 || depth > 3:
		return quoted()
	case n == 3:
		return []string{"0", "-1.5e10", "1e-5", "1E+300", "1e131071", "1e131072", "-0", "01", "1.", "null", "true", "NaN", "1e-16383", "1e-16384", "0.0e-99999"}[rand.IntN(15)]
	case n < 6:
		return "[" + randomJSON(depth+1) + "," + randomJSON(depth+1) + "]"
	default:
		return "{" + quoted() + ":" + randomJSON(depth+1) + "}"
	}
}

type fixedTypes map[string]EnqueueDefaults

func (f fixedTypes) EnqueueDefaults(name string) (EnqueueDefaults, bool) {
	d, ok := f[name]
	return d, ok
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := NewClient(t.Context(), nil, ClientConfig{Types: fixedTypes{
		"a": {MaxAttempts: 7, Priority: new(2), UniqueFields: []string{"id", "in"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	key := func(payload string) string {
		t.Helper()
		row, err := c.prepare(NewTask{task("a", payload), nil})
		if err != nil {
			t.Fatal(payload, err)
		}
		return row.UniqueKey
	}
	row, err := c.prepare(NewTask{task("a", `{"id": 1}`), nil})
	if err != nil || row.MaxAttempts != 7 || row.Priority != 2 {
		t.Errorf("%+v, %v", row, err)
	}
	row, err = c.prepare(NewTask{task("a", `{"id": 1}`), &EnqueueOptions{MaxAttempts: 1, Priority: new(0), UniqueKey: "own"}})
	if err != nil || row.MaxAttempts != 1 || row.Priority != 0 || row.UniqueKey != "own" {
		t.Errorf("%+v, %v", row, err)
	}
	row, err = c.prepare(NewTask{task("b", `{"id": 1}`), nil})
	if err != nil || row.MaxAttempts != 0 || row.Priority != 5 || row.UniqueKey != "" || row.Metadata != nil {
		t.Errorf("%+v, %v", row, err)
	}

	equal := [][]string{
		{`{"id": 1}`, `{"id": 1, "in": null}`, `{ "in":null,"x":5,"id":1}`},
		{`{"id": {"a": 1, "b": [2]}}`, `{"id": {"b": [2], "a": 1}}`},
		{`{"id": "ü"}`, `{"id": "\u00fc"}`},
	}
	different := []string{
		`{}`, `{"id": 1}`, `{"id": "1"}`, `{"id": [1]}`, `{"in": 1}`, `{"id": 1, "in": 2}`, `{"id": 2, "in": 1}`,
		`{"id": 9007199254740992}`, `{"id": 9007199254740993}`, `{"id": "` + strings.Repeat("x", 1000) + `"}`, `{"id": "` + strings.Repeat("x", 1001) + `"}`,
	}
	for _, list := range equal {
		for _, p := range list {
			if key(p) != key(list[0]) {
				t.Errorf("%s: key %s, want %s", p, key(p), key(list[0]))
			}
		}
	}
	seen := map[string]string{}
	for _, p := range different {
		k := key(p)
		if other, ok := seen[k]; ok {
			t.Errorf("%.40s and %.40s have one key", p, other)
		}
		if len(k) > maxKeyBytes {
			t.Errorf("key of %d bytes", len(k))
		}
		seen[k] = p
	}
	if _, err := c.prepare(NewTask{task("a", `[1]`), nil}); err == nil || !strings.Contains(err.Error(), "JSON object") {
		t.Error(err)
	}
	if errors.Is(err, ErrDuplicate) {
		t.Error(err)
	}
}
