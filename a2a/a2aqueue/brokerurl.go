package a2aqueue

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"
)

// brokerAddress is where a broker is and as whom we go there.
type brokerAddress struct {
	host  string // host:port
	vhost string
	sasl  []amqp.Authentication
	tls   *tls.Config // nil without
	shown string      // the URL without credentials
}

// urlParameters may stand in a broker's URL. What else RabbitMQ knows has a key of its own in the configuration.
var urlParameters = []string{"auth_mechanism"}

// parseURL reads a broker's URL. Its errors never quote it, since it holds a password.
func parseURL(raw string, secure *tls.Config) (brokerAddress, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return brokerAddress{}, errors.New("the broker's URL can't be read: write amqp://user:password@host:port/vhost, and reserved characters of the user, " +
			"the password and the virtual host as %40 and the like")
	}
	switch {
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return brokerAddress{}, errors.New("the broker's URL must begin with amqp:// or amqps://")
	case u.Hostname() == "":
		return brokerAddress{}, errors.New("the broker's URL names no host")
	case net.ParseIP(u.Hostname()) == nil && strings.ContainsFunc(u.Hostname(), notInName):
		return brokerAddress{}, errors.New("the broker's URL has a host that is neither a name nor an address")
	case u.Fragment != "":
		return brokerAddress{}, errors.New("the broker's URL has a part after #; write it as %23")
	}
	for key := range u.Query() {
		if !slices.Contains(urlParameters, key) {
			return brokerAddress{}, fmt.Errorf("the broker's URL has the parameter %q; only %s may stand there", key, strings.Join(urlParameters, ", "))
		}
	}
	uri, err := amqp.ParseURI(raw)
	if err != nil {
		return brokerAddress{}, errors.New("the broker's URL can't be read as AMQP's")
	}
	if uri.Port < 1 || uri.Port > 65535 {
		return brokerAddress{}, fmt.Errorf("the broker's URL has port %d", uri.Port)
	}
	if len(uri.Vhost) > shortString || len(uri.Username) > shortString {
		return brokerAddress{}, fmt.Errorf("the user and the virtual host of the broker's URL may have %d bytes", shortString)
	}
	a := brokerAddress{host: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), vhost: uri.Vhost}
	a.shown = (&url.URL{Scheme: uri.Scheme, Host: a.host, Path: "/" + uri.Vhost, RawPath: "/" + url.PathEscape(uri.Vhost)}).String()
	if a.sasl, err = mechanisms(uri); err != nil {
		return brokerAddress{}, err
	}
	switch {
	case uri.Scheme == "amqps":
		a.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if secure != nil {
			a.tls = secure.Clone()
		}
		if a.tls.ServerName == "" {
			a.tls.ServerName = uri.Host
		}
	case secure != nil:
		return brokerAddress{}, errors.New("TLS is configured, and the broker's URL is amqp://; write amqps://")
	}
	return a, nil
}

// notInName reports whether a character can't stand in the name of a host.
func notInName(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
}

func mechanisms(uri amqp.URI) ([]amqp.Authentication, error) {
	if len(uri.AuthMechanism) == 0 {
		return []amqp.Authentication{uri.PlainAuth()}, nil
	}
	var out []amqp.Authentication
	for _, m := range uri.AuthMechanism {
		switch strings.ToLower(m) {
		case "plain":
			out = append(out, uri.PlainAuth())
		case "external": // the client's certificate says who we are
			out = append(out, &amqp.ExternalAuth{})
		default:
			return nil, fmt.Errorf("the broker's URL asks for auth_mechanism %q; plain and external are known", m)
		}
	}
	return out, nil
}
