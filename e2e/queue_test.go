package e2e_test

import (
	"flag"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"orchestrator/internal/brokertest"
)

func hostOf(t *testing.T, broker string) string {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// tally adds up the verdicts of all faults.
type tally struct {
	mu                          sync.Mutex
	faults, calls, lost, double int
}

func (a *tally) add(v *verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults++
	a.calls += v.calls
	a.lost += len(v.lost)
	a.double += len(v.double)
}

// TestQueue harms the broker, the connections and the processes at their ends while calls are open, and judges by the
// peers' own records whether a reply was lost or used twice.
func TestQueue(t *testing.T) {
	var all tally
	t.Run("faults", func(t *testing.T) {
		// One node is harmed itself; the other one is whole, and what is harmed lies around it.
		whole := brokertest.Start(t)
		t.Run("around a broker", func(t *testing.T) {
			for name, fault := range map[string]func(*testing.T, string) *verdict{
				"a peer is down through more than 30 s of retries":                        peerDown,
				"our connection is half-open":                                             halfOpen,
				"a peer's connection is half-open, and its answers arrive unconfirmed":    confirmsSwallowed,
				"our connection is cut towards the broker":                                cutToBroker,
				"our connection is cut towards us":                                        cutToUs,
				"the reply consumer is killed between commit and acknowledgement":         repliesNotAcknowledged,
				"a peer is killed between the record of its tasks and acknowledgement":    requestsNotAcknowledged,
				"the orchestrator is killed, and the replies come to the queue meanwhile": repliesInTheQueue,
				"queues are deleted under us":                                             queuesDeleted,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					all.add(fault(t, whole.Vhost(t)))
				})
			}
			t.Run("of the broker itself", func(t *testing.T) {
				t.Parallel()
				harmed := brokertest.Start(t)
				t.Run("it is killed and started again", func(t *testing.T) { all.add(brokerKilled(t, harmed)) })
				t.Run("it runs out of memory", func(t *testing.T) { all.add(alarm(t, harmed, harmed.SetMemoryAlarm)) })
				t.Run("its disk is full", func(t *testing.T) { all.add(alarm(t, harmed, harmed.SetDiskAlarm)) })
			})
		})
	})
	picked := strings.Contains(flag.Lookup("test.run").Value.String(), "/")
	if !picked && (all.faults < 7 || all.calls < 350) {
		t.Errorf("there were %d faults and %d calls, want 7 and 350", all.faults, all.calls)
	}
	if all.lost > 0 || all.double > 0 {
		t.Errorf("%d replies were lost, %d used twice", all.lost, all.double)
	}
	fmt.Fprintf(t.Output(), "faults=%d calls=%d lost=%d double=%d\n", all.faults, all.calls, all.lost, all.double)
}

// pause lets time go by in which a fault lasts.
func pause(d time.Duration) { <-time.After(d) }

func brokerKilled(t *testing.T, b *brokertest.Broker) *verdict {
	w := newWorld(t, plan{vhost: b.Vhost(t), async: 16, patient: 18, quick: 16})
	l := w.ask(50)
	b.Kill()
	w.release()
	w.await("all answers, which go nowhere", func() bool { return w.answered() == w.calls })
	b.Restart()
	w.comesHome(l)
	return w.verdict(l)
}

// harmed cuts connections in some way, keeps them so while we send and while the peers answer, and heals them.
func harmed(t *testing.T, vhost string, harm func(*world)) *verdict {
	w := newWorld(t, plan{vhost: vhost, async: 8, patient: 8, quick: 8, later: 8})
	l := w.ask(w.early)
	harm(w)
	w.release()
	w.makesAll(l)
	w.await("the answers to the early calls", func() bool { return w.answered() >= w.early })
	pause(time.Second)
	w.ours.Heal()
	w.theirs.Heal()
	w.comesHome(l)
	return w.verdict(l)
}

func cutToBroker(t *testing.T, vhost string) *verdict {
	return harmed(t, vhost, func(w *world) { w.ours.Cut(brokertest.ToServer) })
}

func cutToUs(t *testing.T, vhost string) *verdict {
	return harmed(t, vhost, func(w *world) { w.ours.Cut(brokertest.ToClient) })
}

func halfOpen(t *testing.T, vhost string) *verdict {
	return harmed(t, vhost, func(w *world) {
		w.ours.Drop(brokertest.ToServer)
		w.ours.Drop(brokertest.ToClient)
	})
}

// The broker has the answers and can't say so: the peers send them again.
func confirmsSwallowed(t *testing.T, vhost string) *verdict {
	return harmed(t, vhost, func(w *world) { w.theirs.Drop(brokertest.ToClient) })
}

func repliesNotAcknowledged(t *testing.T, vhost string) *verdict {
	w := newWorld(t, plan{vhost: vhost, async: 10, patient: 12, quick: 10})
	l := w.ask(w.calls)
	w.ours.Drop(brokertest.ToServer) // the replies come, the acknowledgements don't leave
	w.release()
	w.comesHome(l)
	if !l.kill() {
		t.Fatalf("%s had ended\n%s", l.what, l.tail())
	}
	if n := w.replies(); n != w.calls {
		t.Errorf("%d replies are in the queue, want all %d, which are committed and not acknowledged", n, w.calls)
	}
	w.ours.Heal()
	w.ours.Sever()
	l = w.follows()
	w.await("that the replies that came again are acknowledged", func() bool { return w.replies() == 0 })
	w.comesHome(l)
	return w.verdict(l)
}

func requestsNotAcknowledged(t *testing.T, vhost string) *verdict {
	w := newWorld(t, plan{vhost: vhost, async: 10, patient: 12, quick: 10, tasks: true})
	w.theirs.Drop(brokertest.ToServer) // the requests come, nothing leaves
	l := w.ask(w.calls)
	w.await("the record of all tasks", func() bool { return w.recorded() == w.calls })
	for _, p := range w.peers {
		p.kill()
	}
	w.theirs.Heal()
	w.theirs.Sever()
	for _, p := range w.peers {
		n := 0
		w.await("the broker knows that "+p.setup.Name+" is gone", func() bool {
			n = brokertest.QueueLength(t, vhost, queueOf(p.setup.Name))
			return n > 0
		})
		t.Logf("%d requests of %s were recorded and not acknowledged", n, p.setup.Name)
	}
	w.startPeers()
	w.release()
	w.comesHome(l)
	if n := w.takenUpTwice(); n > 0 {
		t.Errorf("%d messages became two tasks", n)
	}
	return w.verdict(l)
}

func repliesInTheQueue(t *testing.T, vhost string) *verdict {
	w := newWorld(t, plan{vhost: vhost, async: 10, patient: 12, quick: 10})
	l := w.ask(w.calls)
	if !l.kill() {
		t.Fatalf("%s had ended\n%s", l.what, l.tail())
	}
	w.release()
	w.await("all replies in the queue", func() bool { return w.replies() == w.calls })
	for _, p := range w.peers {
		p.kill() // so that nothing but the queue can tell the answers
	}
	l = w.follows()
	w.comesHome(l)
	if n := w.replies(); n != 0 {
		t.Errorf("%d replies are left in the queue", n)
	}
	return w.verdict(l)
}

func peerDown(t *testing.T, vhost string) *verdict {
	w := newWorld(t, plan{vhost: vhost, async: 10, patient: 12, quick: 10, down: true})
	l := w.ask(0)
	w.makesAll(l)
	pause(32 * time.Second)
	if n := w.received(); n != 0 {
		t.Errorf("%d messages came to peers that are down", n)
	}
	w.startPeers()
	w.release()
	w.comesHome(l)
	return w.verdict(l)
}

func queuesDeleted(t *testing.T, vhost string) *verdict {
	w := newWorld(t, plan{vhost: vhost, async: 8, patient: 8, quick: 8, later: 8})
	l := w.ask(w.early)
	brokertest.DeleteQueue(t, vhost, replyQueue)
	for _, p := range w.peers {
		brokertest.DeleteQueue(t, vhost, queueOf(p.setup.Name))
	}
	w.release()
	w.comesHome(l)
	return w.verdict(l)
}

func alarm(t *testing.T, b *brokertest.Broker, set func(on bool)) *verdict {
	w := newWorld(t, plan{vhost: b.Vhost(t), async: 8, patient: 8, quick: 8, later: 8})
	l := w.ask(w.early)
	set(true)
	w.release()
	w.makesAll(l)
	pause(3 * time.Second)
	if n := w.received(); n != w.early {
		t.Errorf("%d messages came through a broker that takes none, want the %d from before", n, w.early)
	}
	set(false)
	w.comesHome(l)
	return w.verdict(l)
}
