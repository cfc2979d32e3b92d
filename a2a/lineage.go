package a2a

import (
	"encoding/json"
	"slices"
	"time"
)

// LineageURI names our A2A extension. A message that uses it lists the URI among its extensions and carries, in its
// metadata under the URI, an object {chain, depth, deadline}: the identities (card URLs) of the agents the question came
// through, the caller last; their number; and the moment (RFC 3339) after which nobody waits for the answer. A receiver
// may refuse a question that has come through itself or too deep. It proves nothing and grants nothing.
const LineageURI = "urn:orchestrator:a2a:lineage:1"

// Lineage is how a question came here.
type Lineage struct {
	Chain    []string  `json:"chain"`
	Depth    int       `json:"depth"`
	Deadline time.Time `json:"deadline,omitzero"`
}

// Next returns the lineage of a question asked by self because of one that came by l.
func (l Lineage) Next(self string, deadline time.Time) Lineage {
	n := Lineage{Chain: slices.Clone(l.Chain), Depth: l.Depth + 1, Deadline: deadline}
	if self != "" {
		n.Chain = append(n.Chain, self)
	}
	return n
}

// Metadata returns the lineage as the value of [LineageURI] in a message's metadata.
func (l Lineage) Metadata() map[string]any {
	chain := make([]any, len(l.Chain))
	for i, c := range l.Chain {
		chain[i] = c
	}
	m := map[string]any{"chain": chain, "depth": float64(l.Depth)}
	if !l.Deadline.IsZero() {
		m["deadline"] = l.Deadline.UTC().Format(time.RFC3339Nano)
	}
	return m
}

// LineageFrom reads the lineage a message's metadata carries, and whether there is one that can be read.
func LineageFrom(metadata map[string]any) (Lineage, bool) {
	raw, ok := metadata[LineageURI]
	if !ok {
		return Lineage{}, false
	}
	b, err := json.Marshal(raw)
	if err != nil {
		return Lineage{}, false
	}
	var l Lineage
	if err := json.Unmarshal(b, &l); err != nil {
		return Lineage{}, false
	}
	return l, true
}
