package a2aqueue

import (
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestBrokerURLsAreReadAsTheyAreMeant(t *testing.T) {
	type want struct {
		host, vhost, shown, user, password, server string
	}
	for text, w := range map[string]want{
		"amqp://u:p@h":                                 {"h:5672", "/", "amqp://h:5672/%2F", "u", "p", ""},
		"amqp://u:p@h/":                                {"h:5672", "/", "amqp://h:5672/%2F", "u", "p", ""},
		"amqp://u:p@h:1/%2f":                           {"h:1", "/", "amqp://h:1/%2F", "u", "p", ""},
		"amqp://u:p%40%2f@h/a%2Fb":                     {"h:5672", "a/b", "amqp://h:5672/a%2Fb", "u", "p@/", ""},
		"amqps://u:p@[::1]/v":                          {"[::1]:5671", "v", "amqps://[::1]:5671/v", "u", "p", "::1"},
		"amqp://h/v":                                   {"h:5672", "v", "amqp://h:5672/v", "guest", "guest", ""},
		"amqp://u:p@h/v?auth_mechanism=plain":          {"h:5672", "v", "amqp://h:5672/v", "u", "p", ""},
		"amqps://h/v?auth_mechanism=external":          {"h:5671", "v", "amqps://h:5671/v", "", "", "h"},
		"amqp://u:" + strings.Repeat("p", 300) + "@h/": {"h:5672", "/", "amqp://h:5672/%2F", "u", strings.Repeat("p", 300), ""},
	} {
		a, err := parseURL(text, nil)
		if err != nil {
			t.Errorf("parseURL(%q) = %v", text, err)
			continue
		}
		got := want{host: a.host, vhost: a.vhost, shown: a.shown}
		if p, ok := a.sasl[0].(*amqp.PlainAuth); ok {
			got.user, got.password = p.Username, p.Password
		}
		if a.tls != nil {
			got.server = a.tls.ServerName
		}
		if diff := cmp.Diff(w, got, cmp.AllowUnexported(want{})); diff != "" {
			t.Errorf("parseURL(%q) (-want +got):\n%s", text, diff)
		}
	}
}

func FuzzBrokerURL(f *testing.F) {
	for _, s := range []string{
		"amqp://guest:guest@127.0.0.1:5672/", "amqps://u:p%40@[::1]:5671/a%2Fb?auth_mechanism=external", "amqp:///x", "amqp://h:99999/", "amqp://h/%zz",
		"amqp://u:secret@h:1:2/", "amqp://u:secret@h/?queue=q",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := parseURL(text, nil)
		if err != nil {
			if strings.Contains(text, "topsecret") && strings.Contains(err.Error(), "topsecret") {
				t.Errorf("the error quotes the URL: %v", err)
			}
			return
		}
		host, port, err := net.SplitHostPort(a.host)
		if n, err2 := strconv.Atoi(port); err != nil || err2 != nil || n < 1 || n > 65535 || host == "" {
			t.Errorf("parseURL(%q) has the host %q", text, a.host)
		}
		if len(a.vhost) > shortString || a.vhost == "" {
			t.Errorf("parseURL(%q) has the virtual host %q", text, a.vhost)
		}
		shown, err := url.Parse(a.shown)
		if err != nil || shown.User != nil {
			t.Errorf("parseURL(%q) is shown as %q: %v", text, a.shown, err)
		}
	})
}
