package a2ahttp

import (
	"encoding/json"
	"fmt"
	"slices"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"orchestrator/a2a"
)

// readCard reads a card of version 1.0 or 0.3. One that is both is read as 1.0.
func readCard(at string, body []byte) (*protocol.AgentCard, error) {
	var old oldInterfaces
	if err := json.Unmarshal(body, &old); err != nil {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("what %s holds is no agent card: %v", at, err)}
	}
	var card *protocol.AgentCard
	var err error
	if old.URL == "" {
		err = json.Unmarshal(body, &card)
	} else if card, err = a2av0.NewAgentCardParser()(body); err == nil && len(old.SupportedInterfaces) == 0 {
		card.SupportedInterfaces = old.interfaces()
	}
	if err != nil {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("what %s holds is no agent card: %v", at, err)}
	}
	if card == nil || len(card.SupportedInterfaces) == 0 {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("the card at %s names no interfaces (supportedInterfaces), so the agent can't be called", at)}
	}
	if slices.Contains(card.SupportedInterfaces, nil) {
		return nil, &a2a.CardError{Reason: fmt.Sprintf("the card at %s names an interface that is null", at)}
	}
	return card, nil
}

// oldInterfaces is what a card of version 0.3 says of where the agent is.
type oldInterfaces struct {
	URL                  string                     `json:"url"`
	PreferredTransport   protocol.TransportProtocol `json:"preferredTransport"`
	ProtocolVersion      protocol.ProtocolVersion   `json:"protocolVersion"`
	AdditionalInterfaces []struct {
		URL       string                     `json:"url"`
		Transport protocol.TransportProtocol `json:"transport"`
	} `json:"additionalInterfaces"`
	SupportedInterfaces []json.RawMessage `json:"supportedInterfaces"` // of a card that is also one of 1.0
}

// interfaces returns the interfaces as 1.0 lists them: the preferred one first, JSON-RPC when the card doesn't say.
func (o oldInterfaces) interfaces() []*protocol.AgentInterface {
	var out []*protocol.AgentInterface
	add := func(url string, binding protocol.TransportProtocol) {
		i := protocol.AgentInterface{URL: url, ProtocolBinding: binding, ProtocolVersion: o.ProtocolVersion}
		if i.ProtocolVersion == "" {
			i.ProtocolVersion = a2av0.Version
		}
		if i.ProtocolBinding == "" {
			i.ProtocolBinding = protocol.TransportProtocolJSONRPC
		}
		if url != "" && !slices.ContainsFunc(out, func(o *protocol.AgentInterface) bool { return *o == i }) {
			out = append(out, &i)
		}
	}
	add(o.URL, o.PreferredTransport)
	for _, i := range o.AdditionalInterfaces {
		add(i.URL, i.Transport)
	}
	return out
}
