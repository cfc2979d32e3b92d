package a2ahttp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"orchestrator/a2a"
	"orchestrator/a2a/a2ahttp"
)

// answer is a JSON-RPC answer with a message.
const answer = `{"jsonrpc":"2.0","id":"1","result":{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}}`

// recorder is a peer that records what each request carries.
type recorder struct {
	mu   sync.Mutex
	seen []*http.Request
	say  func(w http.ResponseWriter, r *http.Request) bool // reports whether it answered
}

func (g *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.seen = append(g.seen, r)
	g.mu.Unlock()
	if g.say != nil && g.say(w, r) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, answer) //nolint:errcheck // the client notices
}

func (g *recorder) last(t *testing.T) *http.Request {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.seen) == 0 {
		t.Fatal("nothing was sent")
	}
	return g.seen[len(g.seen)-1]
}

// cardOf is a card with an interface at a URL, and what it asks for.
func cardOf(url string, schemes protocol.NamedSecuritySchemes, wanted ...protocol.SecurityRequirements) *protocol.AgentCard {
	return &protocol.AgentCard{
		Name: "p", SecuritySchemes: schemes, SecurityRequirements: wanted,
		SupportedInterfaces: []*protocol.AgentInterface{protocol.NewAgentInterface(url, protocol.TransportProtocolJSONRPC)},
	}
}

func send(t *testing.T, tr *a2ahttp.Transport, p a2a.Peer, card *protocol.AgentCard) error {
	t.Helper()
	c, err := tr.Connect(t.Context(), p, card)
	if err != nil {
		return err
	}
	_, err = c.GetTask(t.Context(), &protocol.GetTaskRequest{ID: "t"})
	return err
}

func TestCredentialsArePlacedAsTheCardSays(t *testing.T) {
	key := func(in protocol.APIKeySecuritySchemeLocation, name string) protocol.SecurityScheme {
		return protocol.APIKeySecurityScheme{Location: in, Name: name}
	}
	schemes := protocol.NamedSecuritySchemes{
		"header": key("header", "X-Key"), "query": key("query", "key"), "cookie": key("cookie", "session"),
		"bearer": protocol.HTTPAuthSecurityScheme{Scheme: "Bearer"}, "oidc": protocol.OpenIDConnectSecurityScheme{}, "tls": protocol.MutualTLSSecurityScheme{},
	}
	apiKey, bearer := a2a.Credential{Type: a2a.CredentialAPIKey, Value: "the-key", In: "header", Name: "X-API-Key"}, a2a.Credential{Type: a2a.CredentialBearer, Value: "the-token"}
	all := func(names ...protocol.SecuritySchemeName) protocol.SecurityRequirements {
		r := protocol.SecurityRequirements{}
		for _, n := range names {
			r[n] = nil
		}
		return r
	}
	for name, tc := range map[string]struct {
		credentials []a2a.Credential
		wanted      []protocol.SecurityRequirements
		want        string // header X-Key, header X-API-Key, query key, cookie session, Authorization
		err         string
	}{
		"a key in a header":                  {[]a2a.Credential{apiKey}, []protocol.SecurityRequirements{all("header")}, "the-key||||", ""},
		"a key in the query":                 {[]a2a.Credential{apiKey}, []protocol.SecurityRequirements{all("query")}, "||the-key||", ""},
		"a key in a cookie":                  {[]a2a.Credential{apiKey}, []protocol.SecurityRequirements{all("cookie")}, "|||the-key|", ""},
		"a token":                            {[]a2a.Credential{bearer}, []protocol.SecurityRequirements{all("bearer")}, "||||Bearer the-token", ""},
		"a token of OpenID Connect":          {[]a2a.Credential{bearer}, []protocol.SecurityRequirements{all("oidc")}, "||||Bearer the-token", ""},
		"both":                               {[]a2a.Credential{apiKey, bearer}, []protocol.SecurityRequirements{all("query", "bearer")}, "||the-key||Bearer the-token", ""},
		"the alternative that can be met":    {[]a2a.Credential{bearer}, []protocol.SecurityRequirements{all("header"), all("tls"), all("bearer")}, "||||Bearer the-token", ""},
		"what isn't asked for stays":         {[]a2a.Credential{apiKey, bearer}, []protocol.SecurityRequirements{all("header")}, "the-key||||", ""},
		"nothing asked for, a scheme fits":   {[]a2a.Credential{{Type: a2a.CredentialAPIKey, Value: "the-key", Scheme: "query"}}, nil, "||the-key||", ""},
		"the scheme that is named":           {[]a2a.Credential{{Type: a2a.CredentialAPIKey, Value: "the-key", Scheme: "cookie"}}, []protocol.SecurityRequirements{all("header"), all("cookie")}, "|||the-key|", ""},
		"nobody needs to be known":           {nil, []protocol.SecurityRequirements{all("header"), {}}, "||||", ""},
		"credentials for something else":     {[]a2a.Credential{bearer}, []protocol.SecurityRequirements{all("header", "tls")}, "", `p wants an API key (scheme "header") and a client certificate (scheme "tls"), and its credentials in peers.yaml are for something else`},
		"without credentials the peer talks": {nil, []protocol.SecurityRequirements{all("header")}, "||||", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := &recorder{}
			url := serve(t, g.ServeHTTP)
			err := send(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p", Card: url, Credentials: tc.credentials}, cardOf(url, schemes, tc.wanted...))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("the error is %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := g.last(t)
			cookie := ""
			if c, err := r.Cookie("session"); err == nil {
				cookie = c.Value
			}
			got := strings.Join([]string{r.Header.Get("X-Key"), r.Header.Get("X-API-Key"), r.URL.Query().Get("key"), cookie, r.Header.Get("Authorization")}, "|")
			if got != tc.want {
				t.Errorf("the peer got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestARefusalSaysWhatTheCardAsksFor(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	schemes := protocol.NamedSecuritySchemes{"k": protocol.APIKeySecurityScheme{Location: "header", Name: "X-Key"}}
	err := send(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p", Card: url}, cardOf(url, schemes, protocol.SecurityRequirements{"k": nil}))
	if want := `401 Unauthorized: it wants an API key (scheme "k"), which peers.yaml has no credentials for`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want %q", err, want)
	}
}

func TestCredentialsStayWithTheHostsTheCardNames(t *testing.T) {
	var other recorder
	away := serve(t, other.ServeHTTP)
	bearer := []a2a.Credential{{Type: a2a.CredentialBearer, Value: "the-token"}, {Type: a2a.CredentialAPIKey, Value: "the-key", In: "query", Name: "key"}}
	home := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, away, http.StatusTemporaryRedirect) })
	tr := newTransport(t, a2ahttp.Config{})
	err := send(t, tr, a2a.Peer{Name: "p", Card: home, Credentials: bearer}, cardOf(home, nil))
	if err == nil || !strings.Contains(err.Error(), "nor are its credentials") || strings.Contains(err.Error(), "the-key") {
		t.Errorf("a redirect to another host gives %v", err)
	}
	if len(other.seen) != 0 {
		t.Errorf("another host got %v", other.seen[0].Header)
	}
	// The card's host needn't be the interface's: that is what the card is for.
	if err := send(t, tr, a2a.Peer{Name: "p", Card: home, Credentials: bearer}, cardOf(away, nil)); err != nil || other.last(t).Header.Get("Authorization") == "" {
		t.Errorf("an interface at another host gives %v", err)
	}
	err = send(t, tr, a2a.Peer{Name: "p", Card: "https://p.example", Credentials: bearer}, cardOf(away, nil))
	if err == nil || !strings.Contains(err.Error(), "without TLS; credentials aren't sent there") {
		t.Errorf("an interface without TLS of a card with it gives %v", err)
	}
}

// tokenServer gives tokens t1, t2, ...
func tokenServer(t *testing.T, n *atomic.Int64, lifetime int) string {
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		if id != "me" || secret != "my+secret" || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "read write" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"error": "invalid_client", "error_description": "my secret is wrong"}`) //nolint:errcheck // the client notices
			return
		}
		fmt.Fprintf(w, `{"access_token": "token-%d", "token_type": "Bearer", "expires_in": %d}`, n.Add(1), lifetime)
	})
}

func oauth(endpoint string) (protocol.NamedSecuritySchemes, protocol.SecurityRequirements) {
	return protocol.NamedSecuritySchemes{"o": protocol.OAuth2SecurityScheme{Flows: protocol.ClientCredentialsOAuthFlow{TokenURL: endpoint, Scopes: map[string]string{}}}},
		protocol.SecurityRequirements{"o": {"read", "write"}}
}

func TestATokenIsFetchedOnceKeptAndRenewedWhenItIsRefused(t *testing.T) {
	var fetched atomic.Int64
	endpoint := tokenServer(t, &fetched, 3600)
	refuse := &atomic.Bool{}
	g := &recorder{say: func(w http.ResponseWriter, r *http.Request) bool {
		if refuse.Load() && r.Header.Get("Authorization") != "Bearer token-2" {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}}
	url := serve(t, g.ServeHTTP)
	schemes, wanted := oauth(endpoint)
	p := a2a.Peer{Name: "p", Card: url, Credentials: []a2a.Credential{{Type: a2a.CredentialOAuth2, ClientID: "me", ClientSecret: "my secret"}}}
	tr := newTransport(t, a2ahttp.Config{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := send(t, tr, p, cardOf(url, schemes, wanted)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := fetched.Load(); n != 1 || g.last(t).Header.Get("Authorization") != "Bearer token-1" {
		t.Errorf("%d tokens were fetched, the last sent is %q", n, g.last(t).Header.Get("Authorization"))
	}
	refuse.Store(true)
	if err := send(t, tr, p, cardOf(url, schemes, wanted)); err != nil || fetched.Load() != 2 {
		t.Errorf("after a refusal: %v, %d tokens", err, fetched.Load())
	}
	refuse.Store(false)
	g.say = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusUnauthorized); return true }
	before := len(g.seen)
	err := send(t, tr, p, cardOf(url, schemes, wanted))
	if se, ok := errors.AsType[*a2a.StatusError](err); !ok || se.Code != http.StatusUnauthorized || len(g.seen) != before+2 {
		t.Errorf("a peer that refuses every token gives %v after %d requests", err, len(g.seen)-before)
	}
}

func TestATokenIsFetchedAnewBeforeItEnds(t *testing.T) {
	var fetched atomic.Int64
	g := &recorder{}
	url := serve(t, g.ServeHTTP)
	schemes, wanted := oauth(tokenServer(t, &fetched, 1)) // renewed after 0.8 s
	p := a2a.Peer{Name: "p", Card: url, Credentials: []a2a.Credential{{Type: a2a.CredentialOAuth2, ClientID: "me", ClientSecret: "my secret"}}}
	tr := newTransport(t, a2ahttp.Config{})
	deadline := time.Now().Add(20 * time.Second)
	for fetched.Load() < 2 && time.Now().Before(deadline) {
		if err := send(t, tr, p, cardOf(url, schemes, wanted)); err != nil {
			t.Fatal(err)
		}
	}
	if got := g.last(t).Header.Get("Authorization"); got != "Bearer token-2" {
		t.Errorf("the last token sent is %q", got)
	}
}

func TestATokenThatIsNotGivenIsRefusedWithoutTheSecret(t *testing.T) {
	var fetched atomic.Int64
	schemes, wanted := oauth(tokenServer(t, &fetched, 60))
	g := &recorder{}
	url := serve(t, g.ServeHTTP)
	p := a2a.Peer{Name: "p", Card: url, Credentials: []a2a.Credential{{Type: a2a.CredentialOAuth2, ClientID: "me", ClientSecret: "other secret"}}}
	err := send(t, newTransport(t, a2ahttp.Config{}), p, cardOf(url, schemes, wanted))
	if err == nil || !strings.Contains(err.Error(), "401 Unauthorized (invalid_client)") || strings.Contains(err.Error(), "secret is wrong") || len(g.seen) > 0 {
		t.Errorf("the error is %v, the peer got %d requests", err, len(g.seen))
	}
	plain, _ := oauth("http://tokens.example")
	p.Card = "https://p.example"
	err = send(t, newTransport(t, a2ahttp.Config{}), p, cardOf("https://p.example", plain, wanted))
	if err == nil || !strings.Contains(err.Error(), "names a token endpoint without TLS") {
		t.Errorf("a token endpoint without TLS gives %v", err)
	}
}

func TestASecretThatAPeerQuotesIsTakenOut(t *testing.T) {
	const secret = "sk-0123456789abcdef"
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		said := fmt.Sprintf(`data: {"jsonrpc":"2.0","id":"1","error":{"code":-32603,"message":"bad token %s (%s)"}}`+"\n\n", r.Header.Get("Authorization"), r.URL.Query().Get("key"))
		for _, b := range []byte(said) { // the secret comes in pieces
			w.Write([]byte{b}) //nolint:errcheck // the client notices
			w.(http.Flusher).Flush()
		}
	})
	p := a2a.Peer{Name: "p", Card: url, Credentials: []a2a.Credential{
		{Type: a2a.CredentialBearer, Value: secret}, {Type: a2a.CredentialAPIKey, Value: "key-" + secret, In: "query", Name: "key"},
	}}
	card := cardOf(url, nil)
	card.Capabilities.Streaming = true
	c, err := newTransport(t, a2ahttp.Config{}).Connect(t.Context(), p, card)
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream(t.Context(), c)
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "bad token Bearer "+strings.Repeat("*", len(secret))) {
		t.Errorf("the error is %v", err)
	}
}

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.key, a.cert, a.file = certificate(t, nil, "authority")
	return a
}

// certificate writes a certificate and its key into one file.
func certificate(t *testing.T, by *authority, name string) (*ecdsa.PrivateKey, *x509.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := tmpl, key
	if by == nil {
		tmpl.IsCA = true
	} else {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name+".pem")
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return key, cert, file
}

func TestPeersMayHaveAuthoritiesAndCertificatesOfTheirOwn(t *testing.T) {
	ca := newAuthority(t)
	_, _, serverFile := certificate(t, ca, "peer.internal")
	_, _, clientFile := certificate(t, ca, "us")
	pair, err := tls.LoadX509KeyPair(serverFile, serverFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	g := &recorder{}
	srv := httptest.NewUnstartedServer(g)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	schemes, wanted := protocol.NamedSecuritySchemes{"m": protocol.MutualTLSSecurityScheme{}}, protocol.SecurityRequirements{"m": nil}
	full := a2a.TLS{CAFile: ca.file, CertFile: clientFile, KeyFile: clientFile, ServerName: "peer.internal"}
	tr := newTransport(t, a2ahttp.Config{})
	if err := send(t, tr, a2a.Peer{Name: "p", Card: srv.URL, TLS: full}, cardOf(srv.URL, schemes, wanted)); err != nil || g.last(t).TLS.PeerCertificates[0].Subject.CommonName != "us" {
		t.Errorf("with authority, certificate and name: %v", err)
	}
	for what, c := range map[string]a2a.TLS{
		"unknown authority": {CertFile: clientFile, KeyFile: clientFile, ServerName: "peer.internal"},
		"certificate":       {CAFile: ca.file, ServerName: "peer.internal"},
		"127.0.0.1":         {CAFile: ca.file, CertFile: clientFile, KeyFile: clientFile},
	} {
		err := send(t, tr, a2a.Peer{Name: "p", Card: srv.URL, TLS: c}, cardOf(srv.URL, nil))
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("without what makes %q: %v", what, err)
		}
	}
	old := httptest.NewUnstartedServer(g)
	old.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	t.Cleanup(old.Close)
	if err := send(t, tr, a2a.Peer{Name: "p", Card: old.URL, TLS: full}, cardOf(old.URL, nil)); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("a peer that speaks TLS 1.1 gives %v", err)
	}
}

func TestFilesOfTLSThatCannotBeReadAreAnError(t *testing.T) {
	err := send(t, newTransport(t, a2ahttp.Config{}), a2a.Peer{Name: "p", Card: "https://p.example", TLS: a2a.TLS{CAFile: "/nonexistent"}}, cardOf("https://p.example", nil))
	if err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("the error is %v", err)
	}
}
