package demo

import (
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// product is the name that a robots.txt may speak to the demo by.
const product = "pgwake-demo"

const maxDelay = 30 * time.Second // of Crawl-delay, so that the demo ends some day

// robots are the rules of a robots.txt (RFC 9309) for this crawler: those of the group that names it, else those for *.
type robots struct {
	rules []rule
	delay time.Duration // Crawl-delay, which is not in the RFC but common
}

type rule struct {
	pattern string
	allow   bool
}

// parseRobots never fails: lines that make no sense are passed over, as the RFC asks.
func parseRobots(text string) *robots {
	groups := map[string]*robots{}
	var current []*robots
	inRules := true // the next user-agent line starts a group
	for line := range strings.Lines(strings.TrimPrefix(text, "\uFEFF")) {
		line, _, _ = strings.Cut(line, "#")
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch key = strings.ToLower(strings.TrimSpace(key)); key {
		case "user-agent":
			if inRules {
				current, inRules = nil, false
			}
			agent := strings.ToLower(value)
			if groups[agent] == nil {
				groups[agent] = &robots{}
			}
			current = append(current, groups[agent])
		case "allow", "disallow":
			inRules = true
			if value == "" {
				continue
			}
			for _, g := range current {
				g.rules = append(g.rules, rule{pattern: encode(value), allow: key == "allow"})
			}
		case "crawl-delay":
			inRules = true
			if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 {
				for _, g := range current {
					g.delay = time.Duration(math.Min(seconds, maxDelay.Seconds()) * float64(time.Second))
				}
			}
		}
	}
	for _, agent := range []string{product, "*"} {
		if g := groups[agent]; g != nil {
			return g
		}
	}
	return &robots{}
}

// allows tells whether the address may be fetched: the longest rule that matches decides, allow wins a tie.
func (r *robots) allows(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	path := encode(u.EscapedPath())
	if path == "" {
		path = "/"
	}
	if path == "/robots.txt" {
		return true
	}
	if u.RawQuery != "" {
		path += "?" + encode(u.RawQuery)
	}
	path = special.Replace(path)
	allowed, longest := true, -1
	for _, rule := range r.rules {
		if n := len(rule.pattern); (n > longest || n == longest && rule.allow) && matches(rule.pattern, path) {
			allowed, longest = rule.allow, n
		}
	}
	return allowed
}

// special writes the characters that mean something in a rule as the RFC has rules write them.
var special = strings.NewReplacer("*", "%2A", "$", "%24")

// matches compares from the start of the path; * is any text and $ at the end of the pattern the end of the path. It
// takes each part at its first place, which finds a match wherever there is one, in linear time a part.
func matches(pattern, path string) bool {
	pattern, anchored := strings.CutSuffix(pattern, "$")
	parts := strings.Split(strings.ReplaceAll(pattern, "$", "%24"), "*")
	rest, ok := strings.CutPrefix(path, parts[0])
	if !ok {
		return false
	}
	if len(parts) == 1 {
		return !anchored || rest == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			return false
		}
		rest = after
	}
	if anchored {
		return strings.HasSuffix(rest, last)
	}
	return strings.Contains(rest, last)
}
