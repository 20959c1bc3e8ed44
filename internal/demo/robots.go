package demo

import (
	"cmp"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const maxDelay = 30 * time.Second // of Crawl-delay, so that the demo ends some day

// robots are the rules of a robots.txt (RFC 9309) for this crawler: those of the group that names it, else those for *.
type robots struct {
	rules []rule
	delay time.Duration // Crawl-delay, which is not in the RFC but common
}

type rule struct {
	pattern *regexp.Regexp
	length  int
	allow   bool
}

// parseRobots never fails: lines that make no sense are passed over, as the RFC asks.
func parseRobots(text string) *robots {
	return cmp.Or(robotsFor(product, text), robotsFor("*", text), &robots{})
}

// robotsFor takes together all groups that name an agent; nil: none does.
func robotsFor(agent, text string) *robots {
	var r *robots
	named, heading := false, false // whether the group names the agent, and whether its rules are still to come
	for line := range strings.Lines(strings.TrimPrefix(text, "\uFEFF")) {
		line, _, _ = strings.Cut(line, "#")
		key, value, _ := strings.Cut(line, ":")
		key, value = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value)
		switch key {
		case "user-agent":
			named = named && heading || strings.EqualFold(value, agent)
			heading = true
			if named {
				r = cmp.Or(r, &robots{})
			}
		case "allow", "disallow", "crawl-delay":
			heading = false
			if named {
				r.add(key, value)
			}
		}
	}
	return r
}

func (r *robots) add(key, value string) {
	if key == "crawl-delay" {
		if s, err := strconv.ParseFloat(value, 64); err == nil && s > 0 {
			r.delay = time.Duration(min(s, maxDelay.Seconds()) * float64(time.Second))
		}
		return
	}
	if value == "" {
		return
	}
	// From the start of the path; * is any text, $ at the end the end of the path.
	text, whole := strings.CutSuffix(value, "$")
	parts := strings.Split(text, "*")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(decode(part))
	}
	pattern := "(?s)^" + strings.Join(parts, ".*")
	if whole {
		pattern += "$"
	}
	r.rules = append(r.rules, rule{regexp.MustCompile(pattern), len(value), key == "allow"})
}

// allows tells whether the address may be fetched: the longest rule that matches decides, allow wins a tie.
func (r *robots) allows(u *url.URL) bool {
	path := decode(u.RequestURI())
	allowed, longest := true, -1
	for _, rule := range r.rules {
		if (rule.length > longest || rule.length == longest && rule.allow) && rule.pattern.MatchString(path) {
			allowed, longest = rule.allow, rule.length
		}
	}
	return allowed
}

// decode undoes percent-encoding, so that it does not matter how a rule or an address is written.
func decode(s string) string {
	if text, err := url.PathUnescape(s); err == nil {
		s = text
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
