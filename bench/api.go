package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"orchestrator/httpapi"
	"orchestrator/session"
)

// apiSizes says how much of the session API is measured.
type apiSizes struct {
	idle    int           // streams that are open and silent
	readers int           // streams on the busy session
	events  int           // that it commits as fast as it can
	paced   int           // and at the pace
	pace    time.Duration // between two events
	trips   int           // turns, one after the other
}

// apiWorld is the session API over sessions on SQLite. What turns do is what their inputs say.
type apiWorld struct {
	manager *session.Manager
	api     *httpapi.API
	store   session.Store
	server  *http.Server
	wg      sync.WaitGroup
	url     string
}

var _ session.TurnRunner = (*apiWorld)(nil)

func newAPIWorld(ctx context.Context, store session.Store) (w *apiWorld, err error) {
	w = &apiWorld{store: store}
	if w.manager, err = session.NewManager(session.Config{Store: store, Logger: quiet}); err != nil {
		return nil, err
	}
	w.manager.Use(session.Hooks{
		Runner: w,
		Prepare: func(_ context.Context, _ session.Record, body session.SessionBody) (session.Setup, error) {
			return session.Setup{Agent: body.Agent, Model: "bench"}, nil
		},
		Fold: func(context.Context, session.ID, []session.Record) (session.Folded, error) {
			return session.Folded{}, nil
		},
		FoldFailed: func(context.Context, session.ID, []session.Record, string) string { return "" },
	})
	w.api, err = httpapi.New(httpapi.Config{
		Manager: w.manager, Agents: []string{"primary"}, Logger: quiet, Rate: -1, Streams: 1 << 20, PrincipalStreams: 1 << 20,
		// A beat in between would show as a delay.
		Heartbeat: time.Hour,
	})
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", w.api)
	mux.HandleFunc("/bare", bareStream)
	w.url = "http://" + ln.Addr().String()
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	w.wg.Go(func() { _ = w.server.Serve(ln) }) // until it is closed
	return w, w.manager.Start(ctx)
}

// bareStream is what any server holds of a stream on which nothing happens.
func bareStream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "event: stream.open\ndata: {}\n\n")
	if http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
}

func (w *apiWorld) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := errors.Join(w.api.Drain(ctx), w.manager.Stop(ctx), w.server.Close())
	w.wg.Wait()
	return errors.Join(err, w.store.Close())
}

// work is what a turn does, as its input.
type work struct {
	Events int
	Pause  time.Duration
}

func (k work) input() string {
	b, err := json.Marshal(k)
	if err != nil {
		panic(err) // they are numbers
	}
	return string(b)
}

// RunTurn implements [session.TurnRunner]: it commits so many events, each by itself.
func (w *apiWorld) RunTurn(ctx context.Context, t *session.Turn) (session.Outcome, error) {
	last, err := w.store.Events(ctx, session.EventQuery{
		Tree: t.Root, Agent: t.Agent, Types: []session.EventType{session.EventMessageCompleted}, Limit: 1, Last: true,
	})
	var (
		m session.Message
		k work
	)
	if err == nil && len(last) == 1 {
		err = errors.Join(last[0].Decode(&m), json.Unmarshal([]byte(m.Text), &k))
	}
	tick := time.NewTicker(max(k.Pause, time.Nanosecond))
	defer tick.Stop()
	for n := 0; n < k.Events && err == nil; n++ {
		if k.Pause > 0 {
			<-tick.C
		}
		_, err = t.Commit(ctx, session.Batch{Events: []session.Event{
			t.Event(session.EventToolCompleted, session.ToolCompleted{Name: "bench", Content: answer}),
		}})
	}
	return session.Outcome{State: session.StateCompleted, TurnEnded: session.TurnEnded{StopReason: "end_turn"}}, err
}

// open opens a session.
func (w *apiWorld) open(ctx context.Context) (session.ID, error) {
	return w.manager.Open(ctx, session.OpenRequest{Agent: "primary"})
}

// measureAPI measures the session API under load: the clients are in a process of their own.
func measureAPI(ctx context.Context, b *bench) (err error) {
	clients, err := startPeers(ctx, clientEnv+"=1", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clients.stop()) }()
	store, err := b.openStore(ctx, sqliteNormal)
	if err != nil {
		return err
	}
	w, err := newAPIWorld(ctx, store)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, w.stop(context.WithoutCancel(ctx))) }()
	c := &apiClients{url: clients.urls[0]}
	b.table.head("The session API (sqlite normal, clients in a second process)")
	for _, part := range []func(context.Context, *bench, *apiWorld, *apiClients) error{measureIdle, measureBusy, measureFirstEvent} {
		if err := part(ctx, b, w, c); err != nil {
			return err
		}
	}
	return nil
}

// measureIdle measures the memory of streams on which nothing happens, each on a session of its own.
func measureIdle(ctx context.Context, b *bench, w *apiWorld, c *apiClients) error {
	n := b.sizes.api.idle
	var own, bare []string
	for range n {
		id, err := w.open(ctx)
		if err != nil {
			return err
		}
		own, bare = append(own, streamURL(w, id)), append(bare, w.url+"/bare")
	}
	var took [2]usage
	for i, urls := range [][]string{bare, own} {
		before := inUse()
		if err := c.do(ctx, "idle", command{URLs: urls}, nil); err != nil {
			return err
		}
		took[i] = inUse().minus(before).per(n)
		if err := c.do(ctx, "drop", command{}, nil); err != nil {
			return err
		}
	}
	b.table.add(figure{
		Part: "api", Name: number(float64(n)) + " idle streams, each", Value: took[1].kib(), Unit: "KiB",
		Note: fmt.Sprintf("heap %.1f, stack %.1f; a bare net/http stream %.1f", took[1].heap/1024, took[1].stack/1024, took[0].kib()),
	})
	return nil
}

// measureBusy measures what many readers of one session get: as much as it can say, and how late what it says at a pace is.
func measureBusy(ctx context.Context, b *bench, w *apiWorld, c *apiClients) error {
	z := b.sizes.api
	for _, k := range []work{{Events: z.events}, {Events: z.paced, Pause: z.pace}} {
		id, err := w.open(ctx)
		if err != nil {
			return err
		}
		var got watched
		cmd := command{Session: w.url + "/v1/sessions/" + string(id), Streams: z.readers, Input: k.input()}
		if err := c.do(ctx, "watch", cmd, &got); err != nil {
			return err
		}
		if want := z.readers * k.Events; got.Events < want {
			return fmt.Errorf("%d readers got %d events, want at least %d", z.readers, got.Events, want)
		}
		name := fmt.Sprintf("%d streams on one session", z.readers)
		if k.Pause == 0 {
			b.table.add(figure{
				Part: "api", Name: name + ", as fast as it goes", Value: float64(got.Events) / got.Seconds, Unit: "events/s",
				Note: fmt.Sprintf("%d events to each, which were committed in %.1f s, in %.1f s", got.Events/z.readers, got.Committed, got.Seconds),
			})
			continue
		}
		perSecond := float64(time.Second) / float64(k.Pause)
		b.table.add(figure{
			Part: "api", Name: fmt.Sprintf("%s, %.0f events/s: delay, 99 of 100", name, perSecond), Value: got.P99 / 1e3, Unit: "ms",
			Note: fmt.Sprintf("half of them %.1f ms; %.0f events/s in all", got.P50/1e3, float64(got.Events)/got.Seconds),
		})
	}
	return nil
}

// measureFirstEvent measures the time from submitting an input to the first event of its turn, on a stream that is open.
func measureFirstEvent(ctx context.Context, b *bench, w *apiWorld, c *apiClients) error {
	id, err := w.open(ctx)
	if err != nil {
		return err
	}
	var got watched
	cmd := command{Session: w.url + "/v1/sessions/" + string(id), Times: b.sizes.api.trips, Input: work{Events: 1}.input()}
	if err := c.do(ctx, "trips", cmd, &got); err != nil {
		return err
	}
	b.table.add(figure{
		Part: "api", Name: "from submitting an input to its first event", Value: got.P50 / 1e3, Unit: "ms",
		Note: fmt.Sprintf("99 of 100 within %.1f ms", got.P99/1e3),
	})
	return nil
}

func streamURL(w *apiWorld, id session.ID) string {
	return w.url + "/v1/sessions/" + string(id) + "/events?after=now"
}

// apiClients is the clients' process.
type apiClients struct{ url string }

// do has the clients do something, and waits for it.
func (c *apiClients) do(ctx context.Context, what string, cmd command, result any) error {
	body, err := json.Marshal(cmd)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/"+what, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", what, bytes.TrimSpace(data))
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(data, result)
}
