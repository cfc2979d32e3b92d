package sessionclient_test

import (
	"context"
	"fmt"
	"log"

	"orchestrator/session"
	"orchestrator/session/sessionclient"
)

// A client in the server's own process. Over HTTP only the backend differs: see [sessionclient.NewHTTP].
func ExampleSession_SendAndWait() {
	ctx := context.Background()
	m, stop, err := newManager(ctx) // of an echo, here
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stop() }() // the process ends
	id, err := m.Open(ctx, session.OpenRequest{Agent: "echo"})
	if err != nil {
		log.Print(err)
		return
	}

	client, err := sessionclient.New(sessionclient.Config{Backend: sessionclient.NewInProcess(m), Session: id})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()
	turn, err := client.SendAndWait(ctx, sessionclient.SendRequest{Input: "hello"})
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(turn.State, turn.Output)
	// Output: completed you said: hello
}

// Every durable event, from the log's beginning, until the turn's end.
func ExampleSession_Events() {
	ctx := context.Background()
	m, stop, err := newManager(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = stop() }() // the process ends
	id, err := m.Open(ctx, session.OpenRequest{Agent: "echo"})
	if err != nil {
		log.Print(err)
		return
	}
	client, err := sessionclient.New(sessionclient.Config{Backend: sessionclient.NewInProcess(m), Session: id})
	if err != nil {
		log.Print(err)
		return
	}
	defer client.Close()

	sent, err := client.Send(ctx, sessionclient.SendRequest{Input: "hello"})
	if err != nil {
		log.Print(err)
		return
	}
	for e, err := range client.Events(ctx, sessionclient.EventsRequest{}) {
		if err != nil {
			log.Print(err)
			return
		}
		if e.Type != session.EventSessionState { // a level, told whenever it changes
			fmt.Println(e.Type)
		}
		if e.TurnID == sent.ID && e.Type == session.EventTurnCompleted {
			break
		}
	}
	// Output:
	// session.created
	// turn.queued
	// turn.started
	// message.completed
	// turn.completed
}
