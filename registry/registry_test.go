package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgwake/pgwake"
)

type welcome struct {
	Address string `json:"address"`
	Count   int    `json:"count"`
	Inner   struct {
		When time.Time `json:"when"`
		Tags []string  `json:"tags"`
	} `json:"inner"`
}

func (welcome) TaskType() string { return "mail.welcome" }

// named has the type name of its value, which must not be, and an empty one for its zero value.
type named struct{ Name string }

func (n named) TaskType() string { return n.Name }

type byPointer struct{ Name string }

func (p *byPointer) TaskType() string { return "by.pointer" }

type derefs struct{ Name string }

func (p *derefs) TaskType() string { return "derefs." + p.Name }

func nothing[P pgwake.Payload](context.Context, *pgwake.Task[P]) error { return nil }

func raw(context.Context, *pgwake.Run) error { return nil }

// refused asserts that err says what is wanted and that nothing was registered.
func refused(t *testing.T, r *Registry, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q in it", err, want)
	}
	if n := len(r.Types()); n != 0 {
		t.Errorf("%d types registered", n)
	}
}

func TestRegisterRefuses(t *testing.T) {
	t.Parallel()
	r := New()
	refused(t, r, Register(r, nothing[named], nil), "empty")
	refused(t, r, Register[welcome](r, nil, nil), "handler is nil")
	refused(t, r, Register(r, nothing[*derefs], nil), "panics")
	refused(t, r, Register(r, nothing[pgwake.Payload], nil), "panics")
	refused(t, r, RegisterRaw(r, "a", nil, nil), "handler is nil")
	for name, want := range map[string]string{
		"": "empty", " \t": "empty", strings.Repeat("x", 201): "201 bytes", strings.Repeat("ü", 101): "202 bytes",
		"a\x00b": "NUL", "a\xffb": "UTF-8",
	} {
		refused(t, r, RegisterRaw(r, name, raw, nil), want)
		refused(t, r, RegisterRaw(r, "a", raw, &Options{Aliases: []string{"b", name}}), want)
	}
}

func TestNamesAreTaken(t *testing.T) {
	t.Parallel()
	r := New()
	if err := RegisterRaw(r, "a", raw, &Options{Aliases: []string{"b", "c"}}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		aliases []string
		taken   string
	}{
		{"a", nil, `"a"`}, {"b", nil, `"b"`}, {"d", []string{"a"}, `"a"`}, {"d", []string{"e", "c"}, `"c"`},
		{"d", []string{"d"}, `"d"`}, {"d", []string{"e", "e"}, `"e"`},
	} {
		err := RegisterRaw(r, tc.name, raw, &Options{Aliases: tc.aliases})
		if err == nil || !strings.Contains(err.Error(), tc.taken+" is taken") {
			t.Errorf("%s %v: %v", tc.name, tc.aliases, err)
		}
	}
	// What was refused has taken no name.
	if err := RegisterRaw(r, "d", raw, &Options{Aliases: []string{"e"}}); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"a": "a", "b": "a", "c": "a", "d": "d", "e": "d"} {
		if typ, ok := r.Lookup(name); !ok || typ.Name != want {
			t.Errorf("%s: %+v", name, typ)
		}
	}
	if _, ok := r.Lookup("f"); ok {
		t.Error("f is there")
	}
	var order []string
	for _, typ := range r.Types() {
		order = append(order, typ.Names()...)
	}
	if !slices.Equal(order, []string{"a", "b", "c", "d", "e"}) {
		t.Error(order)
	}
}

func TestPointerPayload(t *testing.T) {
	t.Parallel()
	r := New()
	var got string
	err := Register(r, func(_ context.Context, task *pgwake.Task[*byPointer]) error {
		got = task.Payload.Name
		return nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	typ, _ := r.Lookup("by.pointer")
	if err := typ.Run(t.Context(), &pgwake.Run{RawPayload: []byte(`{"Name": "x"}`)}); err != nil || got != "x" {
		t.Error(got, err)
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	r := New()
	var got *pgwake.Task[welcome]
	err := Register(r, func(_ context.Context, task *pgwake.Task[welcome]) error {
		got = task
		return nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	typ, _ := r.Lookup("mail.welcome")

	const payload = `{"address": "a@b", "count": 3, "unknown": {"kept": [1, 2]}, "inner": {"tags": ["x"]}}`
	if err := typ.Run(t.Context(), &pgwake.Run{RawPayload: []byte(payload), Attempt: 2}); err != nil {
		t.Fatal(err)
	}
	if got.Payload.Address != "a@b" || got.Payload.Count != 3 || got.Attempt != 2 || string(got.RawPayload) != payload {
		t.Errorf("%+v, payload %s", got.Payload, got.RawPayload)
	}

	got = nil
	for payload, want := range map[string]string{
		`{"address": 1}`:                      `"address"`,
		`{"count": "3"}`:                      `"count"`,
		`{"count": 1.5}`:                      `"count"`,
		`{"count": 99999999999999999999}`:     `"count"`,
		`{"inner": {"tags": [1]}}`:            `inner.tags`,
		`{"inner": {"tags": {"a": 1}}}`:       `"inner.tags"`,
		`{"inner": {"when": "not a time"}}`:   "not a time",
		`[1, 2]`:                              "array",
		`"text"`:                              "string",
		``:                                    "end of JSON input",
		`{"address": "a`:                      "end of JSON input",
		`{"address": "a", "count": 1} follow`: "after top-level value",
	} {
		err := typ.Run(t.Context(), &pgwake.Run{RawPayload: []byte(payload)})
		var freeze *pgwake.FreezeError
		if !errors.As(err, &freeze) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "decode payload") {
			t.Errorf("%s: %v, want %s", payload, err, want)
		}
	}
	if got != nil {
		t.Error("the handler ran")
	}
}

func TestMiddlewareOrder(t *testing.T) {
	t.Parallel()
	var calls []string
	note := func(name string) Middleware {
		return func(next Next) Next {
			return func(ctx context.Context, run *pgwake.Run) error {
				calls = append(calls, name)
				err := next(ctx, run)
				calls = append(calls, "/"+name)
				return err
			}
		}
	}
	failure := errors.New("no")
	r := New(note("1"), note("2"))
	err := RegisterRaw(r, "a", func(context.Context, *pgwake.Run) error {
		calls = append(calls, "handler")
		return failure
	}, &Options{Middleware: []Middleware{note("3"), note("4")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := RegisterRaw(r, "b", raw, nil); err != nil {
		t.Fatal(err)
	}
	typ, _ := r.Lookup("a")
	if err := typ.Run(t.Context(), &pgwake.Run{}); err != failure {
		t.Error(err)
	}
	if got := strings.Join(calls, " "); got != "1 2 3 4 handler /4 /3 /2 /1" {
		t.Error(got)
	}
	calls = nil
	typ, _ = r.Lookup("b")
	if err := typ.Run(t.Context(), &pgwake.Run{}); err != nil || strings.Join(calls, " ") != "1 2 /2 /1" {
		t.Error(calls, err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	valid := []struct {
		opts *Options
		want Type
	}{
		{nil, Type{Timeout: 300 * time.Second, MaxAttempts: 4}},
		{&Options{}, Type{Timeout: 300 * time.Second, MaxAttempts: 4}},
		{&Options{Timeout: time.Nanosecond, MaxAttempts: 1, Slots: 1, Priority: new(0)}, Type{Timeout: 1, MaxAttempts: 1, Slots: 1}},
		{&Options{Timeout: NoTimeout, MaxAttempts: 1 << 30, Priority: new(9), UniqueFields: []string{"a"}}, Type{MaxAttempts: 1 << 30}},
	}
	for i, tc := range valid {
		r := New()
		if err := RegisterRaw(r, "a", raw, tc.opts); err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		got, _ := r.Lookup("a")
		if got.Timeout != tc.want.Timeout || got.MaxAttempts != tc.want.MaxAttempts || got.Slots != tc.want.Slots || got.Retry == nil {
			t.Errorf("%d: %+v", i, got)
		}
		// Enqueueing takes over what was said, not the worker's defaults: those may change until the task runs.
		d, ok := r.EnqueueDefaults("a")
		said := tc.opts
		if said == nil {
			said = &Options{}
		}
		if !ok || d.MaxAttempts != said.MaxAttempts || d.Priority != said.Priority || !slices.Equal(d.UniqueFields, said.UniqueFields) {
			t.Errorf("%d: defaults %+v, %v", i, d, ok)
		}
	}
	if _, ok := New().EnqueueDefaults("a"); ok {
		t.Error("defaults of an unknown type")
	}

	for want, opts := range map[string]*Options{
		"timeout -2ns":          {Timeout: -2},
		"max attempts -1":       {MaxAttempts: -1},
		"slots -1":              {Slots: -1},
		"priority -1":           {Priority: new(-1)},
		"priority 10":           {Priority: new(10)},
		"unique field":          {UniqueFields: []string{"a", ""}},
		"a middleware is nil":   {Middleware: []Middleware{nil}},
		"task type is empty":    {Aliases: []string{""}},
		`the name "a" is taken`: {Aliases: []string{"a"}},
	} {
		r := New()
		refused(t, r, RegisterRaw(r, "a", raw, opts), want)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	r := New()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				name := fmt.Sprintf("%d.%d", i%4, n) // every name twice
				_ = RegisterRaw(r, name, raw, nil)
				if typ, ok := r.Lookup(name); !ok || typ.Name != name {
					t.Errorf("%s: %+v", name, typ)
				}
				r.Types()
				r.EnqueueDefaults(name)
			}
		})
	}
	wg.Wait()
	if n := len(r.Types()); n != 200 {
		t.Errorf("%d types", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `null`, `{"count": 1e3}`, `{"inner": {"when": "2026-01-02T03:04:05Z"}}`, `{"inner": 1}`, "\x00", `{"address": "\ud800"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		r := New()
		ran := false
		if err := Register(r, func(context.Context, *pgwake.Task[welcome]) error { ran = true; return nil }, nil); err != nil {
			t.Fatal(err)
		}
		typ, _ := r.Lookup("mail.welcome")
		err := typ.Run(t.Context(), &pgwake.Run{RawPayload: payload})
		var freeze *pgwake.FreezeError
		if ran != (err == nil) || err != nil && !errors.As(err, &freeze) {
			t.Errorf("%q: ran %v, %v", payload, ran, err)
		}
		if want := json.Unmarshal(payload, new(welcome)); (want == nil) != (err == nil) {
			t.Errorf("%q: %v, encoding/json says %v", payload, err, want)
		}
	})
}
