package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/agent/llmagent"
	"google.golang.org/adk/v2/agent/remoteagent/v2"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/tool"
	"google.golang.org/adk/v2/tool/agenttool"
	"google.golang.org/genai"
)

// user is whose sessions the frameworks keep.
const user = "user"

// adk calls a peer through the remote agent of adk-go. A call is one by that agent as the root of a runner with sessions
// in memory, without a model, and the first message of a session that was made before. A step is one by an agent with a
// model that has the remote agent for a tool. The card is given, since the remote agent would fetch it for each call.
type adk struct {
	setup
	sessions session.Service
	runner   *runner.Runner // of the remote agent
	asking   *runner.Runner // of the agent with a model
	model    *adkWisher
	made     int
}

func newADK(ctx context.Context, s setup, url string) (*adk, error) {
	card, err := agentcard.DefaultResolver.Resolve(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("get a card: %w", err)
	}
	remote, err := remoteagent.NewA2A(remoteagent.A2AConfig{Name: peerName, Description: "a peer to measure with", AgentCard: card})
	if err != nil {
		return nil, err
	}
	a := &adk{setup: s, sessions: session.InMemoryService(), model: new(adkWisher)}
	if a.runner, err = runner.New(runner.Config{AppName: "bench", Agent: remote, SessionService: a.sessions}); err != nil {
		return nil, err
	}
	asking, err := llmagent.New(llmagent.Config{Name: "asking", Model: a.model, Tools: []tool.Tool{agenttool.New(remote, nil)}})
	if err != nil {
		return nil, err
	}
	a.asking, err = runner.New(runner.Config{AppName: "bench", Agent: asking, SessionService: a.sessions})
	return a, err
}

func (a *adk) close() error { return nil }

// block implements contender.
func (a *adk) block(ctx context.Context, n int, allocs bool) (s sample, err error) {
	ids := make([]string, n+1)
	for i := range ids {
		a.made++
		ids[i] = fmt.Sprintf("s-%d", a.made)
		if _, err := a.sessions.Create(ctx, &session.CreateRequest{AppName: "bench", UserID: user, SessionID: ids[i]}); err != nil {
			return s, err
		}
		defer func() {
			err = errors.Join(err, a.sessions.Delete(ctx, &session.DeleteRequest{AppName: "bench", UserID: user, SessionID: ids[i]}))
		}()
	}
	if s, err = timed(n, allocs, func(i int) error {
		said, err := a.say(ctx, a.runner, ids[i])
		if err != nil {
			return err
		}
		return answered(said)
	}); err != nil {
		return s, err
	}
	a.model.steps = steps{left: n}
	if _, err := a.say(ctx, a.asking, ids[n]); err != nil {
		return s, err
	}
	s.step, err = a.model.took(n)
	return s, err
}

// say sends the question to a session and returns what is answered.
func (a *adk) say(ctx context.Context, r *runner.Runner, id string) (said string, err error) {
	mode := agent.StreamingModeNone
	if a.streaming {
		mode = agent.StreamingModeSSE
	}
	asked := genai.NewContentFromText(question, genai.RoleUser)
	for ev, err := range r.Run(ctx, user, id, asked, agent.RunConfig{StreamingMode: mode}) {
		if err != nil {
			return "", err
		}
		if ev.ErrorMessage != "" {
			return "", errors.New(ev.ErrorMessage)
		}
		if ev.Content != nil {
			for _, p := range ev.Content.Parts {
				said += p.Text
			}
		}
	}
	return said, nil
}

// adkWisher is a model that wishes to call the peer so often and then ends its turn.
type adkWisher struct{ steps }

var _ model.LLM = (*adkWisher)(nil)

// Name implements [model.LLM].
func (w *adkWisher) Name() string { return "bench" }

// GenerateContent implements [model.LLM].
func (w *adkWisher) GenerateContent(_ context.Context, req *model.LLMRequest, _ bool) iter.Seq2[*model.LLMResponse, error] {
	return func(yield func(*model.LLMResponse, error) bool) {
		told := false
		for _, p := range req.Contents[len(req.Contents)-1].Parts {
			told = told || p.FunctionResponse != nil && strings.Contains(fmt.Sprint(p.FunctionResponse.Response["result"]), answer)
		}
		part := genai.NewPartFromText("done")
		if w.next(told) {
			part = genai.NewPartFromFunctionCall(peerName, map[string]any{"request": question})
		}
		yield(&model.LLMResponse{Content: genai.NewContentFromParts([]*genai.Part{part}, genai.RoleModel), TurnComplete: true}, nil)
	}
}
