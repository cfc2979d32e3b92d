package a2atest

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
)

// ProcessConfig configures a peer that is a process of its own.
type ProcessConfig struct {
	// Name is the card's name.
	Name string
	// Addr is where it listens. Defaults to a free port of the loopback interface.
	Addr string
	// Journal is the file its record is appended to; it is made if need be.
	Journal string
	// Dedup makes the same message id the same task. Without it the peer is a plain a2a-go server that knows its callers
	// and lists their tasks.
	Dedup bool
	// MinDelay and MaxDelay bound how long an answer takes, at random.
	MinDelay, MaxDelay time.Duration
	// Seed is of the delays and of the answers' form.
	Seed uint64
	// Messages is the share, from 0 to 1, of answers that are a plain message rather than a task.
	Messages float64
	// Gate holds every answer back until it is opened. May be nil.
	Gate *Gate
	// Tasks is a file that the peer's tasks survive in; a process that takes the place of another ends the tasks that were
	// begun. Without it they are in memory.
	Tasks string
	// Serve serves the peer's handler until ctx ends, in place of HTTP. May be nil.
	Serve func(ctx context.Context, p *Peer) error
	// URL and Binding are what the card says of a peer that Serve serves.
	URL, Binding string
	// Ready is told the peer's base URL when it listens. May be nil.
	Ready func(url string)
}

// ServePeer runs a peer until ctx ends, then closes it and returns nil. Each of its answers holds a token nobody else
// has, which its journal names before the answer leaves.
func ServePeer(ctx context.Context, cfg ProcessConfig) error {
	journal, err := os.OpenFile(cfg.Journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the journal of peer %s: %w", cfg.Name, err)
	}
	defer journal.Close()
	var mu sync.Mutex
	random := mathrand.New(mathrand.NewPCG(cfg.Seed, 1))
	p := newPeer(Config{
		Name: cfg.Name, Dedup: cfg.Dedup, Anonymous: cfg.Dedup, Journal: journal,
		Script: func(x *Exchange) {
			mu.Lock()
			delay, message := cfg.MinDelay, random.Float64() < cfg.Messages
			if spread := cfg.MaxDelay - cfg.MinDelay; spread > 0 {
				delay += time.Duration(random.Int64N(int64(spread)))
			}
			mu.Unlock()
			if !message {
				x.State(Working, "")
			}
			if !x.Sleep(delay) || cfg.Gate != nil && !x.Wait(cfg.Gate) {
				return
			}
			answer := fmt.Sprintf("%s answers with token %s", cfg.Name, x.Token())
			if message {
				x.Reply(answer)
				return
			}
			x.State(Completed, answer)
		},
	})
	user := caller
	if cfg.Dedup {
		user = ""
	}
	if cfg.Tasks != "" {
		var open []*protocol.Task
		if p.tasks, open, err = openTaskFile(cfg.Tasks, user); err != nil {
			return err
		}
		defer p.tasks.file.Close()
		for _, task := range open {
			p.running.Go(func() { p.goOn(task, cfg.Gate) })
		}
	}
	if cfg.Serve != nil {
		p.url = cfg.URL
		p.cfg.Card = func(c *protocol.AgentCard) {
			c.SupportedInterfaces = []*protocol.AgentInterface{protocol.NewAgentInterface(cfg.URL, protocol.TransportProtocol(cfg.Binding))}
		}
		p.serve()
		defer p.Close()
		return cfg.Serve(ctx, p)
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", cmp.Or(cfg.Addr, "127.0.0.1:0"))
	if err != nil {
		return fmt.Errorf("listen for peer %s: %w", cfg.Name, err)
	}
	p.url = "http://" + ln.Addr().String()
	p.serve()
	srv := &http.Server{Handler: p, Protocols: protocols(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	var closing sync.WaitGroup
	closing.Add(1)
	context.AfterFunc(ctx, func() {
		defer closing.Done()
		p.Close()
		srv.Close() //nolint:errcheck // closing is all that is wanted
	})
	if cfg.Ready != nil {
		cfg.Ready(p.url)
	}
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve peer %s: %w", cfg.Name, err)
	}
	closing.Wait()
	return nil
}

// goOn ends a task that an earlier process began.
func (p *Peer) goOn(task *protocol.Task, g *Gate) {
	if g != nil && !g.wait(p.alive) {
		return
	}
	message := ""
	for _, m := range task.History {
		if m.Role == protocol.MessageRoleUser {
			message = m.ID
		}
	}
	token := p.cfg.Name + "-" + rand.Text()
	p.write(Entry{Kind: KindAnswered, MessageID: message, TaskID: string(task.ID), ContextID: task.ContextID, State: Completed, Token: token})
	if err := p.tasks.complete(task, fmt.Sprintf("%s answers with token %s", p.cfg.Name, token)); err != nil {
		panic("a2atest: end a task of an earlier process: " + err.Error())
	}
}

// ReadJournal returns the entries of a journal. A last line that was cut off is left out.
func ReadJournal(path string) ([]Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Entry
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			if !lines.Scan() {
				break
			}
			return nil, fmt.Errorf("journal %s: line %d: %w", path, len(out)+1, err)
		}
		out = append(out, e)
	}
	return out, lines.Err()
}
