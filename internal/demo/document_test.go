package demo

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func htmlPage(text string) *response {
	return &response{contentType: "text/html; charset=utf-8", body: []byte(text)}
}

func TestParseHTML(t *testing.T) {
	t.Parallel()
	doc := parseDocument(htmlPage(`<!doctype html><html><head>
		<title> The  &lt;Go&gt; Memory
		Model </title><style>a { b: c }</style><title>second</title></head>
		<body><h1>One <em>two</em></h1><p>three four<script>var five = "six"</script> seven</p><h2></h2><h3>eight</h3>
		<a href="/a">nine</a> <a name="b">ten</a> <a href="/c" rel="nofollow">eleven</a></body></html>`))
	if want := "The <Go> Memory Model"; doc.title != want {
		t.Errorf("title %q, want %q", doc.title, want)
	}
	if want := []string{"/a", "/c"}; !slices.Equal(doc.references, want) {
		t.Errorf("references %q, want %q", doc.references, want)
	}
	// The titles and one to eleven without five and six.
	if want := 5 + 9; doc.words != want {
		t.Errorf("%d words, want %d", doc.words, want)
	}
}

func TestParseHTMLWrong(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, html, title string }{
		{"nothing", "", ""},
		{"cut short", "<title>a</title><a href='", "a"},
		{"not closed", "<title>a", "a"},
		{"nested ten thousand deep", strings.Repeat("<div>", 10000) + "<title>a</title>", ""},
		{"not UTF-8", "<title>\xff\x00a</title>", "\uFFFD\uFFFDa"}, // the tokenizer replaces the NUL
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if doc := parseDocument(htmlPage(tc.html)); doc.title != tc.title {
				t.Errorf("title %q, want %q", doc.title, tc.title)
			}
		})
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"on one line", " a\n\tb ", "a b"},
		{"NUL", "a\x00b", "ab"},
		{"not UTF-8", "a\xffb", "a\uFFFDb"},
		{"cut between runes", strings.Repeat("ü", 200) + "x", strings.Repeat("ü", 150)},
		{"cut before a rune", "x" + strings.Repeat("ü", 200), "x" + strings.Repeat("ü", 149)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := clean(tc.in); got != tc.want || !utf8.ValidString(got) {
				t.Errorf("clean(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}
