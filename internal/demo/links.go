package demo

import (
	"errors"
	"net/url"
	"strings"
)

// maxURL bounds addresses: longer ones are hardly ever pages, and they have to fit into an index.
const maxURL = 2000

var (
	errScheme = errors.New("not an http or https address")
	errHost   = errors.New("the address has no host")
	errUser   = errors.New("the address has a user name in it")
	errLong   = errors.New("the address is longer than 2,000 bytes")
)

// links returns the pages of the site that a page refers to, in the order of the page, each once and not the page itself.
func links(page *url.URL, doc *document, rules *robots) []string {
	base := page
	if doc.base != "" {
		if b, err := page.Parse(cleanReference(doc.base)); err == nil {
			base = b
		}
	}
	self, err := canonical(page)
	if err != nil {
		return nil
	}
	host := hostOf(page)
	seen := map[string]bool{self: true}
	var found []string
	for _, ref := range doc.references {
		u, err := base.Parse(cleanReference(ref))
		if err != nil || hostOf(u) != host {
			continue
		}
		address, err := canonical(u)
		if err != nil || seen[address] {
			continue
		}
		seen[address] = true
		if rules.allows(address) {
			found = append(found, address)
		}
	}
	return found
}

// canonical writes an absolute http or https address so that equal pages have equal text (RFC 3986 §6.2.2): scheme and
// host in lower case, no default port, no fragment, no dot segments, percent-encoding only where it is needed and in
// upper case.
func canonical(u *url.URL) (string, error) {
	scheme := strings.ToLower(u.Scheme)
	switch {
	case scheme != "http" && scheme != "https", u.Opaque != "":
		return "", errScheme
	case u.User != nil:
		return "", errUser
	case u.Hostname() == "":
		return "", errHost
	}
	address := scheme + "://" + hostOf(u) + removeDots(encode(u.EscapedPath()))
	if u.RawQuery != "" {
		address += "?" + encode(u.RawQuery)
	}
	if len(address) > maxURL {
		return "", errLong
	}
	if _, err := url.Parse(address); err != nil {
		return "", err
	}
	return address, nil
}

// hostOf is host:port in lower case, without a port that the scheme implies.
func hostOf(u *url.URL) string {
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "" || port == "80" && strings.EqualFold(u.Scheme, "http") || port == "443" && strings.EqualFold(u.Scheme, "https") {
		host = strings.TrimSuffix(host, ":"+port)
	}
	return host
}

// cleanReference does what browsers do to an href first.
func cleanReference(ref string) string {
	return strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(strings.Trim(ref, " \t\n\r\f"))
}

// removeDots takes "." and ".." out of a path (RFC 3986 §5.2.4) and makes it start with a slash.
func removeDots(path string) string {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	out := make([]string, 0, len(segments))
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case s == "." || s == "..":
			if s == ".." && len(out) > 0 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, s)
		}
	}
	return "/" + strings.Join(out, "/")
}

// encode writes a path or query with percent-encoding in one form.
func encode(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c, coded := s[i], false
		if c == '%' && i+2 < len(s) && unhex(s[i+1]) >= 0 && unhex(s[i+2]) >= 0 {
			c, coded = byte(unhex(s[i+1])<<4|unhex(s[i+2])), true
			i += 2
		}
		if unreserved(c) || !coded && strings.IndexByte("/?:@!$&'()*+,;=", c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
