package a2ahttp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"orchestrator/a2a"
)

const (
	// tokenTime bounds the fetching of one token, tokenBytes the answer.
	tokenTime  = 30 * time.Second
	tokenBytes = 64 << 10
	// tokenMargin is how long before its end a token is fetched anew, at most.
	tokenMargin = 30 * time.Second
)

// tokenKey is what tokens are fetched for.
type tokenKey struct {
	route      route
	url        string
	id, secret a2a.Secret
	scopes     string
	post       bool
}

// tokens fetches access tokens for a client's id and secret (OAuth 2.0, RFC 6749, section 4.4), and keeps the last one
// until shortly before its end, or until a peer refuses it. One fetch runs at a time; all who need the token share it.
type tokens struct {
	key  tokenKey
	http *http.Client
	turn chan struct{} // held by the fetch that runs

	mu    sync.Mutex
	token string
	renew time.Time // when to fetch the next one; zero: when this one is refused
	ends  time.Time // when it is worth nothing any more; zero: unknown
}

// newTokens returns a source of tokens that has none yet.
func newTokens(key tokenKey, base http.RoundTripper) *tokens {
	return &tokens{key: key, turn: make(chan struct{}, 1), http: &http.Client{
		Transport:     base,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the secret goes nowhere else
	}}
}

// current returns the token that is kept, and whether it needs no renewal.
func (s *tokens) current() (token string, good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.token == "" || !s.ends.IsZero() && !now.Before(s.ends) {
		return "", false
	}
	return s.token, s.renew.IsZero() || now.Before(s.renew)
}

// get returns a token, fetching one if need be. An error says what certainly hasn't been sent to the peer.
func (s *tokens) get(ctx context.Context) (string, error) {
	if token, good := s.current(); good {
		return token, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", &a2a.NotSentError{Err: context.Cause(ctx)}
	}
	old, good := s.current()
	if good {
		return old, nil
	}
	token, lifetime, err := s.fetch(ctx)
	if err != nil {
		if old != "" {
			return old, nil // it is worth something yet, and the next request tries again
		}
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.renew, s.ends = token, time.Time{}, time.Time{}
	if lifetime > 0 {
		now := time.Now()
		s.ends = now.Add(lifetime)
		s.renew = s.ends.Add(-min(tokenMargin, lifetime/5))
	}
	return token, nil
}

// refused forgets a token that a peer has refused.
func (s *tokens) refused(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

var oauthError = regexp.MustCompile(`^[a-z_]{1,40}$`)

func (s *tokens) fetch(ctx context.Context) (token string, lifetime time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tokenTime, fmt.Errorf("the token of %s did not come within %s", s.key.url, tokenTime))
	defer cancel()
	form := url.Values{"grant_type": {"client_credentials"}}
	if s.key.scopes != "" {
		form.Set("scope", s.key.scopes)
	}
	if s.key.post {
		form.Set("client_id", string(s.key.id))
		form.Set("client_secret", string(s.key.secret))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.key.url, strings.NewReader(form.Encode()))
	if err != nil {
		return "", 0, &a2a.CardError{Reason: fmt.Sprintf("the address of the token endpoint can't be read: %v", err)}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if !s.key.post {
		req.SetBasicAuth(url.QueryEscape(string(s.key.id)), url.QueryEscape(string(s.key.secret)))
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return "", 0, &a2a.NotSentError{Err: fmt.Errorf("fetch a token: %w", err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, tokenBytes))
	if err != nil {
		return "", 0, &a2a.NotSentError{Err: fmt.Errorf("fetch a token from %s: %w", s.key.url, err)}
	}
	var answer struct {
		AccessToken string      `json:"access_token"`
		TokenType   string      `json:"token_type"`
		ExpiresIn   json.Number `json:"expires_in"`
		Error       string      `json:"error"`
	}
	jsonErr := json.Unmarshal(body, &answer) // of an answer that is none, the status tells
	if resp.StatusCode != http.StatusOK {
		status := fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
		if jsonErr == nil && oauthError.MatchString(answer.Error) {
			status += " (" + answer.Error + ")"
		}
		err := &a2a.StatusError{Code: resp.StatusCode, Status: status + " to the request of a token", URL: req.URL.Redacted()}
		if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
			return "", 0, &a2a.NotSentError{Err: err}
		}
		return "", 0, &a2a.CardError{Reason: err.Error() + "; check the client's id and secret"}
	}
	switch {
	case jsonErr != nil, answer.AccessToken == "":
		return "", 0, &a2a.CardError{Reason: fmt.Sprintf("%s answered the request of a token with something else", req.URL.Redacted())}
	case answer.TokenType != "" && !strings.EqualFold(answer.TokenType, "bearer"):
		return "", 0, &a2a.CardError{Reason: fmt.Sprintf("%s gives tokens that are no bearer tokens", req.URL.Redacted())}
	case !headerValue(answer.AccessToken):
		return "", 0, &a2a.CardError{Reason: fmt.Sprintf("%s gave a token that can't be sent", req.URL.Redacted())}
	}
	seconds, err := answer.ExpiresIn.Float64()
	if err != nil || seconds <= 0 || seconds > 1e9 {
		return answer.AccessToken, 0, nil
	}
	return answer.AccessToken, time.Duration(seconds * float64(time.Second)), nil
}

// headerValue reports whether a text can be a header's value.
func headerValue(v string) bool {
	return !strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
