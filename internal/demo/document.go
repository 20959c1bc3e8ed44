package demo

import (
	"bytes"
	"cmp"
	"net/url"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

const (
	maxText = 300  // bytes of a title
	maxURL  = 2000 // bytes of an address: longer ones are hardly ever pages, and they have to fit into an index
)

// document is what the demo reads out of a page.
type document struct {
	title      string
	words      int
	base       string   // of <base href>
	references []string // of links, as written
}

// parseDocument reads HTML as such and counts the words of other text. Of what cannot be read nothing is told.
func parseDocument(r *response) *document {
	doc := &document{}
	if !strings.HasPrefix(r.contentType, "text/html") {
		doc.words = len(bytes.Fields(r.body))
		return doc
	}
	root, err := html.Parse(bytes.NewReader(r.body))
	if err != nil {
		return doc
	}
	for n := range root.Descendants() {
		switch n.DataAtom {
		case atom.Title:
			if n.FirstChild != nil {
				doc.title = cmp.Or(doc.title, clean(n.FirstChild.Data))
			}
		case atom.A:
			if href := attribute(n, "href"); href != "" {
				doc.references = append(doc.references, href)
			}
		case atom.Base:
			doc.base = cmp.Or(doc.base, attribute(n, "href"))
		}
		if n.Type == html.TextNode && n.Parent.DataAtom != atom.Script && n.Parent.DataAtom != atom.Style {
			doc.words += len(strings.Fields(n.Data))
		}
	}
	return doc
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// plainText makes text that PostgreSQL takes: valid UTF-8 without NUL.
func plainText(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// clean makes a short text on one line.
func clean(s string) string {
	s = strings.Join(strings.Fields(plainText(s)), " ")
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "") // without half a rune
}

// links returns the pages of the site that a page refers to, in the order of the page, each once and not the page itself.
func links(page *url.URL, doc *document, rules *robots) []string {
	base := page
	if b, err := page.Parse(strings.TrimSpace(doc.base)); err == nil {
		base = b
	}
	seen := map[string]bool{canonical(page): true}
	var found []string
	for _, reference := range doc.references {
		u, err := base.Parse(strings.TrimSpace(reference))
		if err != nil || hostOf(u) != hostOf(page) {
			continue
		}
		if address := canonical(u); address != "" && !seen[address] {
			seen[address] = true
			if rules.allows(u) {
				found = append(found, address)
			}
		}
	}
	return found
}

// canonical writes an absolute http or https address so that equal pages have equal text: no fragment, no dot segments,
// the host in lower case and without the default port. It is empty for what the demo does not fetch.
func canonical(u *url.URL) string {
	if u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Hostname() == "" {
		return ""
	}
	u = u.ResolveReference(&url.URL{Path: cmp.Or(u.Path, "/"), RawPath: u.RawPath, RawQuery: u.RawQuery}) // which removes the dots
	u.Host = hostOf(u)
	if address := u.String(); len(address) <= maxURL && utf8.ValidString(address) {
		return address
	}
	return ""
}

// hostOf is host:port in lower case, without a port that the scheme implies.
func hostOf(u *url.URL) string {
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":")
	if port := map[string]string{"http": ":80", "https": ":443"}[u.Scheme]; port != "" {
		host = strings.TrimSuffix(host, port)
	}
	return host
}
