package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Serve answers the session API, /healthz, /readyz and /metrics on the configured address until ctx ends. ready, when not
// nil, is told the address once it is bound. The App must have been started. It returns nil when ctx ended it: then /readyz
// has said no first, streams have ended with a position to resume from, and requests have been answered.
func (a *App) Serve(ctx context.Context, ready func(addr net.Addr)) error {
	listener, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", a.cfg.Listen, err)
	}
	var stopping atomic.Bool
	checks := http.NewServeMux()
	checks.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	checks.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		check, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if stopping.Load() {
			answer(w, http.StatusServiceUnavailable, "stopping")
			return
		}
		if err := a.Ready(check); err != nil {
			a.log.WarnContext(check, "not ready", "err", err)
			text := "the store doesn't answer"
			if errors.Is(err, errNoBroker) {
				text = "a broker can't be reached"
			}
			answer(w, http.StatusServiceUnavailable, text)
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	checks.Handle("GET /metrics", a.Metrics())
	mux := http.NewServeMux()
	small := http.MaxBytesHandler(checks, 64<<10)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		mux.Handle(path, small)
	}
	mux.Handle("/", a.API) // it bounds its bodies itself, and what waits or streams moves these deadlines
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
	}
	serving, failed := context.WithCancel(ctx)
	defer failed()
	var end sync.WaitGroup
	end.Go(func() {
		<-serving.Done()
		stopping.Store(true)
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := a.API.Drain(bound); err != nil {
			a.log.WarnContext(bound, "requests are cut", "err", err)
		}
		if err := server.Shutdown(bound); err != nil {
			_ = server.Close() // the bound is over: cut what is left
		}
	})
	if ready != nil {
		ready(listener.Addr())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		failed()
		end.Wait()
		return fmt.Errorf("serve on %s: %w", a.cfg.Listen, err)
	}
	end.Wait()
	return nil
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": text}) // the client is gone: nobody to tell
}
