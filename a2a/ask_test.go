package a2a_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"orchestrator/a2a"
	"orchestrator/a2a/a2atest"
)

// hear asks a peer and returns all it says, each thing on a line, and the reply.
func hear(ctx context.Context, w *world, q a2a.Question) (said []string, reply a2a.Heard, err error) {
	for h, herr := range w.registry.Ask(ctx, q) {
		if herr != nil {
			return said, reply, herr
		}
		line := string(h.Kind) + " " + h.State + " " + h.Name + ": " + h.Text
		if h.Append {
			line = "+" + line
		}
		said = append(said, line)
		if h.Kind == a2a.HeardReply {
			reply = h
		}
	}
	return said, reply, nil
}

func report(x *a2atest.Exchange) {
	x.State(a2atest.Working, "reading")
	x.Artifact("plan", a2atest.TextPart("first"))
	x.Sleep(time.Minute)
	x.Append("plan", a2atest.TextPart("second"), a2atest.DataPart(map[string]any{"n": 1}))
	x.State(a2atest.Completed, "that is all", a2atest.DataPart(map[string]any{"n": 2}), a2atest.FilePart("map.png", "image/png", []byte("png")))
}

func TestAskTellsEverythingAPeerSaysOnce(t *testing.T) {
	for name, noStreaming := range map[string]bool{"streaming": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.peer(a2atest.Config{Name: "p", Script: report, NoStreaming: noStreaming})
				said, reply, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "plan it", Skill: "planning"})
				if err != nil {
					t.Fatal(err)
				}
				all := strings.Join(said, "\n")
				for _, piece := range []string{"first", "second", "reading"} {
					if got := strings.Count(all[:strings.Index(all, "reply completed")], piece); got != 1 && (piece != "reading" || !noStreaming) {
						t.Errorf("%q is told %d times before the reply, want once:\n%s", piece, got, all)
					}
				}
				if reply.Text != "that is all" || len(reply.Data) != 1 || len(reply.Files) != 1 || string(reply.Files[0].Data) != "png" {
					t.Errorf("the reply is %+v, want its words, data and file", reply)
				}
				if !reply.Ended() || reply.Failed() || reply.TaskID == "" {
					t.Errorf("the reply is ended %v, failed %v, of task %q", reply.Ended(), reply.Failed(), reply.TaskID)
				}
			})
		})
	}
}

func TestAskTellsPiecesThatArePutTogetherAsTheyAre(t *testing.T) {
	for name, noStreaming := range map[string]bool{"streaming": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.peer(a2atest.Config{Name: "p", NoStreaming: noStreaming, Script: func(x *a2atest.Exchange) {
					x.Artifact("story", a2atest.TextPart("On"))
					x.Append("story", a2atest.TextPart("ce up"), a2atest.TextPart("on a"))
					x.Append("story", a2atest.TextPart(" time."))
					x.State(a2atest.Completed, "")
				}})
				var text strings.Builder
				for h, err := range w.registry.Ask(w.t.Context(), a2a.Question{Peer: "p", Message: "tell"}) {
					if err != nil {
						t.Fatal(err)
					}
					text.WriteString(h.Text)
				}
				if want := "Once upon a time."; text.String() != want {
					t.Errorf("the pieces are %q together, want %q", text.String(), want)
				}
			})
		})
	}
}

func TestAskTakesABrokenStreamUpAgainAndSendsOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Script: report, Fault: func(r a2atest.Request) a2atest.Fault {
			if r.Method == a2atest.MethodStream {
				return a2atest.Fault{CutAfter: 3}
			}
			return a2atest.Fault{}
		}})
		said, reply, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "plan it"})
		if err != nil || reply.State != "completed" {
			t.Fatalf("reply %+v, error %v", reply, err)
		}
		all := strings.Join(said, "\n")
		if n := len(p.Sends()); n != 1 {
			t.Errorf("the message was sent %d times, want once", n)
		}
		if !strings.Contains(all, "artifact  plan: first") || !strings.Contains(all, "+artifact  plan: second") {
			t.Errorf("told is\n%s\nwant both pieces of the artifact", all)
		}
	})
}

func TestAskAnswersWithAMessageWithoutATask(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.Reply("hello, " + x.Text()) }})
		said, reply, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "you"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"reply completed : hello, you"}, said); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		if reply.Text != "hello, you" || reply.TaskID != "" {
			t.Errorf("reply = %+v", reply)
		}
	})
}

func TestAskAPeersQuestionIsAnsweredOnItsTask(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			if x.FollowUp() {
				x.State(a2atest.Completed, "booked for "+x.Text())
				return
			}
			x.State(a2atest.InputRequired, "which day?")
		}})
		_, question, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "book"})
		if err != nil || question.State != "input_required" || question.Text != "which day?" || question.Ended() {
			t.Fatalf("question %+v, error %v", question, err)
		}
		_, reply, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "Monday", TaskID: question.TaskID})
		if err != nil || reply.Text != "booked for Monday" {
			t.Errorf("reply %+v, error %v", reply, err)
		}
		if sends := p.Sends(); sends[1].TaskID != question.TaskID || sends[1].ContextID == "" {
			t.Errorf("the answer was sent as %+v", sends[1])
		}
	})
}

func TestAskDoesNotTakeTheQuestionItAnswersForTheReply(t *testing.T) {
	const asks = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED","message":{"messageId":"q","role":"ROLE_AGENT","parts":[{"text":"which day?"}]}}}`
	const ends = `{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED","message":{"messageId":"r","role":"ROLE_AGENT","parts":[{"text":"booked"}]}}}`
	inBubble(t, func(w *world) {
		answered := false
		w.peer(a2atest.Config{Name: "p", Fault: func(r a2atest.Request) a2atest.Fault {
			result := asks
			switch {
			case r.Method == a2atest.MethodCard:
				return a2atest.Fault{}
			case r.Method == a2atest.MethodStream: // begins with the task as it was
				answered = true
				result = `{"task":` + asks + `}`
			case r.Method == a2atest.MethodSubscribe:
				return a2atest.Fault{Status: http.StatusServiceUnavailable}
			case r.Method == a2atest.MethodGet && answered:
				result = ends
			}
			return a2atest.Fault{Status: http.StatusOK, MediaType: "application/json", Body: `{"jsonrpc":"2.0","id":"1","result":` + result + `}`}
		}})
		said, reply, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "Monday", TaskID: "t"})
		if err != nil || reply.Text != "booked" {
			t.Errorf("the reply is %+v with %v, want that it is booked; told:\n%s", reply, err, strings.Join(said, "\n"))
		}
	})
}

func TestAskThatIsInterruptedCancelsTheTask(t *testing.T) {
	for name, noStreaming := range map[string]bool{"streaming": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				p := w.peer(a2atest.Config{Name: "p", NoStreaming: noStreaming, Script: func(x *a2atest.Exchange) {
					x.State(a2atest.Working, "on it")
					x.Wait(a2atest.NewGate())
				}})
				why := errors.New("enough")
				ctx, cancel := context.WithCancelCause(w.t.Context())
				defer cancel(nil)
				var last a2a.Heard
				var err error
				for h, herr := range w.registry.Ask(ctx, a2a.Question{Peer: "p", Message: "x"}) {
					if err = herr; herr != nil {
						break
					}
					last = h
					cancel(why)
				}
				if !errors.Is(err, why) || last.State != "canceled" {
					t.Errorf("ends with %v after %+v, want the cause after the peer's word that it is cancelled", err, last)
				}
				if n := len(p.Requests(a2atest.MethodCancel)); n != 1 {
					t.Errorf("the peer got %d CancelTask, want 1", n)
				}
			})
		})
	}
}

func TestAskThatIsInterruptedBeforeTheTaskIsNamedCancelsItWhenItIs(t *testing.T) {
	inBubble(t, func(w *world) {
		p := w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) {
			x.Sleep(2 * time.Second)
			x.State(a2atest.Working, "")
			x.Wait(a2atest.NewGate())
		}})
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		_, _, err := hear(ctx, w, a2a.Question{Peer: "p", Message: "x"})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error = %v, want the deadline's", err)
		}
		synctest.Wait()
		if n := len(p.Requests(a2atest.MethodCancel)); n != 1 {
			t.Errorf("the peer got %d CancelTask, want 1: its task was named within the grace", n)
		}
	})
}

func TestAskSaysWhyThereIsNoReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.peer(a2atest.Config{Name: "p", Script: func(x *a2atest.Exchange) { x.State(a2atest.Rejected, "not my field") }})
		_, reply, err := hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "x"})
		if err != nil || !reply.Failed() || reply.Text != "not my field" {
			t.Errorf("a refusal: reply %+v, error %v", reply, err)
		}
		w.net.Down("p", true)
		w.stop()
		w.begin() // which forgets the card
		_, _, err = hear(w.t.Context(), w, a2a.Question{Peer: "p", Message: "x"})
		if _, ok := errors.AsType[*a2a.NotSentError](err); !ok {
			t.Errorf("a peer that is down: error %v, want that nothing was sent", err)
		}
		_, _, err = hear(w.t.Context(), w, a2a.Question{Peer: "q", Message: "x"})
		if _, ok := errors.AsType[*a2a.UnknownPeerError](err); !ok {
			t.Errorf("a name nobody has: error %v", err)
		}
	})
}
