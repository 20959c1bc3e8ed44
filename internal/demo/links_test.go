package demo

import (
	"net/url"
	"slices"
	"testing"
)

func TestCanonical(t *testing.T) {
	t.Parallel()
	// Many are the examples of RFC 3986 §5.2.4 and §6.2.2.
	for _, tc := range []struct{ name, in, want string }{
		{"as it is", "http://example.com/a/b?c=d", "http://example.com/a/b?c=d"},
		{"scheme and host in lower case", "HTTP://EXAMPLE.com/A", "http://example.com/A"},
		{"path is never empty", "http://example.com", "http://example.com/"},
		{"query without a path", "http://example.com?q", "http://example.com/?q"},
		{"default port", "http://example.com:80/", "http://example.com/"},
		{"default port of https", "https://example.com:443/", "https://example.com/"},
		{"empty port", "http://example.com:/", "http://example.com/"},
		{"other port", "http://example.com:443/", "http://example.com:443/"},
		{"address of IPv6", "http://[::1]:80/", "http://[::1]/"},
		{"fragment", "http://example.com/a#b", "http://example.com/a"},
		{"empty query", "http://example.com/a?", "http://example.com/a"},
		{"dot segments", "http://example.com/a/b/c/./../../g", "http://example.com/a/g"},
		{"dots at the end", "http://example.com/a/b/..", "http://example.com/a/"},
		{"dots above the root", "http://example.com/../../a", "http://example.com/a"},
		{"empty segments stay", "http://example.com//a//b/", "http://example.com//a//b/"},
		{"characters that need coding", "http://example.com/ü x", "http://example.com/%C3%BC%20x"},
		{"coding stays as it is", "http://example.com/a%2fb/%2E%2e/%7E", "http://example.com/a%2fb/%2E%2e/%7E"},
		{"a coded percent sign stays", "http://example.com/%2541", "http://example.com/%2541"},
		{"plus is not a space", "http://example.com/?a+b%20c", "http://example.com/?a+b%20c"},
		{"mail", "mailto:a@example.com", ""},
		{"no host", "http:///a", ""},
		{"no scheme", "//example.com/", ""},
		{"opaque", "http:a", ""},
		{"user", "http://a:b@example.com/", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := canonical(u); got != tc.want {
				t.Errorf("canonical(%q) = %q, want %q", tc.in, got, tc.want)
			}
		})
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	const page = "http://example.com/dir/page"
	for _, tc := range []struct {
		name, html string
		want       []string
	}{
		{"in the order of the page, each once", `<a href="b"><a href=a><A HREF='/dir/b#x'>`, []string{"http://example.com/dir/b", "http://example.com/dir/a"}},
		{"the page itself is no link", `<a href=""><a href="#top"><a href="page"><a href="?q">`, []string{"http://example.com/dir/page?q"}},
		{"other hosts, ports and schemes", `<a href="//other.com/a"><a href="http://example.com:81/"><a href="javascript:x()"><a href="mailto:x@example.com">`, nil},
		{"the host in other spellings", `<a href="HTTP://Example.COM:80/a"><a href="https://example.com/b">`, []string{"http://example.com/a", "https://example.com/b"}},
		{"base", `<base href="/other/"><a href="a">`, []string{"http://example.com/other/a"}},
		{"a base elsewhere leads elsewhere", `<base href="http://other.com/"><a href="a">`, nil},
		{"character references", `<a href="?a=1&amp;b=2">`, []string{"http://example.com/dir/page?a=1&b=2"}},
		{"white space around", "<a href=' \n\ta '>", []string{"http://example.com/dir/a"}},
		{"not in comments and scripts", `<!-- <a href=a> --><script>"<a href=b>"</script><a href=c>`, []string{"http://example.com/dir/c"}},
		{"robots.txt", `<a href="/private/a"><a href="/private/open">`, []string{"http://example.com/private/open"}},
		{"what cannot be read", `<a href="http://[::1"><a href="%zz"><a href=a>`, []string{"http://example.com/dir/a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			at, err := url.Parse(page)
			if err != nil {
				t.Fatal(err)
			}
			rules := parseRobots("user-agent: *\ndisallow: /private/\nallow: /private/open")
			if got := links(at, parseDocument(htmlPage(tc.html)), rules); !slices.Equal(got, tc.want) {
				t.Errorf("links are %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzLinks(f *testing.F) {
	f.Add("http://example.com/a/b", `<base href="c/"><a href="../d?e#f">x</a><a href=//example.com:80/%2e%2E/g>`)
	f.Add("https://EXAMPLE.com:443/?%", `<iframe src="%7e%zz"><a href="?a b%"><title>x`)
	f.Add("http://[::1]/", `<a href="http://[::1]:80/é">`)
	f.Fuzz(func(t *testing.T, page, text string) {
		at, err := url.Parse(page)
		if err != nil {
			return
		}
		self := canonical(at)
		if self == "" {
			return
		}
		seen := map[string]bool{self: true}
		for _, address := range links(at, parseDocument(htmlPage(text)), &robots{}) {
			if seen[address] {
				t.Fatalf("%q is there twice, or the page itself", address)
			}
			seen[address] = true
			u, err := url.Parse(address)
			if err != nil {
				t.Fatalf("%q cannot be read: %v", address, err)
			}
			if again := canonical(u); again != address {
				t.Fatalf("%q becomes %q", address, again)
			}
			if hostOf(u) != hostOf(at) || u.Fragment != "" || u.User != nil || u.Path == "" {
				t.Fatalf("%q on %q", address, page)
			}
		}
	})
}
