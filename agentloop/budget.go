package agentloop

import (
	"context"
	"fmt"
	"sync"

	"orchestrator/session"
)

// maxTrees bounds the trees whose use is remembered; one that is forgotten is summed anew.
const maxTrees = 500

// budget bounds what the model calls of a tree use, all its agents together. What was used is what the log says: a look
// adds the events since the last look, so it is right with any number of turns, processes and restarts.
type budget struct {
	limits Limits

	mu    sync.Mutex
	trees map[session.ID]*treeUse
}

type treeUse struct {
	turn  chan struct{} // holds a value while somebody looks
	seq   uint64        // the log is summed through here
	usage session.Usage
}

func newBudget(limits Limits) *budget {
	return &budget{limits: limits, trees: make(map[session.ID]*treeUse)}
}

// check fails the turn when its tree has used up what it may.
func (b *budget) check(ctx context.Context, t *session.Turn) error {
	if b.limits.TreeTokens == 0 && b.limits.TreeCostUSD == 0 {
		return nil
	}
	usage, err := b.used(ctx, t)
	if err != nil {
		return err
	}
	if used, most := usage.InputTokens+usage.OutputTokens, b.limits.TreeTokens; most > 0 && used >= most {
		return failf(stopBudget, "this session may use %d tokens and has used %d", most, used)
	}
	if most := b.limits.TreeCostUSD; most > 0 && usage.CostUSD >= most {
		return failf(stopBudget, "this session may cost $%.2f and has cost $%.2f", most, usage.CostUSD)
	}
	return nil
}

func (b *budget) used(ctx context.Context, t *session.Turn) (session.Usage, error) {
	use := b.tree(t.Root)
	select {
	case use.turn <- struct{}{}:
		defer func() { <-use.turn }()
	case <-ctx.Done():
		return session.Usage{}, context.Cause(ctx)
	}
	query := session.EventQuery{
		Tree:  t.Root,
		Types: []session.EventType{session.EventMessageCompleted, session.EventContextCompacted},
		Limit: pageSize,
	}
	for {
		query.After = use.seq
		events, err := t.Tree().Store.Events(ctx, query)
		if err != nil {
			return session.Usage{}, fmt.Errorf("read what the tree has used: %w", err)
		}
		for _, e := range events {
			if err := session.Resolve(ctx, t.Tree().Store, &e); err != nil {
				return session.Usage{}, err
			}
			var body struct {
				Usage session.Usage `json:"usage"`
			}
			if err := e.Decode(&body); err != nil {
				return session.Usage{}, err
			}
			use.usage.Add(body.Usage)
			use.seq = e.Seq
		}
		if len(events) < pageSize {
			return use.usage, nil
		}
	}
}

func (b *budget) tree(root session.ID) *treeUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	use, ok := b.trees[root]
	if !ok {
		if len(b.trees) >= maxTrees {
			for other := range b.trees {
				delete(b.trees, other)
				break
			}
		}
		use = &treeUse{turn: make(chan struct{}, 1)}
		b.trees[root] = use
	}
	return use
}
