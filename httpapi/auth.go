package httpapi

import (
	"net/http"
	"strings"
)

// principal is who asks. The local operator has no name and no key.
type principal struct {
	name string
	key  string // the id of the key
}

// authenticate says who asks.
func (a *API) authenticate(r *http.Request) (principal, error) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		if a.cfg.AuthRequired {
			return principal{}, problem(codeUnauthorized, "send Authorization: Bearer and an API key; orchestrator keys create makes one")
		}
		return principal{}, nil
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || a.cfg.Keys == nil {
		return principal{}, problem(codeUnauthorized, "the Authorization header is no API key of this server")
	}
	key, ok := a.cfg.Keys.Verify(strings.TrimSpace(secret))
	if !ok {
		return principal{}, problem(codeUnauthorized, "the API key is unknown or was revoked")
	}
	return principal{name: key.Principal, key: key.ID}, nil
}
