package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
)

// raw calls a peer with the SDK's own client alone.
type raw struct {
	setup
	client *a2aclient.Client
	http   *http.Transport
}

func newRaw(ctx context.Context, s setup, url string) (*raw, error) {
	r := &raw{setup: s, http: &http.Transport{MaxIdleConnsPerHost: 16}}
	hc := &http.Client{Transport: r.http}
	resolver := agentcard.NewResolver(hc)
	option := a2aclient.WithJSONRPCTransport(hc)
	if s.version == version03 {
		resolver.CardParser = a2av0.NewAgentCardParser()
		option = a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: hc})
	}
	card, err := resolver.Resolve(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("get a card: %w", err)
	}
	r.client, err = a2aclient.NewFromCard(ctx, card, a2aclient.WithDefaultsDisabled(), option)
	return r, err
}

func (r *raw) close() error {
	r.http.CloseIdleConnections()
	return nil
}

// block implements contender.
func (r *raw) block(ctx context.Context, n int, allocs bool) (sample, error) {
	return timed(n, allocs, func(int) error {
		m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(question))
		m.ContextID = "x-" + m.ID
		req := &protocol.SendMessageRequest{Message: m}
		if !r.streaming {
			reply, err := r.client.SendMessage(ctx, req)
			if err != nil {
				return err
			}
			return answered(text(reply))
		}
		var said strings.Builder
		for ev, err := range r.client.SendStreamingMessage(ctx, req) { // to the stream's end
			if err != nil {
				return err
			}
			said.WriteString(text(ev))
		}
		return answered(said.String())
	})
}

// text returns the text of a message.
func text(ev any) (said string) {
	if m, ok := ev.(*protocol.Message); ok {
		for _, p := range m.Parts {
			said += p.Text()
		}
	}
	return said
}
