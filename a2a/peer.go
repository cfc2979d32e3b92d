package a2a

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// OnTimeout says what becomes of a call when nobody waits for it any more.
type OnTimeout string

// Detach lets the peer go on, since its late reply is wanted; Cancel tells it to stop.
const (
	OnTimeoutDetach OnTimeout = "detach"
	OnTimeoutCancel OnTimeout = "cancel"
)

// Resend says whether a message whose outcome is unknown may be sent again.
type Resend string

// Auto sends it again with the same message id when the peer doesn't list it; Never reports the outcome as unknown.
const (
	ResendAuto  Resend = "auto"
	ResendNever Resend = "never"
)

// OnInputRequired says what becomes of a peer's question.
type OnInputRequired string

// Return gives it to the model, which may answer by task_id; Refuse gives it to the model to know, not to answer.
const (
	OnInputRequiredReturn OnInputRequired = "return"
	OnInputRequiredRefuse OnInputRequired = "refuse"
)

// Secret is a text that isn't shown: printed, logged or marshalled it is "***".
type Secret string

// String implements fmt.Stringer.
func (Secret) String() string { return "***" }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return "***" }

// MarshalText implements encoding.TextMarshaler.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue("***") }

// Endpoint is an interface of a peer that is named in the configuration rather than read from its card.
type Endpoint struct {
	URL     string // of the binding AMQP: amqp://host:port/vhost?queue=NAME
	Binding string // of the protocol. Defaults to "JSONRPC".
	Version string // of the protocol. Defaults to "1.0".
}

// Peer is another people's agent, as the operator names it. Exactly one of Card, Endpoints and Queue is set.
type Peer struct {
	Name string
	// Card is the agent's base URL, whose well-known path has its card, or the URL of the card itself.
	Card      string
	Endpoints []Endpoint
	// Queue is the request queue of an agent that is asked through a broker. Its card is asked for there, too; without an
	// answer one is assumed, since what is sent waits in the queue.
	Queue string
	// Broker is the URL of the broker of Queue or of an endpoint of the binding AMQP, password included. Empty is the
	// product's own.
	Broker Secret
	// DurableQueue says that waiting is the point: the queue is declared when it doesn't exist, where it would be an error.
	DurableQueue bool
	// Streaming says of a peer without a card that it can stream.
	Streaming   bool
	Description string // what the operator says of it; the card's description is the peer's own
	// Timeout bounds one call, next to the bounds of all calls. Zero is no further bound.
	Timeout         time.Duration
	OnTimeout       OnTimeout         // Defaults to OnTimeoutDetach.
	Resend          Resend            // Defaults to ResendAuto.
	OnInputRequired OnInputRequired   // Defaults to OnInputRequiredReturn.
	Headers         map[string]Secret // sent with every request
	// Credentials are what the security schemes of the card may ask for.
	Credentials []Credential
	TLS         TLS
	// Registered says that the peer was added at run time: its addresses, and those it leads to, are checked.
	Registered bool
}

// Identity is what the peer is known by in a chain of agents: the URL of its card, or of its first endpoint, or its queue.
func (p Peer) Identity() string {
	if p.Card != "" {
		return strings.TrimSuffix(strings.TrimSuffix(p.Card, WellKnownPath), "/")
	}
	if len(p.Endpoints) > 0 {
		return p.Endpoints[0].URL
	}
	if p.Queue != "" {
		return "queue:" + p.Queue
	}
	return ""
}

// WellKnownPath is where an agent's card is found under its base URL.
const WellKnownPath = "/.well-known/agent-card.json"

var peerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// withDefaults returns the peer with its defaults, or what is wrong with it and in which field of the file.
func (p Peer) withDefaults() (_ Peer, field string, err error) {
	if !peerName.MatchString(p.Name) {
		return p, "name", fmt.Errorf("a peer's name has up to 64 letters, digits, '.', '_' and '-', not %q", p.Name)
	}
	switch {
	case p.Card == "" && len(p.Endpoints) == 0 && p.Queue == "":
		return p, "", errors.New("a peer needs a card, endpoints or a queue")
	case p.Card != "" && len(p.Endpoints) > 0:
		return p, "endpoints", errors.New("a peer has a card or endpoints, not both")
	case p.Queue != "" && (p.Card != "" || len(p.Endpoints) > 0):
		return p, "queue", errors.New("a peer behind a queue has neither a card nor endpoints here: its card is asked for in the queue")
	case p.Queue != "" && !isQueue(p.Queue):
		return p, "queue", fmt.Errorf("a queue's name has up to 255 bytes, no spaces, and doesn't begin with amq., unlike %q", p.Queue)
	case p.Card != "":
		if err := checkURL(p.Card); err != nil {
			return p, "card", err
		}
	}
	queued := p.Queue != ""
	endpoints := make([]Endpoint, len(p.Endpoints))
	for i, e := range p.Endpoints {
		e.Binding, e.Version = cmp.Or(e.Binding, "JSONRPC"), cmp.Or(e.Version, "1.0")
		check := checkURL
		if e.Binding == BindingAMQP {
			check, queued = checkQueueURL, true
		}
		if err := check(e.URL); err != nil {
			return p, fmt.Sprintf("endpoints[%d].url", i), err
		}
		endpoints[i] = e
	}
	p.Endpoints = endpoints
	switch {
	case p.DurableQueue && !queued:
		return p, "durable_queue", errors.New("durable_queue goes with a queue, or with endpoints of the binding AMQP")
	case p.Broker != "" && !queued && p.Card == "":
		return p, "broker_env", errors.New("a broker goes with a queue, with a card, or with endpoints of the binding AMQP")
	}
	if p.Timeout < 0 {
		return p, "timeout", fmt.Errorf("a timeout is positive, not %s", p.Timeout)
	}
	p.OnTimeout = cmp.Or(p.OnTimeout, OnTimeoutDetach)
	p.Resend = cmp.Or(p.Resend, ResendAuto)
	p.OnInputRequired = cmp.Or(p.OnInputRequired, OnInputRequiredReturn)
	switch {
	case p.OnTimeout != OnTimeoutDetach && p.OnTimeout != OnTimeoutCancel:
		return p, "on_timeout", fmt.Errorf("on_timeout is detach or cancel, not %q", p.OnTimeout)
	case p.Resend != ResendAuto && p.Resend != ResendNever:
		return p, "resend", fmt.Errorf("resend is auto or never, not %q", p.Resend)
	case p.OnInputRequired != OnInputRequiredReturn && p.OnInputRequired != OnInputRequiredRefuse:
		return p, "on_input_required", fmt.Errorf("on_input_required is return or refuse, not %q", p.OnInputRequired)
	}
	return p, "", nil
}

var queueName = regexp.MustCompile(`^[!-~]{1,255}$`)

// isQueue reports whether a text can be the name of a request queue.
func isQueue(name string) bool {
	return queueName.MatchString(name) && !strings.HasPrefix(name, "amq.")
}

// checkQueueURL checks the URL of an interface of the binding AMQP.
func checkQueueURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("a URL can't be read: %w", err)
	case u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "":
		return fmt.Errorf("the URL of the binding AMQP begins with amqp:// or amqps:// and a host, unlike %q", u.Redacted())
	case u.User != nil:
		return fmt.Errorf("a URL holds no user or password (%s): use broker_env", u.Redacted())
	case !isQueue(u.Query().Get("queue")):
		return fmt.Errorf("the URL of the binding AMQP names the queue, as in amqp://host/?queue=NAME, unlike %q", s)
	}
	return nil
}

func checkURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("a URL can't be read: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("a URL begins with http:// or https:// and a host, unlike %q", s)
	case u.User != nil:
		return fmt.Errorf("a URL holds no user or password (%s): use headers with ${env:NAME}", u.Redacted())
	case u.Fragment != "":
		return fmt.Errorf("a URL has no fragment, unlike %q", s)
	}
	return nil
}
