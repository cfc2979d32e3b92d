package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Serve answers /healthz, /readyz and /metrics on the configured address until ctx ends. ready, when not nil, is told the address
// once it is bound. The App must have been started. It returns nil when ctx ended it.
func (a *App) Serve(ctx context.Context, ready func(addr net.Addr)) error {
	listener, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", a.cfg.Listen, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		check, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := a.Ready(check); err != nil {
			a.log.WarnContext(check, "not ready", "err", err)
			answer(w, http.StatusServiceUnavailable, "the store doesn't answer")
			return
		}
		answer(w, http.StatusOK, "ok")
	})
	mux.Handle("GET /metrics", a.Metrics())
	server := &http.Server{
		Handler: http.MaxBytesHandler(mux, 64<<10), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
	}
	stop := context.AfterFunc(ctx, func() {
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		if err := server.Shutdown(bound); err != nil {
			_ = server.Close() // the bound is over: cut what is left
		}
	})
	defer stop()
	if ready != nil {
		ready(listener.Addr())
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", a.cfg.Listen, err)
	}
	return nil
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"status": text}) // the client is gone: nobody to tell
}
