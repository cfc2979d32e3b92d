package a2atest

import (
	"context"
	"iter"
	"net/http"
	"testing"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// NewQueued returns a peer that nobody serves yet: the test has a server of its own serve [Peer.Recorder] and [Peer.Card].
// url is what the card says of where it is. Of the faults it has Hold, Twice, CutAfter, Lose and Refuse, for the last three
// of which it calls cut, that has to break the server's connections before it returns; and a Status, which is answered as
// an internal error. The peer ends with the test.
func NewQueued(t testing.TB, cfg Config, url string, cut func()) *Peer {
	t.Helper()
	cfg.Interfaces = []Interface{AMQP10}
	p := newPeer(cfg)
	p.url, p.cut = url, cut
	p.serve()
	t.Cleanup(p.Close)
	return p
}

// Recorder returns what answers requests, as [Peer.Handler] does, with the record and the faults of a wire.
func (p *Peer) Recorder() a2asrv.RequestHandler { return unwired{RequestHandler: p.asked, peer: p} }

// unwired is the peer's handler without a wire of its own.
type unwired struct {
	a2asrv.RequestHandler
	peer *Peer
}

// asks records a request and applies what of its fault comes before it is handled.
func (u unwired) asks(ctx context.Context, method string, fill func(*Request)) (Fault, error) {
	req := Request{Interface: AMQP10, Method: method, Header: http.Header{}}
	if call, ok := a2asrv.CallContextFrom(ctx); ok {
		for name, values := range call.ServiceParams().List() {
			for _, v := range values {
				req.Header.Add(name, v)
			}
		}
	}
	fill(&req)
	f := u.peer.asks(&req)
	switch {
	case f.Hold != nil && !f.Hold.wait(ctx, u.peer.alive):
		return f, protocol.ErrInternalError
	case f.Refuse:
		u.peer.cut()
		return f, u.gone(ctx)
	case f.Status != 0:
		return f, protocol.ErrInternalError
	}
	return f, nil
}

// gone waits until the server that asks is gone, whose connections are broken.
func (u unwired) gone(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-u.peer.alive.Done():
	}
	return context.Canceled
}

func (u unwired) stream(ctx context.Context, f Fault, events iter.Seq2[protocol.Event, error]) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		n := 0
		for ev, err := range events {
			if f.Lose {
				u.peer.cut()
				yield(nil, u.gone(ctx))
				return
			}
			if !yield(ev, err) || f.Twice && !yield(ev, err) {
				return
			}
			if n++; f.CutAfter > 0 && n >= f.CutAfter {
				u.peer.cut()
				yield(nil, u.gone(ctx))
				return
			}
		}
	}
}

func (u unwired) sent(req *protocol.SendMessageRequest) func(*Request) {
	return func(r *Request) { r.sent(req, nil) }
}

// SendMessage implements a2asrv.RequestHandler.
func (u unwired) SendMessage(ctx context.Context, req *protocol.SendMessageRequest) (protocol.SendMessageResult, error) {
	f, err := u.asks(ctx, MethodSend, u.sent(req))
	if err != nil {
		return nil, err
	}
	res, err := u.RequestHandler.SendMessage(ctx, req)
	if f.Lose {
		u.peer.cut()
		return nil, u.gone(ctx)
	}
	return res, err
}

// SendStreamingMessage implements a2asrv.RequestHandler.
func (u unwired) SendStreamingMessage(ctx context.Context, req *protocol.SendMessageRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		f, err := u.asks(ctx, MethodStream, u.sent(req))
		if err != nil {
			yield(nil, err)
			return
		}
		u.stream(ctx, f, u.RequestHandler.SendStreamingMessage(ctx, req))(yield)
	}
}

// SubscribeToTask implements a2asrv.RequestHandler.
func (u unwired) SubscribeToTask(ctx context.Context, req *protocol.SubscribeToTaskRequest) iter.Seq2[protocol.Event, error] {
	return func(yield func(protocol.Event, error) bool) {
		f, err := u.asks(ctx, MethodSubscribe, func(r *Request) { r.TaskID = string(req.ID) })
		if err != nil {
			yield(nil, err)
			return
		}
		u.stream(ctx, f, u.RequestHandler.SubscribeToTask(ctx, req))(yield)
	}
}

// GetTask implements a2asrv.RequestHandler.
func (u unwired) GetTask(ctx context.Context, req *protocol.GetTaskRequest) (*protocol.Task, error) {
	if _, err := u.asks(ctx, MethodGet, func(r *Request) { r.TaskID = string(req.ID) }); err != nil {
		return nil, err
	}
	return u.RequestHandler.GetTask(ctx, req)
}

// ListTasks implements a2asrv.RequestHandler.
func (u unwired) ListTasks(ctx context.Context, req *protocol.ListTasksRequest) (*protocol.ListTasksResponse, error) {
	if _, err := u.asks(ctx, MethodList, func(r *Request) { r.ContextID = req.ContextID }); err != nil {
		return nil, err
	}
	return u.RequestHandler.ListTasks(ctx, req)
}

// CancelTask implements a2asrv.RequestHandler.
func (u unwired) CancelTask(ctx context.Context, req *protocol.CancelTaskRequest) (*protocol.Task, error) {
	if _, err := u.asks(ctx, MethodCancel, func(r *Request) { r.TaskID = string(req.ID) }); err != nil {
		return nil, err
	}
	return u.RequestHandler.CancelTask(ctx, req)
}
