package demo

import (
	"net/url"
	"testing"
	"time"
)

func TestRobots(t *testing.T) {
	t.Parallel()
	const host = "http://example.com"
	for _, tc := range []struct {
		name, text, path string
		allowed          bool
	}{
		{"no rules", "", "/a", true},
		{"everything disallowed", "User-agent: *\nDisallow: /", "/a", false},
		{"an empty disallow allows everything", "User-agent: *\nDisallow:", "/a", true},
		{"another crawler's group", "User-agent: other\nDisallow: /", "/a", true},
		{"own group wins over *", "User-agent: *\nDisallow: /\nUser-agent: pgwake-demo\nDisallow: /b", "/a", true},
		{"own group, in other case", "User-agent: PGWAKE-Demo\nDisallow: /", "/a", false},
		{"two agents in a group", "User-agent: other\nUser-agent: *\nDisallow: /", "/a", false},
		{"two groups of one agent are one", "User-agent: *\nDisallow: /a\n\nUser-agent: other\nAllow: /\n\nUser-agent: *\nDisallow: /b", "/b", false},
		{"a rule before any agent is nobody's", "Disallow: /\nUser-agent: *\nDisallow: /b", "/a", true},
		{"comments, spaces, CRLF and a BOM", "\uFEFFuser-agent : * # all\r\n disallow : /a # this\r\n", "/a", false},
		{"other lines do not end a group", "User-agent: *\nSitemap: http://example.com/map\nDisallow: /", "/a", false},
		{"the path's case matters", "User-agent: *\nDisallow: /A", "/a", true},
		{"a query is part of the path", "User-agent: *\nDisallow: /*?", "/a?b", false},

		// RFC 9309 §5.2, the longest match.
		{"longest match allows", "User-Agent: *\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif", "/example/page/", true},
		{"longest match disallows", "User-Agent: *\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif", "/example/page/disallowed.gif", false},
		{"allow wins a tie", "User-Agent: *\nDisallow: /a\nAllow: /a", "/a", true},
		// RFC 9309 §2.2.2, percent-encoding.
		{"coded characters", "User-agent: *\nDisallow: /foo/bar?baz=https://foo.bar", "/foo/bar?baz=https://foo.bar", false},
		{"UTF-8 in the rule", "User-agent: *\nDisallow: /foo/bar/ツ", "/foo/bar/%E3%83%84", false},
		{"coded UTF-8 in the rule", "User-agent: *\nDisallow: /foo/bar/%E3%83%84", "/foo/bar/ツ", false},
		{"coded letters in the rule", "User-agent: *\nDisallow: /foo/bar/%62%61%7A", "/foo/bar/baz", false},
		// RFC 9309 §2.2.3, special characters.
		{"$ is the end", "User-agent: *\nDisallow: /this/path/exactly$", "/this/path/exactly", false},
		{"$ is the end, and no more", "User-agent: *\nDisallow: /this/path/exactly$", "/this/path/exactly/not", true},
		{"* is any text", "User-agent: *\nDisallow: /this/*/exactly", "/this/a/b/exactly", false},
		{"* and $", "User-agent: *\nDisallow: /*.gif$", "/a/b.gif.gif", false},
		{"* and $, other end", "User-agent: *\nDisallow: /*.gif$", "/a/b.gif?x", true},
		{"* twice", "User-agent: *\nDisallow: /a*b*c", "/axbxbxc", false},
		{"* twice, out of order", "User-agent: *\nDisallow: /a*b*c", "/axcxb", true},
		{"* at the end changes nothing", "User-agent: *\nDisallow: /a*", "/ab", false},
		{"a coded * is a character", "User-agent: *\nDisallow: /path/file-with-a-%2A.html", "/path/file-with-a-*.html", false},
		{"a coded * is nothing else", "User-agent: *\nDisallow: /path/file-with-a-%2A.html", "/path/file-with-a-b.html", true},
		{"a coded $ is a character", "User-agent: *\nDisallow: /path/foo-%24", "/path/foo-$", false},
		{"not UTF-8", "User-agent: *\nDisallow: /caf%E9", "/caf%E9/a", false},
		{"a $ inside is a character", "User-agent: *\nDisallow: /a$b", "/a$bc", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			at, err := url.Parse(host + tc.path)
			if err != nil {
				t.Fatal(err)
			}
			if got := parseRobots(tc.text).allows(at); got != tc.allowed {
				t.Errorf("allowed %v, want %v", got, tc.allowed)
			}
		})
	}
}

func TestCrawlDelay(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       time.Duration
	}{
		{"none", "User-agent: *\nDisallow: /", 0},
		{"of the group", "User-agent: other\nCrawl-delay: 5\nUser-agent: *\nCrawl-delay: 1.5", 1500 * time.Millisecond},
		{"bounded", "User-agent: *\nCrawl-delay: 1e300", maxDelay},
		{"nonsense", "User-agent: *\nCrawl-delay: soon", 0},
		{"not a number", "User-agent: *\nCrawl-delay: NaN", 0},
		{"negative", "User-agent: *\nCrawl-delay: -1", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := parseRobots(tc.text).delay; got != tc.want {
				t.Errorf("delay %s, want %s", got, tc.want)
			}
		})
	}
}

func FuzzRobots(f *testing.F) {
	f.Add("User-agent: *\nDisallow: /a*b$\nAllow: /a%zz", "/axb?c")
	f.Fuzz(func(t *testing.T, text, path string) {
		rules := parseRobots(text)
		if rules.delay < 0 || rules.delay > maxDelay {
			t.Fatalf("delay %s", rules.delay)
		}
		if at, err := url.Parse("http://example.com/" + path); err == nil {
			rules.allows(at)
		}
	})
}
