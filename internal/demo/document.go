package demo

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

const (
	maxHeadings = 100
	maxText     = 300 // bytes of a title or heading
)

// document is what the demo reads out of a page.
type document struct {
	title      string
	headings   []string
	words      int
	base       string   // of <base href>
	references []string // of links, as written
	links      int      // links in the text, whether to be followed or not
	nofollow   bool     // the page asks that its links are not followed
}

// parseHTML reads a page token by token: no nesting, however deep or wrong, can trouble it.
func parseHTML(body []byte) *document {
	doc := &document{}
	z := html.NewTokenizer(bytes.NewReader(body))
	var text strings.Builder // of the title or heading that is open
	var open, hidden atom.Atom
	for {
		switch z.Next() {
		case html.ErrorToken: // the end, or more than can be read
			return doc
		case html.TextToken:
			if hidden != 0 {
				continue
			}
			raw := z.Text()
			if open != 0 && text.Len() < maxText {
				text.Write(raw)
			}
			if open != atom.Title {
				doc.words += len(bytes.Fields(raw))
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			token := z.Token()
			switch token.DataAtom {
			case atom.Title, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
				open = token.DataAtom
				text.Reset()
			case atom.Script, atom.Style:
				hidden = token.DataAtom
			default:
				doc.element(token)
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			switch tag := atom.Lookup(name); {
			case tag == 0:
			case tag == hidden:
				hidden = 0
			case tag == open:
				doc.caption(tag, text.String())
				open = 0
			}
		}
	}
}

// element takes what a tag says about links.
func (d *document) element(token html.Token) {
	switch token.DataAtom {
	case atom.A, atom.Area:
		href, ok := attribute(token, "href")
		if !ok {
			return
		}
		d.links++
		if rel, _ := attribute(token, "rel"); !hasWord(rel, "nofollow") {
			d.references = append(d.references, href)
		}
	case atom.Iframe, atom.Frame:
		if src, ok := attribute(token, "src"); ok {
			d.references = append(d.references, src)
		}
	case atom.Base:
		if href, ok := attribute(token, "href"); ok && d.base == "" {
			d.base = href
		}
	case atom.Meta:
		name, _ := attribute(token, "name")
		content, _ := attribute(token, "content")
		if strings.EqualFold(name, "robots") && (hasWord(content, "nofollow") || hasWord(content, "none")) {
			d.nofollow = true
		}
	}
}

func (d *document) caption(tag atom.Atom, text string) {
	text = clean(text)
	switch {
	case text == "":
	case tag == atom.Title:
		if d.title == "" {
			d.title = text
		}
	case len(d.headings) < maxHeadings:
		d.headings = append(d.headings, text)
	}
}

// clean makes text that PostgreSQL takes: valid UTF-8 without NUL, on one line, cut at a rune's border.
func clean(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxText {
		cut := maxText
		for !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return s
}

func attribute(token html.Token, name string) (string, bool) {
	for _, a := range token.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

func hasWord(list, word string) bool {
	for w := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' }) {
		if strings.EqualFold(w, word) {
			return true
		}
	}
	return false
}
