package a2a

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	"orchestrator/session"
)

// RegistryConfig configures a [Registry].
type RegistryConfig struct {
	Peers []Peer
	// RegisteredFile keeps the agents that are added while the product runs. It need not exist. Empty: they are forgotten
	// when the process ends.
	RegisteredFile string
	// Transport fetches cards and connects. Required.
	Transport Transport
	// Queue does the same where the binding is [BindingAMQP]. Nil: what is behind a queue can't be asked.
	Queue Transport
	// Prefer is the order in which the bindings of a peer are tried, among those of its newest version of the protocol.
	// Those it doesn't name come last. Defaults to JSONRPC, HTTP+JSON, GRPC, AMQP.
	Prefer []string
	// Refresh is how old a card may get before it is fetched again. Defaults to 4 hours.
	Refresh time.Duration
	// CardTimeout bounds the fetching of one card. Defaults to 10 seconds.
	CardTimeout time.Duration
	// QueueCardTimeout bounds it for a peer behind a queue, which may be away. Defaults to 2 seconds.
	QueueCardTimeout time.Duration
	Logger           *slog.Logger // nil logs nothing
}

// Registry is the peers the operator named and those registered since, with what their cards say. Cards are fetched when
// they are first needed and when they are old; a card that can't be fetched again is kept.
type Registry struct {
	cfg    RegistryConfig
	listed []*entry // in the order of the file
	file   *registeredFile

	mu         sync.Mutex
	registered []*entry // in the order of their registration, those without whose name is listed
}

// entry is one peer and its card.
type entry struct {
	peer Peer

	mu       sync.Mutex
	card     *protocol.AgentCard
	assumed  string // why card is none of the peer's own words; empty: it is
	link     *link
	fetched  time.Time
	fetching chan struct{} // closed when the fetch that runs is over
}

// UnknownPeerError says that no peer has a name, and which one may have been meant.
type UnknownPeerError struct {
	Name    string
	Nearest string   // may be empty
	Known   []string // all names, in order
}

func (e *UnknownPeerError) Error() string {
	switch {
	case e.Nearest != "":
		return fmt.Sprintf("there is no agent named %q; did you mean %q?", e.Name, e.Nearest)
	case len(e.Known) == 0:
		return fmt.Sprintf("there is no agent named %q; no agents are configured", e.Name)
	}
	return fmt.Sprintf("there is no agent named %q; known are %q", e.Name, e.Known)
}

// NewRegistry returns the registry of the peers. It does no I/O.
func NewRegistry(cfg RegistryConfig) (*Registry, error) {
	if cfg.Transport == nil {
		return nil, errors.New("a2a: RegistryConfig.Transport is required")
	}
	if cfg.Refresh < 0 || cfg.CardTimeout < 0 || cfg.QueueCardTimeout < 0 {
		return nil, errors.New("a2a: RegistryConfig.Refresh, CardTimeout and QueueCardTimeout must not be negative")
	}
	if len(cfg.Prefer) == 0 {
		cfg.Prefer = []string{
			string(protocol.TransportProtocolJSONRPC), string(protocol.TransportProtocolHTTPJSON), string(protocol.TransportProtocolGRPC), BindingAMQP,
		}
	}
	cfg.Refresh = cmp.Or(cfg.Refresh, 4*time.Hour)
	cfg.CardTimeout = cmp.Or(cfg.CardTimeout, 10*time.Second)
	cfg.QueueCardTimeout = cmp.Or(cfg.QueueCardTimeout, 2*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Registry{cfg: cfg, file: &registeredFile{path: cfg.RegisteredFile}}
	for _, p := range cfg.Peers {
		p, _, err := p.withDefaults()
		if err != nil {
			return nil, fmt.Errorf("peer %q: %w", p.Name, err)
		}
		if slices.ContainsFunc(r.listed, func(e *entry) bool { return e.peer.Name == p.Name }) {
			return nil, fmt.Errorf("there are two peers named %q", p.Name)
		}
		r.listed = append(r.listed, &entry{peer: p})
	}
	if _, err := r.file.load(true); err != nil {
		return nil, err
	}
	r.take()
	return r, nil
}

// entries returns all peers, those registered by another process included.
func (r *Registry) entries() []*entry {
	changed, err := r.file.load(false)
	if err != nil {
		r.cfg.Logger.Warn("can't read the registered agents again; the old ones are kept", "err", err)
	}
	if changed {
		r.take()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.listed, r.registered)
}

// take makes the registrations the registered peers. One that is the same as before keeps its card.
func (r *Registry) take() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var entries []*entry
	for _, g := range r.file.list() {
		p, err := g.peer()
		if err != nil {
			continue // it was checked when it was read
		}
		if slices.ContainsFunc(r.listed, func(e *entry) bool { return e.peer.Name == p.Name }) {
			r.cfg.Logger.Warn("a registered agent is hidden by one of peers.yaml", "peer", p.Name)
			continue
		}
		e := &entry{peer: p}
		for _, old := range r.registered {
			if old.peer.Name == p.Name && old.peer.Card == p.Card && old.peer.Description == p.Description {
				e = old
			}
		}
		entries = append(entries, e)
	}
	r.registered = entries
}

// change edits the registrations, in the file and here.
func (r *Registry) change(edit func([]Registration) ([]Registration, error)) error {
	if err := r.file.update(edit); err != nil {
		return err
	}
	r.take()
	return nil
}

func (r *Registry) find(name string) (*entry, bool) {
	for _, e := range r.entries() {
		if e.peer.Name == name {
			return e, true
		}
	}
	return nil, false
}

// Peers returns the peers in the order they were given, then the registered ones.
func (r *Registry) Peers() []Peer {
	entries := r.entries()
	out := make([]Peer, len(entries))
	for i, e := range entries {
		out[i] = e.peer
	}
	return out
}

// Lookup returns the peer of a name, or an *[UnknownPeerError].
func (r *Registry) Lookup(name string) (Peer, error) {
	if e, ok := r.find(name); ok {
		return e.peer, nil
	}
	err := &UnknownPeerError{Name: name}
	for _, e := range r.entries() {
		err.Known = append(err.Known, e.peer.Name)
	}
	err.Nearest = session.Nearest(name, err.Known)
	return Peer{}, err
}

// link is how a peer is asked.
type link struct {
	Client
	streaming bool // the peer can stream
	binding   protocol.TransportProtocol
	queued    bool // what is sent waits in a queue
}

// connect returns how a peer is asked.
func (r *Registry) connect(ctx context.Context, name string) (*link, error) {
	e, ok := r.find(name)
	if !ok {
		return nil, &CardError{Reason: fmt.Sprintf("the agent %q is no longer configured", name)}
	}
	if _, err := r.card(ctx, e, false); err != nil {
		if outcomeOf(err).kind == unknown {
			err = &NotSentError{Err: err} // whatever became of the card's request, no message has left
		}
		return nil, err
	}
	return r.connectEntry(ctx, e)
}

// connectEntry returns how a peer is asked by its card.
func (r *Registry) connectEntry(ctx context.Context, e *entry) (*link, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := speaks(e.peer.Name, e.card); err != nil {
		return nil, err
	}
	if e.link == nil {
		l, err := r.choose(ctx, e.peer, e.card)
		if err != nil {
			return nil, err
		}
		e.link = l
	}
	return e.link, nil
}

// choose connects over the first transport that can, in the order of the card's best interfaces: the newest version, then
// the binding that is preferred. Which of a transport's own interfaces it is, the transport decides by the same rule.
func (r *Registry) choose(ctx context.Context, p Peer, card *protocol.AgentCard) (*link, error) {
	type offer struct {
		transport Transport
		best      *protocol.AgentInterface
	}
	var offers []offer
	better := func(a, b *protocol.AgentInterface) bool {
		if c := compareVersions(a.ProtocolVersion, b.ProtocolVersion); c != 0 {
			return c > 0
		}
		return r.rank(a) < r.rank(b)
	}
	queues := 0
	for _, i := range card.SupportedInterfaces {
		t := r.cfg.Transport
		if i.ProtocolBinding == BindingAMQP {
			queues++
			// A registered agent's card must not lead us to queues, which are the operator's and ours.
			if t = r.cfg.Queue; t == nil || p.Registered {
				continue
			}
		}
		at := slices.IndexFunc(offers, func(o offer) bool { return o.transport == t })
		switch {
		case at < 0:
			offers = append(offers, offer{t, i})
		case better(i, offers[at].best):
			offers[at].best = i
		}
	}
	slices.SortStableFunc(offers, func(a, b offer) int {
		if better(a.best, b.best) {
			return -1
		}
		return 1
	})
	var first error
	for _, o := range offers {
		c, err := o.transport.Connect(ctx, p, card)
		if err == nil {
			queued := o.transport == r.cfg.Queue
			return &link{Client: c, streaming: card.Capabilities.Streaming, binding: o.best.ProtocolBinding, queued: queued}, nil
		}
		if first == nil {
			first = err
		}
	}
	switch {
	case first != nil:
		return nil, first
	case queues > 0 && p.Registered:
		return nil, &CardError{Reason: fmt.Sprintf("%s can only be asked through a queue, which only an operator can name, in peers.yaml", p.Name)}
	case queues > 0:
		return nil, noBroker(p.Name)
	}
	return nil, &CardError{Reason: p.Name + " has no interfaces, so it can't be called"}
}

func noBroker(name string) error {
	return &CardError{Reason: fmt.Sprintf("%s is asked through a queue, and no broker is configured (queue.url_env)", name)}
}

// rank is how early an interface's binding is tried.
func (r *Registry) rank(i *protocol.AgentInterface) int {
	if at := slices.Index(r.cfg.Prefer, string(i.ProtocolBinding)); at >= 0 {
		return at
	}
	return len(r.cfg.Prefer)
}

// compareVersions compares versions such as 1.0 by their numbers. None is older than any.
func compareVersions(a, b protocol.ProtocolVersion) int {
	return slices.Compare(versionNumbers(a), versionNumbers(b))
}

func versionNumbers(v protocol.ProtocolVersion) []int {
	var out []int
	for s := range strings.SplitSeq(string(v), ".") {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil
		}
		out = append(out, n)
	}
	return out
}

// carrier names the transport that a peer's calls go over, as far as it is known before a peer is connected to.
func (r *Registry) carrier(name string) string {
	if e, ok := r.find(name); ok && r.cfg.Queue != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.peer.Queue != "" || e.link != nil && e.link.queued {
			return r.cfg.Queue.Binding()
		}
	}
	return r.cfg.Transport.Binding()
}

// speaks refuses a card that requires an extension of the protocol which we don't know.
func speaks(name string, card *protocol.AgentCard) error {
	for _, x := range card.Capabilities.Extensions {
		if x.Required && x.URI != LineageURI {
			return &CardError{Reason: fmt.Sprintf("%s requires the extension %q of the protocol, which isn't spoken here, so it can't be asked", name, x.URI)}
		}
	}
	return nil
}

// activating asks the peer to use those of our extensions that its card offers.
func (r *Registry) activating(ctx context.Context, name string) context.Context {
	card := r.known(name)
	if card == nil || !slices.ContainsFunc(card.Capabilities.Extensions, func(x protocol.AgentExtension) bool { return x.URI == LineageURI }) {
		return ctx
	}
	return a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{protocol.SvcParamExtensions: {LineageURI}})
}

// refresh fetches a peer's card again, and reports whether its interfaces are others now.
func (r *Registry) refresh(ctx context.Context, name string) (changed bool, err error) {
	e, ok := r.find(name)
	if !ok {
		return false, nil
	}
	e.mu.Lock()
	before := e.card
	e.mu.Unlock()
	after, err := r.card(ctx, e, true)
	if err != nil || before == nil {
		return false, err
	}
	return !slices.EqualFunc(before.SupportedInterfaces, after.SupportedInterfaces, func(a, b *protocol.AgentInterface) bool { return *a == *b }), nil
}

// card returns an entry's card, fetched when there is none, when it is old, or anew. One fetch runs at a time; it is
// shared by all who want it.
func (r *Registry) card(ctx context.Context, e *entry, anew bool) (*protocol.AgentCard, error) {
	for {
		e.mu.Lock()
		switch {
		case e.card != nil && !anew && (len(e.peer.Endpoints) > 0 || time.Since(e.fetched) < r.cfg.Refresh):
			card := e.card
			e.mu.Unlock()
			return card, nil
		case len(e.peer.Endpoints) > 0:
			e.card = inlineCard(e.peer)
			card := e.card
			e.mu.Unlock()
			return card, nil
		}
		if running := e.fetching; running != nil {
			e.mu.Unlock()
			select {
			case <-running:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			e.mu.Lock()
			card := e.card
			e.mu.Unlock()
			if card != nil {
				return card, nil
			}
			continue
		}
		done := make(chan struct{})
		e.fetching = done
		e.mu.Unlock()

		card, err := r.fetch(ctx, e.peer)

		e.mu.Lock()
		e.fetching = nil
		close(done)
		lookAgain := time.Now().Add(time.Minute - r.cfg.Refresh)
		switch {
		case err == nil:
			e.card, e.assumed, e.link, e.fetched = card, "", nil, time.Now()
		case e.card != nil && e.assumed != "":
			e.assumed, e.fetched = err.Error(), lookAgain
			card, err = e.card, nil
		case e.card != nil:
			r.cfg.Logger.WarnContext(ctx, "can't fetch a card again; the old one is kept", "peer", e.peer.Name, "err", err)
			e.fetched = lookAgain
			card, err = e.card, nil
		case e.peer.Queue != "" && r.cfg.Queue != nil && ctx.Err() == nil:
			e.card, e.assumed, e.link, e.fetched = queueCard(e.peer, nil), err.Error(), nil, lookAgain
			card, err = e.card, nil
		}
		e.mu.Unlock()
		return card, err
	}
}

// fetch asks for a peer's card, where the peer is.
func (r *Registry) fetch(ctx context.Context, p Peer) (*protocol.AgentCard, error) {
	transport, bound, then := r.cfg.Transport, r.cfg.CardTimeout, ""
	if p.Queue != "" {
		then = "; what is sent waits in its queue"
		if transport, bound = r.cfg.Queue, r.cfg.QueueCardTimeout; transport == nil {
			return nil, noBroker(p.Name)
		}
	}
	fetchCtx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the card of %q did not come within %s%s", p.Name, bound, then))
	defer cancel()
	card, err := transport.Card(fetchCtx, p)
	if err != nil && fetchCtx.Err() != nil && ctx.Err() == nil {
		err = &NotSentError{Err: context.Cause(fetchCtx)}
	}
	if err == nil && p.Queue != "" {
		card = queueCard(p, card)
	}
	return card, err
}

// queueCard is the card of a peer behind a queue: its own, in which the operator's word on where it is stands, or without
// one what has to be assumed.
func queueCard(p Peer, own *protocol.AgentCard) *protocol.AgentCard {
	card := protocol.AgentCard{Name: p.Name, Description: p.Description, Capabilities: protocol.AgentCapabilities{Streaming: true}}
	if own != nil {
		card = *own
	}
	card.SupportedInterfaces = []*protocol.AgentInterface{{
		URL: "amqp:?queue=" + url.QueryEscape(p.Queue), ProtocolBinding: BindingAMQP, ProtocolVersion: protocol.Version,
	}}
	return &card
}

// inlineCard is the card of a peer that is described by its endpoints.
func inlineCard(p Peer) *protocol.AgentCard {
	card := &protocol.AgentCard{Name: p.Name, Description: p.Description, Capabilities: protocol.AgentCapabilities{Streaming: p.Streaming}}
	for _, ep := range p.Endpoints {
		card.SupportedInterfaces = append(card.SupportedInterfaces, &protocol.AgentInterface{
			URL: ep.URL, ProtocolBinding: protocol.TransportProtocol(ep.Binding), ProtocolVersion: protocol.ProtocolVersion(ep.Version),
		})
	}
	return card
}

// Skill is what a peer says it can do.
type Skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name,omitempty"`
	Description string   `json:"description,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	Examples    []string `json:"examples,omitempty"`
}

// Info is what is known of a peer: the operator's words and its card's.
type Info struct {
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"` // the operator's, else the card's
	Card        string     `json:"card,omitempty"`        // where the card is
	Queue       string     `json:"queue,omitempty"`       // through which it is asked
	Binding     string     `json:"binding,omitempty"`     // of the protocol, over which it is asked
	Registered  bool       `json:"registered,omitempty"`  // added at run time, not listed by the operator
	Reachable   bool       `json:"reachable"`
	Problem     string     `json:"problem,omitempty"` // why its card can't be had
	Version     string     `json:"version,omitempty"`
	Streaming   bool       `json:"streaming"`
	Endpoints   []Endpoint `json:"endpoints,omitempty"`
	Skills      []Skill    `json:"skills,omitempty"`
}

// Info returns what is known of one peer, fetching its card if need be. A peer whose card can't be had is no error; a
// name nobody has is an *[UnknownPeerError].
func (r *Registry) Info(ctx context.Context, name string) (Info, error) {
	if _, err := r.Lookup(name); err != nil {
		return Info{}, err
	}
	e, ok := r.find(name)
	if !ok {
		return Info{}, &UnknownPeerError{Name: name}
	}
	return r.info(ctx, e), nil
}

// Infos returns what is known of all peers, in their order. Cards are fetched at the same time.
func (r *Registry) Infos(ctx context.Context) []Info {
	entries := r.entries()
	out := make([]Info, len(entries))
	var wg sync.WaitGroup
	for i, e := range entries {
		wg.Go(func() { out[i] = r.info(ctx, e) })
	}
	wg.Wait()
	return out
}

func (r *Registry) info(ctx context.Context, e *entry) Info {
	in := Info{Name: e.peer.Name, Description: e.peer.Description, Card: e.peer.Card, Queue: e.peer.Queue, Registered: e.peer.Registered}
	card, err := r.card(ctx, e, false)
	var l *link
	if err == nil {
		l, err = r.connectEntry(ctx, e)
	}
	in.Reachable = err == nil
	if err != nil {
		in.Problem = err.Error()
	} else {
		in.Binding = string(l.binding)
		e.mu.Lock()
		if e.assumed != "" {
			in.Reachable, in.Problem = false, e.assumed
		}
		e.mu.Unlock()
	}
	if card == nil {
		return in
	}
	in.Description = cmp.Or(in.Description, card.Description)
	in.Version, in.Streaming = card.Version, card.Capabilities.Streaming
	for _, i := range card.SupportedInterfaces {
		in.Endpoints = append(in.Endpoints, Endpoint{URL: i.URL, Binding: string(i.ProtocolBinding), Version: string(i.ProtocolVersion)})
	}
	for _, s := range card.Skills {
		in.Skills = append(in.Skills, Skill{ID: s.ID, Name: s.Name, Description: s.Description, Tags: s.Tags, Examples: s.Examples})
	}
	return in
}

// known returns a peer's card if it has been fetched.
func (r *Registry) known(name string) *protocol.AgentCard {
	e, ok := r.find(name)
	if !ok {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.card
}
