package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// clientEnv makes this binary the process of the session API's clients.
const clientEnv = "ORCHESTRATOR_BENCH_CLIENTS"

// command says what clients are to do.
type command struct {
	URLs    []string // streams to hold
	Session string   // URL of the session to watch or to give inputs
	Streams int
	Times   int
	Input   string
}

// watched is what clients saw.
type watched struct {
	Events    int     // of all streams together
	Seconds   float64 // from the input to the last event
	Committed float64 // and to the moment at which that was made
	P50, P99  float64 // of the delays, in µs
}

// clients is the process of the session API's clients, which does what it is told by HTTP.
type clients struct {
	http *http.Client

	mu   sync.Mutex
	held []io.Closer
}

// serveClients prints the URL for commands and serves until in ends.
func serveClients(in io.Reader, out io.Writer) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c := &clients{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}}}
	mux := http.NewServeMux()
	for name, do := range map[string]func(context.Context, command) (any, error){"idle": c.idle, "drop": c.drop, "watch": c.watch, "trips": c.trips} {
		mux.HandleFunc("POST /"+name, func(w http.ResponseWriter, r *http.Request) {
			var cmd command
			err := json.NewDecoder(r.Body).Decode(&cmd)
			var result any
			if err == nil {
				result, err = do(r.Context(), cmd)
			}
			if err == nil {
				err = json.NewEncoder(w).Encode(result)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(ln) }) // until it is closed
	fmt.Fprintln(out, "http://"+ln.Addr().String())
	_, err = io.Copy(io.Discard, in)
	err = errors.Join(err, srv.Close())
	serving.Wait()
	return err
}

// stream opens a stream and reads its first event.
func (c *clients) stream(ctx context.Context, url string) (io.ReadCloser, *bufio.Reader, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // the status is known
		return nil, nil, fmt.Errorf("%s: %s: %s", url, resp.Status, said)
	}
	r := bufio.NewReaderSize(resp.Body, 4<<10)
	if name, _, err := readEvent(r); err != nil || name != "stream.open" {
		return nil, nil, errors.Join(fmt.Errorf("%s begins with %q", url, name), err, resp.Body.Close())
	}
	return resp.Body, r, nil
}

// readEvent reads an event's name and data.
func readEvent(r *bufio.Reader) (name string, data []byte, err error) {
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return "", nil, err
		}
		line = bytes.TrimRight(line, "\n")
		switch {
		case bytes.HasPrefix(line, []byte("event: ")):
			name = string(line[len("event: "):])
		case bytes.HasPrefix(line, []byte("data: ")):
			data = line[len("data: "):]
		case len(line) == 0 && name != "":
			return name, data, nil
		}
	}
}

// idle opens streams, a few at a time, and keeps them.
func (c *clients) idle(_ context.Context, cmd command) (any, error) {
	var (
		wg    sync.WaitGroup
		slots = make(chan struct{}, 16)
		errs  = make([]error, len(cmd.URLs))
	)
	for i, url := range cmd.URLs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			body, _, err := c.stream(context.Background(), url) // until it is dropped
			if errs[i] = err; err != nil {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.held = append(c.held, body)
		})
	}
	wg.Wait()
	return nil, errors.Join(errs...)
}

// drop closes what idle keeps.
func (c *clients) drop(context.Context, command) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, body := range c.held {
		body.Close()
	}
	c.held = nil
	return nil, nil //nolint:nilnil // there is nothing to say
}

// submit gives the session an input.
func (c *clients) submit(ctx context.Context, cmd command) error {
	body, err := json.Marshal(map[string]string{"input": cmd.Input})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, cmd.Session+"/turns", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", resp.Status, said)
	}
	return err
}

// reader is one stream on a busy session.
type reader struct {
	events int
	delays []float64 // µs
	made   time.Time // when the last event was
}

// watch opens streams, submits an input, and reads each stream to the end of the turn.
func (c *clients) watch(ctx context.Context, cmd command) (any, error) {
	var (
		wg      sync.WaitGroup
		readers = make([]reader, cmd.Streams)
		errs    = make([]error, cmd.Streams+1)
	)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for i := range readers {
		body, r, err := c.stream(ctx, cmd.Session+"/events?after=now&ephemeral=false")
		if err != nil {
			return nil, err
		}
		defer body.Close()
		wg.Go(func() { errs[i] = readers[i].read(r) })
	}
	began := time.Now()
	if errs[cmd.Streams] = c.submit(ctx, cmd); errs[cmd.Streams] != nil {
		cancel()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	w := watched{Seconds: time.Since(began).Seconds(), Committed: readers[0].made.Sub(began).Seconds()}
	var delays []float64
	for _, r := range readers {
		w.Events += r.events
		delays = append(delays, r.delays...)
	}
	w.P50, w.P99 = percentiles(delays)
	return w, nil
}

// read reads events to the end of the turn. Both processes have the same clock.
func (rd *reader) read(r *bufio.Reader) error {
	for {
		name, data, err := readEvent(r)
		if err != nil {
			return err
		}
		now := time.Now()
		_, after, _ := bytes.Cut(data, []byte(`"time":"`))
		at, _, _ := bytes.Cut(after, []byte(`"`))
		if rd.made, err = time.Parse(time.RFC3339Nano, string(at)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		rd.events++
		rd.delays = append(rd.delays, micros(now.Sub(rd.made)))
		if strings.HasPrefix(name, "turn.") && name != "turn.queued" && name != "turn.started" {
			return endOf(name)
		}
	}
}

func endOf(name string) error {
	if name != "turn.completed" {
		return errors.New("the turn ended with " + name)
	}
	return nil
}

// trips submits inputs one after the other and measures the time to the first event of each.
func (c *clients) trips(ctx context.Context, cmd command) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	body, r, err := c.stream(ctx, cmd.Session+"/events?after=now&ephemeral=false")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var delays []float64
	for range cmd.Times {
		began := time.Now()
		submitted := make(chan error, 1)
		var submitting sync.WaitGroup
		submitting.Go(func() { submitted <- c.submit(ctx, cmd) })
		name, _, err := readEvent(r)
		for err == nil && !strings.HasPrefix(name, "turn.") { // the session's state after the turn before
			name, _, err = readEvent(r)
		}
		delays = append(delays, micros(time.Since(began)))
		for err == nil && name != "turn.completed" && name != "turn.failed" {
			name, _, err = readEvent(r)
		}
		submitting.Wait()
		if err := errors.Join(err, <-submitted, endOf(name)); err != nil {
			return nil, err
		}
	}
	var w watched
	w.P50, w.P99 = percentiles(delays)
	return w, nil
}

// percentiles returns the middle of the values, which it sorts, and what 99 of 100 are within.
func percentiles(values []float64) (p50, p99 float64) {
	if len(values) == 0 {
		return 0, 0
	}
	slices.Sort(values)
	return values[len(values)/2], values[min(len(values)-1, len(values)*99/100)]
}
