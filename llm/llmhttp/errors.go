package llmhttp

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"orchestrator/llm"
)

// maxErrorBody bounds what is read of an answer that is no stream.
const maxErrorBody = 64 << 10

// Error returns an error of this server that has no HTTP status.
func (s *Server) Error(message string, retryable bool, err error) *llm.Error {
	return &llm.Error{Provider: s.name, Message: message, Retryable: retryable, Err: err}
}

// CheckResponse lets only event streams pass. It is a middleware of the SDK and stands between it and the wire, since the
// SDK reads an error's body without a bound and takes only one of its many forms.
func (s *Server) CheckResponse(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	res, err := next(req)
	if err != nil {
		return nil, err
	}
	mediaType, _, parseErr := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if parseErr != nil {
		mediaType = ""
	}
	isJSON := mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	isHTML := mediaType == "text/html" || mediaType == "application/xhtml+xml"
	if res.StatusCode == http.StatusOK && !isJSON && !isHTML {
		return res, nil
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil && res.StatusCode == http.StatusOK {
		return nil, s.Error("the answer broke off", true, err)
	}
	if isHTML || strings.HasPrefix(strings.ToLower(strings.TrimSpace(string(body))), "<!doctype html") {
		e := s.Error("the server answered with a web page (HTML); check the base URL, and what stands between here and the server", false, nil)
		e.Status, e.Retryable = res.StatusCode, retryableStatus(res.StatusCode)
		e.RetryAfter = retryAfter(res.Header)
		return nil, e
	}
	wire := parseError(body)
	if res.StatusCode == http.StatusOK {
		if wire.message == "" {
			return nil, s.Error("the server answered at once instead of streaming, which this program doesn't take", false, nil)
		}
		return nil, s.wireError(wire)
	}
	return nil, s.statusError(res, wire)
}

// wireError maps what a server says of an error in the body of a good answer, where there is no status but, from some
// servers, a code that looks like one.
func (s *Server) wireError(w wireError) *llm.Error {
	e := s.Error(s.Clean(w.message), true, nil)
	e.Code = s.Clean(w.code)
	if status, err := strconv.Atoi(w.code); err == nil && status >= 400 && status <= 599 {
		e.Status, e.Code = status, s.Clean(w.kind)
		e.Retryable = retryableStatus(status)
	} else if w.says("invalid_request", "authentication", "permission", "not_found", "quota", "billing", "context_length", "content_policy") {
		e.Retryable = false
	}
	if w.overflow() {
		e.Overflow, e.Retryable = true, false
	}
	return e
}

// StreamError maps an error that came as an event of the stream.
func (s *Server) StreamError(data []byte) *llm.Error {
	w := parseError(data)
	if w.message == "" {
		w.message = "the server reports an error without a message"
	}
	return s.wireError(w)
}

func (s *Server) statusError(res *http.Response, w wireError) *llm.Error {
	status := res.StatusCode
	e := &llm.Error{
		Provider: s.name, Status: status, Code: s.Clean(w.code),
		Retryable: retryableStatus(status), RetryAfter: retryAfter(res.Header),
	}
	switch res.Header.Get("X-Should-Retry") {
	case "true":
		e.Retryable = true
	case "false":
		e.Retryable = false
	}
	said := s.Clean(w.message)
	if said == "" {
		if said = strings.ToLower(http.StatusText(status)); said == "" {
			said = "the server gave no reason"
		}
	}
	location, err := res.Location()
	switch {
	case err == nil:
		e.Message = fmt.Sprintf("the server sends us on to %s://%s%s; set the base URL to where it is", location.Scheme, location.Host, location.Path)
	case status == http.StatusRequestEntityTooLarge || w.overflow():
		e.Overflow, e.Retryable = true, false
		e.Message = said
	case status == http.StatusUnauthorized && !s.hasKey:
		e.Retryable = false
		e.Message = "the server at " + s.Host + " wants an API key and none is set; set one for this model"
	case status == http.StatusUnauthorized:
		// What the server says quotes the key, more or less masked.
		e.Retryable = false
		e.Message = "the server at " + s.Host + " does not accept the API key; check that it is right, not expired, and meant for this server"
	case status == http.StatusForbidden:
		e.Retryable = false
		e.Message = "the server refuses access; check what the API key may use, and the model's name: " + said
	case status == http.StatusNotFound:
		e.Message = "the server doesn't know this; check the base URL and the model's name: " + said
	case w.says("insufficient_quota", "billing"):
		e.Retryable = false // waiting doesn't fill an account
		e.Message = "the account has no quota left; check plan and billing: " + said
	default:
		e.Message = said
	}
	return e
}

// requestError maps an error of the request itself.
func (s *Server) requestError(err error) error {
	var known *llm.Error
	if errors.As(err, &known) {
		return known
	}
	// The address is left out, what went wrong is kept.
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err
	}
	_, badCert := errors.AsType[*tls.CertificateVerificationError](err)
	e := s.Error(fmt.Sprintf("no answer from %s: %s", s.Host, s.Clean(err.Error())), !badCert, err)
	e.Unreachable = true
	return e
}

func retryableStatus(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 && status != http.StatusNotImplemented
}

// retryAfter returns how long the server wants us to wait, a day at most.
func retryAfter(h http.Header) time.Duration {
	const most = 24 * time.Hour
	in := func(s string, unit time.Duration) (time.Duration, bool) {
		f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsNaN(f) {
			return 0, false
		}
		return time.Duration(min(max(f, 0)*float64(unit), float64(most))), true
	}
	if d, ok := in(h.Get("Retry-After-Ms"), time.Millisecond); ok {
		return d
	}
	value := h.Get("Retry-After")
	if d, ok := in(value, time.Second); ok {
		return d
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), most)
	}
	return 0
}

// wireError is an error as servers write it.
type wireError struct {
	message, code, kind string
}

// parseError reads the forms in use: {"error": {message, type, code}}, {"error": "…"}, {message, type, code}, {"detail":
// …}, and a list of one of them. A body that is none of these is its own message.
func parseError(body []byte) wireError {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return wireError{message: plain(body)}
	}
	if inner, ok := fields["error"]; ok {
		var innerFields map[string]json.RawMessage
		if json.Unmarshal(inner, &innerFields) == nil && innerFields != nil {
			fields = innerFields
		} else if s := scalar(inner); s != "" {
			fields["message"] = inner
		}
	}
	w := wireError{code: scalar(fields["code"]), kind: scalar(fields["type"])}
	for _, key := range []string{"message", "detail", "error_description", "msg"} {
		if w.message = scalar(fields[key]); w.message != "" {
			break
		}
		if raw := strings.TrimSpace(string(fields[key])); strings.HasPrefix(raw, "[") || strings.HasPrefix(raw, "{") {
			w.message = raw
			break
		}
	}
	if w.code == "" {
		w.code = w.kind
	}
	return w
}

// scalar returns a string or a number as text.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var n json.Number
	if json.Unmarshal(raw, &n) == nil {
		return n.String()
	}
	return ""
}

// plain returns a body that isn't JSON if a person can read it.
func plain(body []byte) string {
	s := strings.TrimSpace(string(body))
	if strings.HasPrefix(s, "<") {
		return ""
	}
	return s
}

func (w wireError) says(words ...string) bool {
	for _, word := range words {
		if strings.Contains(strings.ToLower(w.code), word) || strings.Contains(strings.ToLower(w.kind), word) {
			return true
		}
	}
	return false
}

// overflowMessages are how servers without a code for it say that the context is too large.
var overflowMessages = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`maximum context length`,
	`maximum prompt length`,
	`(longer than|exceeds?) the maximum model length`,
	`exceeds? the (available |model'?s? )?context (size|length|window)`,
	`exceeds? (the )?maximum (context|number of tokens allowed)`,
	`context (length|window|size) exceeded`,
	"`?inputs`? tokens \\+ `?max_new_tokens`?",
	`(prompt|input) is too long`,
	`reduce the length of the (messages|input|prompt)`,
	`context the overflows`,
	`request too large for`,
	`exceeds? context limit`,
}, "|"))

func (w wireError) overflow() bool {
	return w.says("context_length_exceeded", "exceed_context_size", "context_window_exceeded", "contextwindowexceeded", "request_too_large") ||
		overflowMessages.MatchString(w.message)
}

// keys finds what looks like an API key, masked or not.
var keys = regexp.MustCompile(`(?i)\b(sk|pk|key|gsk|xai|hf|aiza)[-_][\w*.-]{6,}|Bearer\s+\S+`)

// Clean makes a server's text fit for a message: one line, short, without secrets.
func (s *Server) Clean(text string) string {
	const most = 600
	text = s.secrets.Replace(text)
	text = keys.ReplaceAllString(text, "[hidden]")
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "\ufffd")), " ")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + " …"
	}
	return text
}
