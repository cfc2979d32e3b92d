package a2a

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// CredentialType says how a credential is used.
type CredentialType string

// The types of credentials.
const (
	CredentialAPIKey CredentialType = "api_key" // a key in a header, the query or a cookie
	CredentialBearer CredentialType = "bearer"  // a token that is known
	CredentialOAuth2 CredentialType = "oauth2"  // a token that is fetched for a client's id and secret
)

// The places of an API key.
const (
	InHeader = "header"
	InQuery  = "query"
	InCookie = "cookie"
)

// Credential is what proves to a peer who asks. It is sent to the hosts of the interfaces that the peer's card or the
// operator names, and to no other.
type Credential struct {
	Type CredentialType
	// Scheme is the name of the security scheme of the card that the credential is for. Empty: every one it fits.
	Scheme string
	Value  Secret // the key or the token
	// In and Name place an API key when no scheme of the card does. In defaults to InHeader, Name to "X-API-Key".
	In, Name string
	// ClientID and ClientSecret are what OAuth2 gives a token for.
	ClientID     Secret
	ClientSecret Secret
	// TokenURL is where tokens are fetched. Defaults to what the card's scheme says.
	TokenURL string
	Scopes   []string // Defaults to those that the card requires.
	// PostSecret sends the client's id and secret in the body of the token request rather than as its user and password.
	PostSecret bool
}

// TLS says how a connection to a peer is made secure. The zero value trusts the machine's authorities.
type TLS struct {
	CAFile     string // the authorities to trust instead of the machine's, PEM
	CertFile   string // our certificate, PEM
	KeyFile    string // the certificate's key, PEM
	ServerName string // whom the peer's certificate has to name, when it isn't the host of the URL
}

// check reads the files, so that a wrong one is known at the start.
func (t TLS) check() (field string, err error) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return "cert_file", errors.New("cert_file and key_file go together")
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return "ca_file", fmt.Errorf("read the authorities: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return "ca_file", fmt.Errorf("%s holds no certificate in PEM", t.CAFile)
		}
	}
	if t.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
			return "cert_file", fmt.Errorf("read the certificate: %w", err)
		}
	}
	return "", nil
}

type credentialYAML struct {
	Type             string   `yaml:"type"`
	Scheme           string   `yaml:"scheme"`
	ValueEnv         string   `yaml:"value_env"`
	ValueFile        string   `yaml:"value_file"`
	In               string   `yaml:"in"`
	Name             string   `yaml:"name"`
	ClientIDEnv      string   `yaml:"client_id_env"`
	ClientIDFile     string   `yaml:"client_id_file"`
	ClientSecretEnv  string   `yaml:"client_secret_env"`
	ClientSecretFile string   `yaml:"client_secret_file"`
	TokenURL         string   `yaml:"token_url"`
	Scopes           []string `yaml:"scopes"`
	ClientAuth       string   `yaml:"client_auth"`
}

type tlsYAML struct {
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"`
}

// secrets finds what the file names but doesn't hold.
type secrets struct {
	dir string // what relative paths are relative to
	env func(string) (string, bool)
}

func (s secrets) path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(s.dir, p)
}

// maxSecret bounds a secret, in bytes.
const maxSecret = 64 << 10

// read returns the secret that an environment variable or a file holds.
func (s secrets) read(key, env, file string) (Secret, string, error) {
	var value string
	switch {
	case env != "" && file != "":
		return "", key + "_env", fmt.Errorf("set %s_env or %s_file, not both", key, key)
	case env != "":
		v, ok := s.env(env)
		if !ok || strings.TrimSpace(v) == "" {
			return "", key + "_env", fmt.Errorf("%s_env names the environment variable %s, which isn't set", key, safeName(env))
		}
		value = v
	case file != "":
		b, err := os.ReadFile(s.path(file))
		if err != nil {
			return "", key + "_file", fmt.Errorf("read the secret: %w", err)
		}
		value = string(b)
	default:
		return "", key + "_env", fmt.Errorf("%s_env or %s_file has to say where the secret is", key, key)
	}
	value = strings.TrimSpace(value)
	switch {
	case value == "":
		return "", key + "_file", fmt.Errorf("%s_file names an empty file", key)
	case len(value) > maxSecret:
		return "", key + "_file", fmt.Errorf("the secret has %d bytes, which is no secret", len(value))
	case headerBreak.MatchString(value):
		return "", key + "_file", errors.New("the secret can't be sent: it holds a line break or a control character")
	}
	return Secret(value), "", nil
}

// safeName keeps an error from printing a secret that was written where its variable's name belongs.
func safeName(env string) string {
	if envRef.MatchString("${env:" + env + "}") {
		return env
	}
	return "(not a variable's name)"
}

// credential returns the credential with its secrets, or what is wrong and in which key.
func (s secrets) credential(y credentialYAML) (c Credential, field string, err error) {
	c = Credential{Type: CredentialType(y.Type), Scheme: y.Scheme, In: y.In, Name: y.Name, TokenURL: y.TokenURL, Scopes: y.Scopes}
	if c.Type != CredentialAPIKey && c.Type != CredentialBearer && c.Type != CredentialOAuth2 {
		return c, "type", fmt.Errorf("a credential's type is api_key, bearer or oauth2, not %q", y.Type)
	}
	if c.Type != CredentialAPIKey && (y.In != "" || y.Name != "") {
		return c, "in", errors.New("only an api_key has in and name")
	}
	if c.Type != CredentialOAuth2 {
		if y.ClientIDEnv+y.ClientIDFile+y.ClientSecretEnv+y.ClientSecretFile+y.TokenURL+y.ClientAuth != "" || len(y.Scopes) > 0 {
			return c, "type", errors.New("only oauth2 has a client, a token_url, a client_auth and scopes")
		}
		c.Value, field, err = s.read("value", y.ValueEnv, y.ValueFile)
		if err != nil || c.Type == CredentialBearer {
			return c, field, err
		}
		c.In, c.Name = cmp.Or(c.In, InHeader), cmp.Or(c.Name, "X-API-Key")
		switch {
		case c.In != InHeader && c.In != InQuery && c.In != InCookie:
			return c, "in", fmt.Errorf("an api_key is in a header, the query or a cookie, not %q", y.In)
		case !headerName.MatchString(c.Name):
			return c, "name", fmt.Errorf("%q can't be the name of a header, a parameter or a cookie", y.Name)
		}
		return c, "", nil
	}
	if y.ValueEnv+y.ValueFile != "" {
		return c, "value_env", errors.New("oauth2 has client_id and client_secret instead of a value")
	}
	if c.ClientID, field, err = s.read("client_id", y.ClientIDEnv, y.ClientIDFile); err != nil {
		return c, field, err
	}
	if c.ClientSecret, field, err = s.read("client_secret", y.ClientSecretEnv, y.ClientSecretFile); err != nil {
		return c, field, err
	}
	if c.TokenURL != "" {
		if err := checkURL(c.TokenURL); err != nil {
			return c, "token_url", err
		}
	}
	switch y.ClientAuth {
	case "", "basic":
	case "post":
		c.PostSecret = true
	default:
		return c, "client_auth", fmt.Errorf("client_auth is basic or post, not %q", y.ClientAuth)
	}
	return c, "", nil
}
