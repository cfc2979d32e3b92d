package a2a

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"orchestrator/session"
)

// peersYAML is the file; its tags are all the keys it may have.
type peersYAML struct {
	Peers []peerYAML `yaml:"peers"`
}

type peerYAML struct {
	Name            string            `yaml:"name"`
	Card            string            `yaml:"card"`
	Endpoints       []endpointYAML    `yaml:"endpoints"`
	Queue           string            `yaml:"queue"`
	BrokerEnv       string            `yaml:"broker_env"`
	BrokerFile      string            `yaml:"broker_file"`
	DurableQueue    bool              `yaml:"durable_queue"`
	Streaming       bool              `yaml:"streaming"`
	Description     string            `yaml:"description"`
	Timeout         string            `yaml:"timeout"`
	OnTimeout       string            `yaml:"on_timeout"`
	Resend          string            `yaml:"resend"`
	OnInputRequired string            `yaml:"on_input_required"`
	Headers         map[string]string `yaml:"headers"`
	Credentials     []credentialYAML  `yaml:"credentials"`
	TLS             tlsYAML           `yaml:"tls"`
}

type endpointYAML struct {
	URL     string `yaml:"url"`
	Binding string `yaml:"binding"`
	Version string `yaml:"version"`
}

// peerKeys are the keys an unknown one is compared with.
var peerKeys = []string{
	"peers", "name", "card", "endpoints", "streaming", "description", "timeout", "on_timeout", "resend", "on_input_required",
	"headers", "url", "binding", "version", "credentials", "tls", "type", "scheme", "value_env", "value_file", "in",
	"client_id_env", "client_id_file", "client_secret_env", "client_secret_file", "token_url", "scopes", "client_auth",
	"ca_file", "cert_file", "key_file", "server_name", "queue", "broker_env", "broker_file", "durable_queue",
}

// LoadPeers reads a peers file. ${env:NAME} in a header's value is read from the environment.
func LoadPeers(path string) ([]Peer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read peers: %w", err)
	}
	return parsePeers(filepath.Base(path), data, secrets{dir: filepath.Dir(path), env: os.LookupEnv})
}

// ParsePeers reads the text of a peers file. file names it in errors, which say the line, and the files it names are
// relative to its folder; env looks up what ${env:NAME} and the keys *_env stand for. An unknown key, a name used twice, and
// a variable or file of a secret that isn't there are errors.
func ParsePeers(file string, data []byte, env func(string) (string, bool)) ([]Peer, error) {
	return parsePeers(file, data, secrets{dir: filepath.Dir(file), env: env})
}

func parsePeers(file string, data []byte, from secrets) ([]Peer, error) {
	doc, err := parseYAML(data)
	if err != nil {
		return nil, located(file, err)
	}
	var f peersYAML
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return nil, located(file, err)
	}
	at := func(i int, field string, err error) error {
		path := fmt.Sprintf("$.peers[%d]", i)
		for _, p := range []string{path + "." + field, parentOf(path + "." + field), path} {
			if yp, perr := yaml.PathString(p); perr == nil && doc != nil {
				if node, ferr := yp.FilterFile(doc); ferr == nil && node.GetToken() != nil {
					return fmt.Errorf("%s:%d: %w", file, node.GetToken().Position.Line, err)
				}
			}
		}
		return fmt.Errorf("%s: %w", file, err)
	}
	peers := make([]Peer, 0, len(f.Peers))
	for i, y := range f.Peers {
		p := Peer{
			Name: y.Name, Card: y.Card, Streaming: y.Streaming, Description: strings.TrimSpace(y.Description),
			Queue: y.Queue, DurableQueue: y.DurableQueue,
			OnTimeout: OnTimeout(y.OnTimeout), Resend: Resend(y.Resend), OnInputRequired: OnInputRequired(y.OnInputRequired),
		}
		for _, e := range y.Endpoints {
			p.Endpoints = append(p.Endpoints, Endpoint(e))
		}
		if y.Timeout != "" {
			d, err := time.ParseDuration(y.Timeout)
			if err != nil || d <= 0 {
				return nil, at(i, "timeout", fmt.Errorf("a timeout is a duration like 90s or 2m, not %q", y.Timeout))
			}
			p.Timeout = d
		}
		if p.Headers, err = headers(y.Headers, from.env); err != nil {
			return nil, at(i, "headers", err)
		}
		if y.BrokerEnv != "" || y.BrokerFile != "" {
			var field string
			if p.Broker, field, err = from.read("broker", y.BrokerEnv, y.BrokerFile); err != nil {
				return nil, at(i, field, err)
			}
			if u, err := url.Parse(string(p.Broker)); err != nil || u.Scheme != "amqp" && u.Scheme != "amqps" || u.Host == "" {
				return nil, at(i, "broker_env", errors.New("the URL of the broker is none such as amqp://user:password@host/vhost"))
			}
		}
		for j, cy := range y.Credentials {
			c, field, err := from.credential(cy)
			if err != nil {
				return nil, at(i, fmt.Sprintf("credentials[%d].%s", j, field), err)
			}
			p.Credentials = append(p.Credentials, c)
		}
		p.TLS = TLS{
			CAFile: from.path(y.TLS.CAFile), CertFile: from.path(y.TLS.CertFile), KeyFile: from.path(y.TLS.KeyFile), ServerName: y.TLS.ServerName,
		}
		if field, err := p.TLS.check(); err != nil {
			return nil, at(i, "tls."+field, err)
		}
		p, field, err := p.withDefaults()
		if err != nil {
			return nil, at(i, field, err)
		}
		if slices.ContainsFunc(peers, func(o Peer) bool { return o.Name == p.Name }) {
			return nil, at(i, "name", fmt.Errorf("there are two peers named %q", p.Name))
		}
		peers = append(peers, p)
	}
	return peers, nil
}

// parentOf returns the path without its last key.
func parentOf(path string) string { return path[:strings.LastIndexByte(path, '.')] }

// parseYAML returns the file's one document, for the lines of errors; nil when the file holds nothing.
func parseYAML(data []byte) (*ast.File, error) {
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, err
	}
	docs := 0
	for _, d := range f.Docs {
		if d.Body != nil {
			docs++
		}
	}
	if docs > 1 {
		return nil, errors.New("the file holds more than one document")
	}
	if docs == 0 {
		return nil, nil
	}
	return f, nil
}

// located puts the file and the line before an error of the YAML library, and the nearest key behind an unknown one.
func located(file string, err error) error {
	if unknown, ok := errors.AsType[*yaml.UnknownFieldError](err); ok && unknown.Token != nil {
		msg := fmt.Sprintf("%s:%d: unknown key %q", file, unknown.Token.Position.Line, unknown.Token.Value)
		if near := session.Nearest(unknown.Token.Value, peerKeys); near != "" {
			msg += fmt.Sprintf("; did you mean %q?", near)
		}
		return errors.New(msg)
	}
	if at, ok := errors.AsType[yaml.Error](err); ok && at.GetToken() != nil && at.GetToken().Position != nil {
		return fmt.Errorf("%s:%d: %s", file, at.GetToken().Position.Line, at.GetMessage())
	}
	return fmt.Errorf("%s: %w", file, err)
}

var (
	envRef      = regexp.MustCompile(`\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}`)
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	headerBreak = regexp.MustCompile(`[\x00-\x08\x0a-\x1f\x7f]`)
	secretName  = regexp.MustCompile(`(?i)auth|token|key|secret|cookie|password`)
)

// headers returns the headers with what they take from the environment.
func headers(in map[string]string, env func(string) (string, bool)) (map[string]Secret, error) {
	if len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]Secret, len(in))
	for name, value := range in {
		if !headerName.MatchString(name) {
			return nil, fmt.Errorf("%q can't be a header's name", name)
		}
		if secretName.MatchString(name) && !envRef.MatchString(value) {
			return nil, fmt.Errorf("the header %s may be a secret: write ${env:NAME} and set it in the environment", name)
		}
		var missing string
		value = envRef.ReplaceAllStringFunc(value, func(ref string) string {
			key := envRef.FindStringSubmatch(ref)[1]
			v, ok := env(key)
			if !ok {
				missing = key
			}
			return v
		})
		switch {
		case missing != "":
			return nil, fmt.Errorf("the header %s needs the environment variable %s, which isn't set", name, missing)
		case strings.Contains(value, "${"):
			return nil, fmt.Errorf("the header %s has a reference that can't be read: write ${env:NAME}", name)
		case headerBreak.MatchString(value):
			return nil, fmt.Errorf("the value of the header %s can't be sent: it holds a line break or a control character", name)
		}
		out[http.CanonicalHeaderKey(name)] = Secret(value)
	}
	return out, nil
}
