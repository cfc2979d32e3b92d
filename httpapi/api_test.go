package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"orchestrator/httpapi"
	"orchestrator/session"
)

func TestASessionIsDrivenFromItsOpeningToItsClose(t *testing.T) {
	w := newWorld(t, worldConfig{})
	var opened session.Info
	w.call(http.StatusCreated, &opened, http.MethodPost, "/v1/sessions", `{"title": "a talk", "agent": "other"}`)
	if opened.Root != opened.ID || opened.Agent != "other" || opened.Title != "a talk" || opened.Status != session.StateOpen || opened.LastSeq != 1 {
		t.Errorf("opened %+v", opened)
	}
	path := "/v1/sessions/" + string(opened.ID)

	turn := w.turn(opened.ID, "say hello")
	if turn.State != session.StateCompleted || !turn.Ended || !turn.Quiescent || turn.Output != "hello" || turn.Root != opened.ID || turn.Usage.InputTokens != 2 {
		t.Errorf("turn = %+v", turn)
	}
	var again session.TurnInfo
	w.call(http.StatusOK, &again, http.MethodGet, path+"/turns/"+string(turn.ID), "")
	if diff := cmp.Diff(turn, again); diff != "" {
		t.Errorf("the turn reads differently (-posted +got):\n%s", diff)
	}

	var running session.TurnInfo
	w.call(http.StatusAccepted, &running, http.MethodPost, path+"/turns", `{"input": "wait"}`)
	w.call(http.StatusAccepted, nil, http.MethodPost, path+"/turns", `{"input": "say next"}`)
	s := w.stream(opened.ID, "?types=turn.started&after="+seqOf(t, w, opened.ID, running.ID))
	s.until("turn.started")
	var snap session.Snapshot
	w.call(http.StatusOK, &snap, http.MethodGet, path, "")
	if snap.State != "running" || snap.ActiveTurn == nil || snap.ActiveTurn.ID != running.ID || len(snap.Queue) != 1 ||
		snap.Queue[0].Input != "say next" || len(snap.Agents) != 1 || !snap.Agents[0].Root || snap.Agents[0].TurnID != running.ID {
		t.Errorf("snapshot = %+v", snap)
	}
	if snap.Usage.InputTokens != 2 {
		t.Errorf("usage = %+v, want that of the turn that has ended", snap.Usage)
	}
	if got := w.do(http.MethodPost, path+"/turns", `{"input": "say no", "onBusy": "reject"}`); got.status != http.StatusConflict || got.code() != "busy" {
		t.Errorf("rejected: %d %s", got.status, got.body)
	}
	if got := w.do(http.MethodPost, path+"/turns", `{"input": "say no", "onBusy": "steer"}`); got.status != http.StatusUnprocessableEntity || got.code() != "steer_unsupported" {
		t.Errorf("steered: %d %s", got.status, got.body)
	}
	w.call(http.StatusAccepted, nil, http.MethodPost, path+"/turns/"+string(running.ID)+"/cancel", `{"reason": "enough"}`)
	w.call(http.StatusOK, &running, http.MethodGet, path+"/turns/"+string(running.ID)+"?wait=30s", "")
	if running.State != session.StateCancelled || running.Error != "cancelled: enough" {
		t.Errorf("cancelled turn = %+v", running)
	}

	w.call(http.StatusAccepted, nil, http.MethodDelete, path, "")
	end := w.stream(opened.ID, "?types=session.closed")
	end.until("session.closed")
	w.call(http.StatusAccepted, nil, http.MethodDelete, path, "")
	if got := w.do(http.MethodPost, path+"/turns", `{"input": "say more"}`); got.status != http.StatusConflict || got.code() != "session_closed" {
		t.Errorf("turn of a closed session: %d %s", got.status, got.body)
	}
}

// seqOf returns the seq before a turn was queued.
func seqOf(t *testing.T, w *world, id session.ID, turn session.TurnID) string {
	t.Helper()
	var page httpapi.EventPage
	w.call(http.StatusOK, &page, http.MethodGet, "/v1/sessions/"+string(id)+"/events?types=turn.queued", "")
	for _, e := range page.Events {
		if e.TurnID == turn {
			b, err := json.Marshal(e.Seq - 1)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
	}
	t.Fatalf("turn %s was never queued", turn)
	return ""
}

// fullStore is a store without room for writes.
type fullStore struct {
	session.Store
	full atomic.Bool
}

func (s *fullStore) Commit(ctx context.Context, b session.Batch) (session.Committed, error) {
	if s.full.Load() {
		return session.Committed{}, fmt.Errorf("database or disk is full: %w", session.ErrFull)
	}
	return s.Store.Commit(ctx, b)
}

func TestWithoutRoomForWritesReadingGoesOn(t *testing.T) {
	store := &fullStore{Store: session.NewMemory()}
	w := newWorld(t, worldConfig{store: store})
	id := w.session()
	path := "/v1/sessions/" + string(id)
	store.full.Store(true)
	for target, body := range map[string]string{path + "/turns": `{"input": "say yes"}`, "/v1/sessions": "{}"} {
		var p httpapi.Problem
		w.call(http.StatusInsufficientStorage, &p, http.MethodPost, target, body)
		if p.Code != "storage_full" || strings.Contains(p.Detail, "disk is full") {
			t.Errorf("POST %s answers %+v", target, p)
		}
	}
	w.call(http.StatusOK, nil, http.MethodGet, path, "")
	store.full.Store(false)
	if turn := w.turn(id, "say yes"); turn.Output != "yes" {
		t.Errorf("with room again a turn is %+v", turn)
	}
}
