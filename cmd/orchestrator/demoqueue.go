package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"orchestrator/a2a/a2ademo"
)

// demoReach bounds the look for the demonstration's broker, and the tidying up there.
const demoReach = 10 * time.Second

// demoQueues are the queues of one demonstration, whose names no other has.
type demoQueues struct {
	broker string
	id     string
}

// newDemoQueues looks for the broker.
func newDemoQueues(ctx context.Context, broker string) (*demoQueues, error) {
	q := &demoQueues{broker: cmp.Or(broker, os.Getenv("AMQP_URL"), demoBroker), id: "demo-" + strings.ToLower(rand.Text()[:8])}
	bound, cancel := context.WithTimeoutCause(ctx, demoReach, fmt.Errorf("no answer within %s", demoReach))
	defer cancel()
	if err := a2ademo.Reach(bound, q.broker); err != nil {
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		return nil, withHint(unreachableError{fmt.Errorf("demo --queue needs a RabbitMQ: %w", err)},
			"start one, for instance with: make services; or say where one is with --broker or AMQP_URL")
	}
	return q, nil
}

// of is the queue of a peer.
func (q *demoQueues) of(peer string) string { return "a2a." + q.id + "." + peer }

// configure adds the broker to the demonstration's configuration.
func (q *demoQueues) configure(dir string) error {
	file := filepath.Join(dir, "orchestrator.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(text, "\nqueue: {url_file: broker, deployment: "+q.id+"}\n"...), 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "broker"), []byte(q.broker), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the demo's files: %w", err)
	}
	return nil
}

// forget deletes the queues, also when ctx has ended.
func (q *demoQueues) forget(ctx context.Context) error {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), demoReach)
	defer cancel()
	if err := a2ademo.Forget(bound, q.broker, q.of(a2ademo.Advisor), q.of(a2ademo.Archivist), "a2a.replies."+q.id); err != nil {
		return fmt.Errorf("delete the demo's queues: %w", err)
	}
	return nil
}
