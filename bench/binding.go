package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// binding is a binding of the protocol in one of its versions. Each has peers of its own, whose names begin with its prefix.
type binding struct {
	prefix  string
	binding protocol.TransportProtocol
	version protocol.ProtocolVersion
}

// bindings are those that are measured. The first has a peer of every kind, the others have those that reply with a message.
var bindings = []binding{
	{"", protocol.TransportProtocolJSONRPC, protocol.Version},
	{"rest-", protocol.TransportProtocolHTTPJSON, protocol.Version},
	{"grpc-", protocol.TransportProtocolGRPC, protocol.Version},
	{"old-", protocol.TransportProtocolJSONRPC, a2av0.Version},
	{"old-rest-", protocol.TransportProtocolHTTPJSON, a2av0.Version},
}

func (b binding) String() string { return fmt.Sprintf("%s %s", b.binding, b.version) }

// kinds are the peers of a binding, by their names without its prefix.
func (b binding) kinds() []string {
	if b.prefix == "" {
		return []string{streamingMessage, streamingTask, plainMessage, plainTask, holder}
	}
	return []string{streamingMessage, plainMessage}
}

// handler serves an agent.
func (b binding) handler(h a2asrv.RequestHandler) http.Handler {
	rest, old := b.binding == protocol.TransportProtocolHTTPJSON, b.version == a2av0.Version
	switch {
	case rest && old:
		return a2av0.NewRESTHandler(h)
	case rest:
		return a2asrv.NewRESTHandler(h)
	case old:
		return a2av0.NewJSONRPCHandler(h)
	}
	return a2asrv.NewJSONRPCHandler(h)
}

// cards serves a card.
func (b binding) cards(card *protocol.AgentCard) http.Handler {
	if b.version == a2av0.Version {
		return a2asrv.NewAgentCardHandler(a2av0.NewStaticAgentCardProducer(card))
	}
	return a2asrv.NewStaticAgentCardHandler(card)
}

// transport is the SDK's own client.
func (b binding) transport(hc *http.Client) a2aclient.FactoryOption {
	rest, old := b.binding == protocol.TransportProtocolHTTPJSON, b.version == a2av0.Version
	switch {
	case b.binding == protocol.TransportProtocolGRPC:
		return a2aclient.WithTransport(b.binding, a2aclient.TransportFactoryFn(dialGRPC))
	case rest && old:
		return a2av0.WithRESTTransport(a2av0.RESTTransportConfig{Client: hc})
	case rest:
		return a2aclient.WithRESTTransport(hc)
	case old:
		return a2av0.WithJSONRPCTransport(a2av0.JSONRPCTransportConfig{Client: hc})
	}
	return a2aclient.WithJSONRPCTransport(hc)
}

// dialGRPC is the SDK's transport on gRPC's own client, which takes an address for a URL.
func dialGRPC(_ context.Context, _ *protocol.AgentCard, at *protocol.AgentInterface) (a2aclient.Transport, error) {
	u, err := url.Parse(at.URL)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(u.Host, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return a2agrpc.NewGRPCTransport(conn), nil
}

// rawClient calls a peer with the SDK's own client alone.
type rawClient struct {
	client    *a2aclient.Client
	http      *http.Transport
	streaming bool
}

func newRawClient(ctx context.Context, b binding, url string) (*rawClient, error) {
	r := &rawClient{http: &http.Transport{MaxIdleConnsPerHost: 16}}
	hc := &http.Client{Transport: r.http}
	resolver := agentcard.NewResolver(hc)
	if b.version == a2av0.Version {
		resolver.CardParser = a2av0.NewAgentCardParser()
	}
	card, err := resolver.Resolve(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("get a card: %w", err)
	}
	r.streaming = card.Capabilities.Streaming
	r.client, err = a2aclient.NewFromCard(ctx, card, a2aclient.WithDefaultsDisabled(), b.transport(hc))
	return r, err
}

func (r *rawClient) close() error {
	err := r.client.Destroy()
	r.http.CloseIdleConnections()
	return err
}

func (r *rawClient) request() *protocol.SendMessageRequest {
	m := protocol.NewMessage(protocol.MessageRoleUser, protocol.NewTextPart(question))
	m.ContextID = "x-" + m.ID
	return &protocol.SendMessageRequest{Message: m}
}

// call makes one call and reads its answer to the end.
func (r *rawClient) call(ctx context.Context) error {
	req := r.request()
	if !r.streaming {
		req.Config = &protocol.SendMessageConfig{ReturnImmediately: true}
		_, err := r.client.SendMessage(ctx, req)
		return err
	}
	for _, err := range r.client.SendStreamingMessage(ctx, req) {
		if err != nil {
			return err
		}
	}
	return nil
}

// row names what a peer is measured for.
func (b binding) row(kind string) string {
	method, reply, _ := strings.Cut(kind, "-")
	method = map[string]string{"streaming": "SendStreamingMessage", "plain": "SendMessage"}[method]
	if b.prefix != "" {
		method = b.String() + ", " + method
	}
	return fmt.Sprintf("%s, %s reply", method, reply)
}
