package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// apiKeyVariable holds the API key of the commands that talk to a server.
const apiKeyVariable = envPrefix + "API_KEY"

// serverFlags say that a command talks to a running serve rather than to the database.
type serverFlags struct {
	url     string
	keyFile string
	open    func(serverFlags) (*server, error)
}

// serverFlags adds the flags to a command.
func (c *cli) serverFlags(cmd *cobra.Command, f *serverFlags) {
	f.open = c.openServer
	cmd.Flags().StringVar(&f.url, "server", "", "URL of a running serve to ask, rather than the database")
	cmd.Flags().StringVar(&f.keyFile, "api-key-file", "", "file with the API key for --server (default the variable "+apiKeyVariable+")")
}

// or does the one thing without --server, and the other with it.
func (f serverFlags) or(cmd *cobra.Command, local func() error, remote func(*server) error) error {
	if f.url == "" {
		if cmd.Flags().Changed("api-key-file") {
			return usageError{errors.New("--api-key-file is given without --server")}
		}
		return local()
	}
	s, err := f.open(f)
	if err != nil {
		return err
	}
	defer s.Close()
	return serverError(s, remote(s))
}

// server is a running serve.
type server struct {
	*sessionclient.HTTP
	url string
}

func (c *cli) openServer(f serverFlags) (*server, error) {
	key := environment(c.environ)[apiKeyVariable]
	if f.keyFile != "" {
		data, err := os.ReadFile(f.keyFile)
		if err != nil {
			return nil, usageError{fmt.Errorf("read the API key: %w", err)}
		}
		key = strings.TrimSpace(string(data))
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, usageError{errors.New("the API key has characters that no key has; is it the right variable or file?")}
	}
	h, err := sessionclient.NewHTTP(sessionclient.HTTPConfig{URL: f.url, Key: key})
	if err != nil {
		return nil, usageError{fmt.Errorf("--server: %w", err)}
	}
	return &server{HTTP: h, url: f.url}, nil
}

// flag is how a command is told to talk to the same server.
func (s *server) flag() string { return " --server " + s.url }

// client returns a client of one session. The caller closes it.
func (s *server) client(id session.ID) (*sessionclient.Session, error) {
	return sessionclient.New(sessionclient.Config{Backend: s.HTTP, Session: id})
}

// serverError adds to an error of a server its exit code and what to do next.
func serverError(s *server, err error) error {
	if err == nil || hintOf(err) != "" && !errors.Is(err, session.ErrNotFound) {
		return err
	}
	api, says := errors.AsType[*sessionclient.APIError](err)
	_, network := errors.AsType[net.Error](err)
	switch {
	case says && (api.Status == 401 || api.Status == 403):
		return withHint(usageError{err}, "set %s, or use --api-key-file; orchestrator keys create makes one, where the server is", apiKeyVariable)
	case says && api.Code == "":
		return withHint(unreachableError{err}, "is %s the address of orchestrator serve?", s.url)
	case errors.Is(err, session.ErrNotFound):
		return withHint(err, "orchestrator sessions list%s names the sessions there are", s.flag())
	case says && api.Status == 503, network && !errors.Is(err, context.Canceled):
		return withHint(unreachableError{fmt.Errorf("%s: %w", s.url, err)}, "start it with: orchestrator serve")
	}
	return err
}

// eachEvent calls f with every durable event of a session after a seq up to its head, with its body in place.
func (s *server) eachEvent(ctx context.Context, id session.ID, after uint64, f func(session.Event) error) error {
	for {
		events, more, err := s.Page(ctx, id, after, 500)
		if err != nil {
			return fmt.Errorf("read session %s: %w", printable(string(id)), err)
		}
		for _, e := range events {
			if err := f(e); err != nil {
				return err
			}
			after = e.Seq
		}
		if !more {
			return nil
		}
	}
}
