package agentloop

import (
	"context"
	"slices"
	"sync"

	"orchestrator/session"
)

// parking counts which tool calls of one message only wait, and parks the turn when all unfinished ones do. A call is
// unfinished until its result is committed; between its return and that commit it works, and doesn't only wait.
type parking struct {
	parker session.Parker // may be nil
	fail   func(error)    // told when parking fails

	mu         sync.Mutex
	unfinished []session.ToolCallID // in call order
	waiting    map[session.ToolCallID]string
	returned   map[session.ToolCallID]bool
	parked     bool
}

func newParking(parker session.Parker, calls []call, fail func(error)) *parking {
	p := &parking{
		parker: parker, fail: fail,
		waiting: make(map[session.ToolCallID]string), returned: make(map[session.ToolCallID]bool),
	}
	for _, c := range calls {
		p.unfinished = append(p.unfinished, c.ID)
	}
	return p
}

// wait says that a call only waits from now on.
func (p *parking) wait(ctx context.Context, id session.ToolCallID, reason string) {
	p.mu.Lock()
	if p.returned[id] {
		p.mu.Unlock()
		return
	}
	p.waiting[id] = reason
	park := p.allWaitLocked()
	p.mu.Unlock()
	if park {
		p.park(ctx, reason)
	}
}

// back says that a call has returned.
func (p *parking) back(id session.ToolCallID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.returned[id] = true
	delete(p.waiting, id)
}

// finish says that a call's result is committed.
func (p *parking) finish(ctx context.Context, id session.ToolCallID) {
	p.mu.Lock()
	p.unfinished = slices.DeleteFunc(p.unfinished, func(other session.ToolCallID) bool { return other == id })
	park := p.allWaitLocked()
	var reason string
	if park {
		reason = p.waiting[p.unfinished[0]]
	}
	p.mu.Unlock()
	if park {
		p.park(ctx, reason)
	}
}

// allWaitLocked reports, once, that every unfinished call waits.
func (p *parking) allWaitLocked() bool {
	if p.parker == nil || p.parked || len(p.unfinished) == 0 || len(p.waiting) < len(p.unfinished) {
		return false
	}
	p.parked = true
	return true
}

func (p *parking) park(ctx context.Context, reason string) {
	if err := p.parker.Park(ctx, reason); err != nil {
		p.fail(err)
	}
}

// isParked reports whether the turn was parked. It is asked when all calls have returned.
func (p *parking) isParked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parked
}
