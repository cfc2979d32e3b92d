package a2aqueue

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
)

// Address is where an agent is: a queue on a virtual host of a broker. It holds no credentials.
type Address struct {
	TLS   bool
	Host  string // with its port; empty: the broker is the one by which the address was learned
	Vhost string // "/" is the default one
	Queue string // of an agent's requests; may be empty of a broker's address
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)

const (
	schemePlain = "amqp"
	schemeTLS   = "amqps"
)

// ParseAddress reads amqp://host:port/vhost?queue=NAME or amqps://…, the URL of an interface of an agent's card. The port
// defaults to the scheme's, the virtual host to "/". Without a host, as in amqp:?queue=NAME, it is a queue on the broker by
// which the address was learned. A user or a password in it is an error.
func ParseAddress(s string) (Address, error) {
	u, err := url.Parse(s)
	if err != nil {
		return Address{}, fmt.Errorf("the address can't be read: %w", err)
	}
	port := ""
	switch u.Scheme {
	case schemePlain:
		port = "5672"
	case schemeTLS:
		port = "5671"
	default:
		return Address{}, fmt.Errorf("an address begins with amqp:// or amqps://, unlike %q", u.Redacted())
	}
	switch {
	case u.User != nil:
		return Address{}, fmt.Errorf("an address holds no user or password (%s)", u.Redacted())
	case u.Opaque != "" || u.Hostname() == "" && (u.Host != "" || strings.Trim(u.Path, "/") != ""):
		return Address{}, fmt.Errorf("an address names a host, unlike %q", s)
	case !hostName.MatchString(u.Hostname()) && net.ParseIP(u.Hostname()) == nil:
		return Address{}, fmt.Errorf("an address names a host, unlike %q", s)
	case u.Fragment != "":
		return Address{}, fmt.Errorf("an address has no fragment, unlike %q", s)
	}
	if u.Port() != "" {
		port = u.Port()
	}
	a := Address{TLS: u.Scheme == schemeTLS}
	if u.Hostname() != "" {
		a.Host = net.JoinHostPort(strings.ToLower(u.Hostname()), port)
	}
	vhost := strings.TrimPrefix(u.EscapedPath(), "/")
	if strings.Contains(vhost, "/") {
		return Address{}, fmt.Errorf("an address has one virtual host, whose \"/\" is written %%2f, unlike %q", s)
	}
	if a.Vhost, err = url.PathUnescape(vhost); err != nil {
		return Address{}, fmt.Errorf("the virtual host of an address can't be read: %w", err)
	}
	if a.Vhost == "" {
		a.Vhost = "/"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Address{}, fmt.Errorf("the queue of an address can't be read: %w", err)
	}
	if len(query["queue"]) > 1 {
		return Address{}, fmt.Errorf("an address names one queue, unlike %q", s)
	}
	a.Queue = query.Get("queue")
	if a.Queue != "" {
		if err := CheckQueueName(a.Queue); err != nil {
			return Address{}, err
		}
	}
	return a, nil
}

// BrokerAddress returns the address of the broker at a URL that may hold credentials, without them.
func BrokerAddress(s string) (Address, error) {
	u, err := url.Parse(s)
	if err != nil {
		return Address{}, errorWithoutURL(err)
	}
	u.User, u.RawQuery = nil, ""
	return ParseAddress(u.String())
}

// errorWithoutURL is an error of url.Parse without the URL, which may hold a password.
func errorWithoutURL(err error) error {
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // url.Parse returns it as it is
		err = e.Err
	}
	return fmt.Errorf("the broker's URL can't be read: %w", err)
}

// WithQueue returns the address of a queue on the same broker.
func (a Address) WithQueue(name string) Address {
	a.Queue = name
	return a
}

// String returns the address as a card's interface has it.
func (a Address) String() string {
	u := url.URL{Scheme: schemePlain, Host: a.Host}
	if a.TLS {
		u.Scheme = schemeTLS
	}
	s := u.String()
	if a.Host == "" {
		s = u.Scheme + ":"
	} else if a.Vhost != "/" {
		s += "/" + url.PathEscape(a.Vhost)
	}
	if a.Queue != "" {
		s += "?queue=" + url.QueryEscape(a.Queue)
	}
	return s
}

// CheckQueueName says what is wrong with the name of a queue: it has 1 to 255 bytes, no control characters, and doesn't
// begin with "amq.", which is the broker's.
func CheckQueueName(name string) error {
	switch {
	case name == "" || len(name) > 255:
		return fmt.Errorf("a queue's name has 1 to 255 bytes, not %d", len(name))
	case strings.HasPrefix(name, "amq."):
		return fmt.Errorf("the names of queues that begin with \"amq.\" are the broker's, such as %q", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '�' }):
		return fmt.Errorf("a queue's name has no control characters, unlike %q", name)
	}
	return nil
}
