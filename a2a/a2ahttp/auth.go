package a2ahttp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
)

// access is what a peer is sent to know us by: the operator's headers, and the credentials that its card asks for.
type access struct {
	peer    string
	origins map[string]bool // who may be sent anything
	secure  bool            // the card came by https, so that nothing is sent in the clear
	headers map[string]a2a.Secret
	keys    []placedKey
	bearer  a2a.Secret
	tokens  *tokens // of a bearer token that is fetched
	wants   string  // what the card asks for that we don't have
}

// placedKey is a key and its place.
type placedKey struct {
	in, name string
	value    a2a.Secret
}

// origin names a URL's scheme, host and port.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// newAccess returns what a peer is sent. Before its card is known, that is its headers. source gives the tokens of a key.
func newAccess(p a2a.Peer, card *protocol.AgentCard, source func(tokenKey) *tokens) (*access, error) {
	a := &access{peer: p.Name, headers: p.Headers, origins: make(map[string]bool)}
	if u, err := url.Parse(p.Card); err == nil && p.Card != "" {
		a.origins[origin(u)] = true
		a.secure = u.Scheme == "https"
	}
	if card == nil {
		return a, nil
	}
	for _, i := range card.SupportedInterfaces {
		if u, err := url.Parse(i.URL); err == nil && u.Host != "" {
			a.origins[origin(u)] = true
		}
	}
	m := &matcher{source: source, peer: p, card: card, access: a}
	return a, m.match()
}

// matcher finds the credentials that a card asks for.
type matcher struct {
	source func(tokenKey) *tokens
	peer   a2a.Peer
	card   *protocol.AgentCard
	access *access
}

// match places the credentials of the first of the card's alternatives that the peer has all of. A card that asks for
// nothing gets every credential, each as the scheme it fits says, else as the operator says.
func (m *matcher) match() error {
	if len(m.card.SecurityRequirements) == 0 {
		for _, c := range m.peer.Credentials {
			if err := m.place(c, m.schemeOf(c), nil); err != nil {
				return err
			}
		}
		return nil
	}
	for _, wanted := range m.card.SecurityRequirements {
		found, ok := m.all(wanted)
		if !ok {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			if err := m.place(*found[name], m.card.SecuritySchemes[name], wanted[name]); err != nil {
				return err
			}
		}
		return nil
	}
	m.access.wants = m.wants()
	if len(m.peer.Credentials) > 0 && len(m.peer.Headers) == 0 {
		return &a2a.CardError{Reason: fmt.Sprintf("%s wants %s, and its credentials in peers.yaml are for something else", m.peer.Name, m.access.wants)}
	}
	return nil // without credentials the peer has the word
}

// all returns a credential for each scheme of one alternative, and whether there is one for each. A client certificate
// needs no placing.
func (m *matcher) all(wanted protocol.SecurityRequirements) (map[protocol.SecuritySchemeName]*a2a.Credential, bool) {
	found := make(map[protocol.SecuritySchemeName]*a2a.Credential)
	for name := range wanted {
		scheme := m.card.SecuritySchemes[name]
		if _, ok := scheme.(protocol.MutualTLSSecurityScheme); ok {
			if m.peer.TLS.CertFile == "" {
				return nil, false
			}
			continue
		}
		i := slices.IndexFunc(m.peer.Credentials, func(c a2a.Credential) bool { return m.fits(c, name, scheme) })
		if i < 0 {
			return nil, false
		}
		found[name] = &m.peer.Credentials[i]
	}
	return found, true
}

// fits reports whether a credential is for a scheme.
func (m *matcher) fits(c a2a.Credential, name protocol.SecuritySchemeName, scheme protocol.SecurityScheme) bool {
	if c.Scheme != "" && c.Scheme != string(name) {
		return false
	}
	switch s := scheme.(type) {
	case protocol.APIKeySecurityScheme:
		return c.Type == a2a.CredentialAPIKey
	case protocol.HTTPAuthSecurityScheme:
		return strings.EqualFold(s.Scheme, "bearer") && (c.Type == a2a.CredentialBearer || c.Type == a2a.CredentialOAuth2 && c.TokenURL != "")
	case protocol.OpenIDConnectSecurityScheme:
		return c.Type == a2a.CredentialBearer || c.Type == a2a.CredentialOAuth2 && c.TokenURL != ""
	case protocol.OAuth2SecurityScheme:
		_, flow := s.Flows.(protocol.ClientCredentialsOAuthFlow)
		return c.Type == a2a.CredentialBearer || c.Type == a2a.CredentialOAuth2 && (flow || c.TokenURL != "")
	}
	return false
}

// schemeOf returns the first scheme of the card that a credential fits, or nil.
func (m *matcher) schemeOf(c a2a.Credential) protocol.SecurityScheme {
	for _, name := range slices.Sorted(maps.Keys(m.card.SecuritySchemes)) {
		if m.fits(c, name, m.card.SecuritySchemes[name]) {
			return m.card.SecuritySchemes[name]
		}
	}
	return nil
}

var fieldName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// place puts a credential where its scheme says.
func (m *matcher) place(c a2a.Credential, scheme protocol.SecurityScheme, scopes protocol.SecuritySchemeScopes) error {
	switch c.Type {
	case a2a.CredentialAPIKey:
		k := placedKey{in: c.In, name: c.Name, value: c.Value}
		if s, ok := scheme.(protocol.APIKeySecurityScheme); ok {
			k.in, k.name = string(s.Location), s.Name
		}
		if k.in != a2a.InHeader && k.in != a2a.InQuery && k.in != a2a.InCookie || !fieldName.MatchString(k.name) {
			return &a2a.CardError{Reason: fmt.Sprintf("the card of %s wants an API key in %q named %q, which can't be", m.peer.Name, k.in, k.name)}
		}
		m.access.keys = append(m.access.keys, k)
	case a2a.CredentialBearer:
		m.access.bearer = c.Value
	case a2a.CredentialOAuth2:
		endpoint := c.TokenURL
		if s, ok := scheme.(protocol.OAuth2SecurityScheme); ok && endpoint == "" {
			flow, _ := s.Flows.(protocol.ClientCredentialsOAuthFlow)
			if err := m.endpoint(flow.TokenURL); err != nil {
				return err
			}
			endpoint = flow.TokenURL
		}
		if endpoint == "" {
			return &a2a.CardError{Reason: fmt.Sprintf("neither the card of %s nor its token_url in peers.yaml says where its tokens are fetched", m.peer.Name)}
		}
		if len(c.Scopes) > 0 {
			scopes = c.Scopes
		}
		m.access.tokens = m.source(tokenKey{
			route: routeOf(m.peer), url: endpoint, id: c.ClientID, secret: c.ClientSecret, scopes: strings.Join(scopes, " "), post: c.PostSecret,
		})
	}
	return nil
}

// endpoint checks the token endpoint that a card names, since the client's secret goes there.
func (m *matcher) endpoint(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Host == "", u.Scheme != "https" && u.Scheme != "http", u.User != nil:
		return &a2a.CardError{Reason: fmt.Sprintf("the card of %s names a token endpoint that can't be one", m.peer.Name)}
	case u.Scheme == "http" && m.access.secure:
		return &a2a.CardError{Reason: fmt.Sprintf("the card of %s names a token endpoint without TLS, %s; a secret isn't sent there unless peers.yaml names it as token_url", m.peer.Name, u.Redacted())}
	}
	return nil
}

// wants says in words what a card asks for.
func (m *matcher) wants() string {
	var ways []string
	for _, wanted := range m.card.SecurityRequirements {
		var schemes []string
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			kind := "a scheme that isn't known"
			switch s := m.card.SecuritySchemes[name].(type) {
			case protocol.APIKeySecurityScheme:
				kind = "an API key"
			case protocol.HTTPAuthSecurityScheme:
				kind = "HTTP " + s.Scheme
			case protocol.OAuth2SecurityScheme:
				kind = "OAuth 2"
			case protocol.OpenIDConnectSecurityScheme:
				kind = "OpenID Connect"
			case protocol.MutualTLSSecurityScheme:
				kind = "a client certificate"
			}
			schemes = append(schemes, fmt.Sprintf("%s (scheme %q)", kind, name))
		}
		ways = append(ways, cmp.Or(strings.Join(schemes, " and "), "nothing"))
	}
	return strings.Join(ways, " or ")
}

// empty reports whether a peer is sent nothing.
func (a *access) empty() bool {
	return len(a.headers) == 0 && len(a.keys) == 0 && a.bearer == "" && a.tokens == nil
}

// accessTripper sends what a peer is to know us by, and takes it out of answers that quote it.
type accessTripper struct {
	base http.RoundTripper
	*access
}

// RoundTrip implements http.RoundTripper.
func (t *accessTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.empty() {
		return t.base.RoundTrip(req)
	}
	if !t.origins[origin(req.URL)] {
		closeBody(req)
		return nil, &a2a.CardError{Reason: fmt.Sprintf("%s leads to %s, which its card doesn't name; it isn't sent there what %s knows us by", t.peer, origin(req.URL), t.peer)}
	}
	if t.secure && req.URL.Scheme != "https" {
		closeBody(req)
		return nil, &a2a.CardError{Reason: fmt.Sprintf("%s leads from its card by https to %s without TLS; credentials aren't sent there", t.peer, origin(req.URL))}
	}
	sent, token, err := t.with(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	resp, err := t.base.RoundTrip(sent)
	if err == nil && token != "" && unauthorized(resp) {
		t.tokens.refused(token)
		if again, rerr := replay(req); rerr == nil {
			resp.Body.Close()
			if sent, token, err = t.with(again); err != nil {
				closeBody(again)
				return nil, err
			}
			resp, err = t.base.RoundTrip(sent)
		}
	}
	if err != nil {
		return nil, err
	}
	resp.Request = req // what was sent has secrets in it
	if secrets := t.secrets(token); len(secrets) > 0 {
		scrubHeader(resp.Header, secrets)
		resp.Body = &scrubBody{ReadCloser: resp.Body, resp: resp, secrets: secrets}
	}
	return resp, nil
}

// unauthorized reports whether an answer refuses who we are, over gRPC, too.
func unauthorized(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusOK && resp.Header.Get("Grpc-Status") == "16"
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

var errNoReplay = errors.New("the request can't be sent again")

// replay returns the request with its body from the start.
func replay(req *http.Request) (*http.Request, error) {
	again := req.Clone(req.Context())
	if req.Body == nil || req.Body == http.NoBody {
		return again, nil
	}
	if req.GetBody == nil {
		return nil, errNoReplay
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, err
	}
	again.Body = body
	return again, nil
}

// with returns a copy of the request with all that the peer is to know us by, and the token that was fetched for it.
func (a *access) with(req *http.Request) (_ *http.Request, token string, err error) {
	sent := req.Clone(req.Context())
	for name, value := range a.headers {
		sent.Header.Set(name, string(value))
	}
	var query []string
	for _, k := range a.keys {
		switch k.in {
		case a2a.InHeader:
			sent.Header.Set(k.name, string(k.value))
		case a2a.InCookie:
			sent.AddCookie(&http.Cookie{Name: k.name, Value: string(k.value), Quoted: strings.ContainsAny(string(k.value), " ,")})
		case a2a.InQuery:
			query = append(query, url.QueryEscape(k.name)+"="+url.QueryEscape(string(k.value)))
		}
	}
	if len(query) > 0 {
		if sent.URL.RawQuery != "" {
			query = append([]string{sent.URL.RawQuery}, query...)
		}
		sent.URL.RawQuery = strings.Join(query, "&")
	}
	bearer := string(a.bearer)
	if a.tokens != nil {
		if token, err = a.tokens.get(req.Context()); err != nil {
			return nil, "", err
		}
		bearer = token
	}
	if bearer != "" {
		sent.Header.Set("Authorization", "Bearer "+bearer)
	}
	return sent, token, nil
}

// leastScrubbed is how long a text has to be to be looked for in answers: what is shorter is in many by chance.
const leastScrubbed = 8

// secrets returns what mustn't be in an answer.
func (a *access) secrets(token string) [][]byte {
	var out [][]byte
	add := func(s string) {
		if len(s) >= leastScrubbed {
			out = append(out, []byte(s))
		}
	}
	for _, v := range a.headers {
		_, after, ok := strings.Cut(string(v), " ") // Bearer TOKEN
		if ok {
			add(after)
		} else {
			add(string(v))
		}
	}
	for _, k := range a.keys {
		add(string(k.value))
		if e := url.QueryEscape(string(k.value)); e != string(k.value) {
			add(e)
		}
	}
	add(string(a.bearer))
	add(token)
	return out
}

// scrubbed overwrites secrets in data, in place: nothing changes its length, so no format breaks.
func scrubbed(data []byte, secrets [][]byte) []byte {
	for _, s := range secrets {
		for from := 0; ; {
			i := bytes.Index(data[from:], s)
			if i < 0 {
				break
			}
			for j := range s {
				data[from+i+j] = '*'
			}
			from += i + len(s)
		}
	}
	return data
}

func scrubHeader(h http.Header, secrets [][]byte) {
	for _, values := range h {
		for i, v := range values {
			values[i] = string(scrubbed([]byte(v), secrets))
		}
	}
}

// scrubBody holds back what may be the beginning of a secret until it is known, and nothing else.
type scrubBody struct {
	io.ReadCloser
	resp    *http.Response // whose trailers come with the end of the body
	secrets [][]byte
	ready   []byte // overwritten, for the next reads
	held    []byte // may be the beginning of a secret
	err     error
}

// Read implements io.Reader.
func (b *scrubBody) Read(p []byte) (int, error) {
	for len(b.ready) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, err := b.ReadCloser.Read(p)
		data := append(b.held, p[:n]...)
		b.held, b.err = nil, err
		scrubbed(data, b.secrets)
		keep := 0
		if err == nil {
			keep = b.beginning(data)
		} else {
			scrubHeader(b.resp.Trailer, b.secrets)
		}
		b.ready = data[:len(data)-keep]
		if keep > 0 {
			b.held = bytes.Clone(data[len(data)-keep:])
		}
	}
	n := copy(p, b.ready)
	if b.ready = b.ready[n:]; len(b.ready) == 0 {
		b.ready = nil // a silent stream holds nothing
	}
	return n, nil
}

// beginning returns how long the longest end of data is that a secret begins with.
func (b *scrubBody) beginning(data []byte) int {
	longest := 0
	for _, s := range b.secrets {
		for n := min(len(s)-1, len(data)); n > longest; n-- {
			if bytes.HasPrefix(s, data[len(data)-n:]) {
				longest = n
				break
			}
		}
	}
	return longest
}
