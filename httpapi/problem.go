package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"orchestrator/session"
)

// code is the stable name of an error.
type code string

const (
	codeBadRequest       code = "bad_request"
	codeUnauthorized     code = "unauthorized"
	codeCrossOrigin      code = "cross_origin"
	codeForbiddenHost    code = "forbidden_host"
	codeNotFound         code = "not_found"
	codeMethodNotAllowed code = "method_not_allowed"
	codeTimeout          code = "request_timeout"
	codeSessionClosed    code = "session_closed"
	codeBusy             code = "busy"
	codePositionGone     code = "position_gone"
	codeTooLarge         code = "too_large"
	codeMediaType        code = "unsupported_media_type"
	codeValidation       code = "validation_failed"
	codeUnknownAgent     code = "unknown_agent"
	codeKeyReused        code = "key_reused"
	codeSteer            code = "steer_unsupported"
	codeRateLimited      code = "rate_limited"
	codeQueueFull        code = "queue_full"
	codeTooManyStreams   code = "too_many_streams"
	codeClientGone       code = "client_closed_request"
	codeInternal         code = "internal"
	codeStopping         code = "stopping"
	codeUnavailable      code = "unavailable"
	codeStorageFull      code = "storage_full"
)

// statusClientGone is what the metrics say of a request whose client didn't wait for the answer.
const statusClientGone = 499

// codes is the one table from codes to HTTP.
var codes = map[code]struct {
	status int
	title  string
}{
	codeBadRequest:       {http.StatusBadRequest, "The request can't be read"},
	codeUnauthorized:     {http.StatusUnauthorized, "No valid API key"},
	codeCrossOrigin:      {http.StatusForbidden, "Refused for its origin"},
	codeForbiddenHost:    {http.StatusForbidden, "Refused for its host"},
	codeNotFound:         {http.StatusNotFound, "Not found"},
	codeMethodNotAllowed: {http.StatusMethodNotAllowed, "Method not allowed"},
	codeTimeout:          {http.StatusRequestTimeout, "The request came too slowly"},
	codeSessionClosed:    {http.StatusConflict, "The session is closed"},
	codeBusy:             {http.StatusConflict, "The session is busy"},
	codePositionGone:     {http.StatusGone, "The log has no such position"},
	codeTooLarge:         {http.StatusRequestEntityTooLarge, "Too large"},
	codeMediaType:        {http.StatusUnsupportedMediaType, "Unsupported media type"},
	codeValidation:       {http.StatusUnprocessableEntity, "The request is not valid"},
	codeUnknownAgent:     {http.StatusUnprocessableEntity, "There is no such agent"},
	codeKeyReused:        {http.StatusUnprocessableEntity, "The idempotency key was used with another body"},
	codeSteer:            {http.StatusUnprocessableEntity, "Steering is not supported"},
	codeRateLimited:      {http.StatusTooManyRequests, "Too many requests"},
	codeQueueFull:        {http.StatusTooManyRequests, "Too many queued turns"},
	codeTooManyStreams:   {http.StatusTooManyRequests, "Too many open streams"},
	codeClientGone:       {statusClientGone, "The client went away"},
	codeInternal:         {http.StatusInternalServerError, "Internal error"},
	codeStopping:         {http.StatusServiceUnavailable, "The server is stopping"},
	codeUnavailable:      {http.StatusServiceUnavailable, "The server can't do this now"},
	codeStorageFull:      {http.StatusInsufficientStorage, "The server has no space left"},
}

// Problem is the body of an error, by RFC 9457. It implements huma.StatusError.
type Problem struct {
	Title  string `json:"title" doc:"What kind of error it is, in words."`
	Status int    `json:"status" doc:"The HTTP status."`
	Detail string `json:"detail" doc:"What is wrong with this request."`
	Code   code   `json:"code" doc:"The kind of error; it doesn't change from version to version."`
	// Errors says what is wrong part by part.
	Errors []ProblemPart `json:"errors,omitempty"`
}

// ProblemPart is what is wrong with one part of a request.
type ProblemPart struct {
	Message  string `json:"message"`
	Location string `json:"location,omitempty" doc:"Where: body.input, query.after."`
}

var (
	_ huma.StatusError       = (*Problem)(nil)
	_ huma.ContentTypeFilter = (*Problem)(nil)
)

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType returns the media type of an error.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

func problem(c code, detail string) *Problem {
	row, ok := codes[c]
	if !ok {
		panic("httpapi: no row for code " + c)
	}
	return &Problem{Title: row.title, Status: row.status, Detail: detail, Code: c}
}

// notFound is the same for what doesn't exist and what is another's.
func notFound() *Problem { return problem(codeNotFound, "it doesn't exist, or it isn't yours") }

// huma has one constructor of errors for the process, and we are its only user here.
func init() {
	huma.NewError = func(status int, detail string, errs ...error) huma.StatusError {
		c := codeInternal
		switch {
		case status == http.StatusRequestTimeout:
			c = codeTimeout
		case status == http.StatusRequestEntityTooLarge:
			c = codeTooLarge
		case status == http.StatusUnsupportedMediaType:
			c = codeMediaType
		case status == http.StatusUnprocessableEntity:
			c = codeValidation
		case status >= 400 && status < 500, detail == "cannot read request body":
			c = codeBadRequest
		}
		p := problem(c, detail)
		if c == codeInternal {
			p.Detail = "internal error"
			return p
		}
		for _, err := range errs {
			part := ProblemPart{Message: "invalid"}
			if d, ok := err.(huma.ErrorDetailer); ok {
				// The value is left out: it is the client's own, and may be large or a secret.
				part = ProblemPart{Message: d.ErrorDetail().Message, Location: d.ErrorDetail().Location}
			} else if err != nil && c == codeValidation {
				part.Message = err.Error()
			}
			p.Errors = append(p.Errors, part)
		}
		return p
	}
}

// invalid refuses one part of a request.
func invalid(location, message string) *Problem {
	p := problem(codeValidation, "validation failed")
	p.Errors = []ProblemPart{{Message: message, Location: location}}
	return p
}

// sessionErrors is what errors of the session package are here, in the order they are looked for.
var sessionErrors = []struct {
	err    error
	code   code
	detail string
}{
	{session.ErrNotFound, codeNotFound, notFound().Detail},
	{session.ErrSessionClosed, codeSessionClosed, "the session takes no input any more"},
	{session.ErrBusy, codeBusy, "the session has a turn that has not ended"},
	{session.ErrQueueFull, codeQueueFull, "wait until some of the queued turns have run"},
	{session.ErrKeyReused, codeKeyReused, "use a new key for a new body"},
	{session.ErrPosition, codePositionGone, "read the session anew and go on behind its lastSeq"},
	{session.ErrStopping, codeStopping, "the server is stopping; try again in a moment"},
	{session.ErrClosed, codeStopping, "the server is stopping; try again in a moment"},
	{session.ErrFull, codeStorageFull, "nothing was written; reading goes on, and writing when there is room"},
	{context.Canceled, codeClientGone, "the client went away"},
	{context.DeadlineExceeded, codeUnavailable, "it took too long; try again"},
}

// problemOf turns an error into what the client is told; what it must not know is logged.
func (a *API) problemOf(ctx context.Context, err error) error {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if errors.Is(err, session.ErrBadInput) {
		return invalid("body.input", err.Error())
	}
	for _, row := range sessionErrors {
		if errors.Is(err, row.err) {
			if row.code == codeStorageFull {
				a.log.ErrorContext(ctx, "request failed", "err", err) // somebody has to make room
			}
			return problem(row.code, row.detail)
		}
	}
	a.log.ErrorContext(ctx, "request failed", "err", err)
	return problem(codeInternal, "internal error")
}

// writeProblem answers with an error that no route has seen.
func writeProblem(w http.ResponseWriter, err error) {
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		p = problem(codeInternal, "internal error")
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client is gone: nobody to tell
}

// codeList returns every code a client may see, sorted.
func codeList() []string {
	var all []string
	for c := range codes {
		if c != codeClientGone {
			all = append(all, string(c))
		}
	}
	slices.Sort(all)
	return all
}
