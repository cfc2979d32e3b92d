package a2a_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/a2a/a2atest"
	"orchestrator/session"
	"orchestrator/tool"
	"orchestrator/tracker"
)

// Lives end at random moments while calls are in every stage; in the end each call has one fate, and what it holds is
// what its peer's record says.
func TestRestartsLoseNoReply(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, func(w *world) {
				var mu sync.Mutex
				source := rand.New(rand.NewPCG(seed, 7))
				random := func(n int) int {
					mu.Lock()
					defer mu.Unlock()
					return source.IntN(n)
				}
				script := func(x *a2atest.Exchange) {
					d := time.Duration(random(20_000)) * time.Millisecond
					if strings.HasSuffix(x.Text(), "message") {
						x.Sleep(d)
						x.Reply("token " + x.Token())
						return
					}
					x.State(a2atest.Working, "")
					x.Sleep(d)
					x.State(a2atest.Completed, "token "+x.Token())
				}
				plain := w.peer(a2atest.Config{Name: "plain", Script: script})
				dedup := w.peer(a2atest.Config{Name: "dedup", Script: script, Dedup: true, Anonymous: true})
				poll := w.peer(a2atest.Config{Name: "poll", Script: script, NoStreaming: true})
				var calls []*tool.Call
				ctx, cancel := context.WithCancelCause(context.Background())
				results := map[session.ToolCallID]<-chan outcome{} // of calls that run in this life
				written := map[session.ToolCallID]string{}         // results that are in the log
				for life := range 6 {
					for i := range 6 {
						peer := []string{"plain", "dedup", "poll"}[i%3]
						c := w.call(w.turn(tool.Subagent, 0), 1, ask(peer, []string{"task", "message"}[i/3], "timeout_seconds", 15))
						calls = append(calls, c)
					}
					for _, c := range calls {
						if _, over := written[c.ID]; !over {
							c.Turn = w.again(c.Turn)
							life := *c
							results[c.ID] = w.run(ctx, &life)
							c.Resumed = true
						}
					}
					time.Sleep(time.Duration(random(9000)) * time.Millisecond)
					if life == 5 {
						break
					}
					cancel(session.ErrStopping)
					for _, c := range calls {
						if _, over := written[c.ID]; over {
							continue
						}
						o := <-results[c.ID]
						if o.err != nil || len(o.res.Batch.Changes) > 0 && random(2) == 0 {
							continue // it died before there was a result, or before it was written
						}
						w.complete(c, o.res)
						written[c.ID] = o.res.Content
					}
					ctx, cancel = context.WithCancelCause(context.Background())
					w.restart()
				}
				defer cancel(nil)
				time.Sleep(2 * time.Minute)
				tokens := map[string][]string{}
				for _, p := range []*a2atest.Peer{plain, dedup, poll} {
					for _, e := range p.Record() {
						if e.Kind == a2atest.KindAnswered {
							tokens[e.MessageID] = append(tokens[e.MessageID], e.Token)
						}
					}
				}
				answered, folded, unknown := 0, 0, 0
				for _, c := range calls {
					if _, over := written[c.ID]; !over {
						o := <-results[c.ID]
						w.ok(o.err)
						w.complete(c, o.res)
						written[c.ID] = o.res.Content
					}
					p := w.get(c)
					item, isItem := w.item(session.ItemReply, c)
					var text string
					switch {
					case p.State == tracker.StateConsumed && !isItem:
						answered++
						text = written[c.ID]
					case p.State == tracker.StateFolded && isItem:
						folded++
						text = item.Text
					default:
						w.t.Errorf("call %s to %s is %s, item %v", p.ID, p.Peer, p.State, isItem)
						continue
					}
					if strings.HasPrefix(text, "outcome unknown") {
						unknown++
						continue
					}
					found := false
					for _, token := range tokens[string(p.ID)] {
						found = found || strings.Contains(text, token)
					}
					if !found {
						w.t.Errorf("call %s to %s holds %q, and its peer's tokens are %v", p.ID, p.Peer, text, tokens[string(p.ID)])
					}
				}
				w.t.Logf("answered %d, folded %d, unknown %d", answered, folded, unknown)
				if answered == 0 || folded == 0 || unknown > 3 { // a message that outlives five lives is sent no more
					w.t.Errorf("answered %d, folded %d, unknown %d", answered, folded, unknown)
				}
			})
		})
	}
}
