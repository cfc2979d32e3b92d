package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/httpapi"
	"orchestrator/session"
)

func TestAPrincipalSeesItsOwnSessionsTheNewestFirst(t *testing.T) {
	w := newWorld(t, worldConfig{edit: func(c *httpapi.Config) { c.AuthRequired = true }})
	alice, bob := []string{"Authorization", "Bearer " + w.key("alice")}, []string{"Authorization", "Bearer " + w.key("bob")}
	var want []session.ID
	for range 3 {
		want = append([]session.ID{w.session(alice...)}, want...)
		w.session(bob...)
	}
	var got []session.ID
	for path := "/v1/sessions?limit=2"; path != ""; {
		var page httpapi.SessionList
		w.call(http.StatusOK, &page, http.MethodGet, path, "", alice...)
		for _, s := range page.Sessions {
			got = append(got, s.ID)
		}
		path = ""
		if page.Next != "" {
			path = "/v1/sessions?limit=2&before=" + string(page.Next)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("alice's sessions (-want +got):\n%s", diff)
	}
}
