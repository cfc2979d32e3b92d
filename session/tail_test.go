package session_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"orchestrator/session"
)

// slowReads is a store whose readings of events take a moment, in which every other reader comes to wait, and which may
// commit once a reading has seen the log.
type slowReads struct {
	session.Store
	reads  atomic.Int32
	commit atomic.Pointer[func()] // called once, between a reading and its return
}

func (s *slowReads) Events(ctx context.Context, q session.EventQuery) ([]session.Event, error) {
	s.reads.Add(1)
	events, err := s.Store.Events(ctx, q)
	if commit := s.commit.Swap(nil); commit != nil {
		(*commit)()
	}
	time.Sleep(time.Millisecond) // of the bubble
	return events, err
}

// readers is some subscribers of one tree that check what they are told.
type readers struct {
	t     *testing.T
	m     *session.Manager
	store *slowReads
	id    session.ID
	last  []atomic.Uint64 // the seq each has seen

	ctx    context.Context //nolint:containedctx // of the readers
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// stop ends the readers and waits for them.
func (r *readers) stop() {
	r.cancel()
	r.wg.Wait()
}

func newReaders(t *testing.T, n int) *readers {
	t.Helper()
	r := &readers{t: t, store: &slowReads{Store: session.NewMemory()}, last: make([]atomic.Uint64, n)}
	m, err := session.NewManager(session.Config{Store: r.store})
	if err != nil {
		t.Fatal(err)
	}
	r.ctx, r.cancel = context.WithCancel(t.Context())
	r.m = m
	r.id = open(t, m)
	for i := range n {
		r.wg.Go(func() {
			for e, err := range m.Subscribe(r.ctx, session.SubscribeRequest{Session: r.id, Ephemeral: true}) {
				if err != nil {
					return
				}
				if !r.last[i].CompareAndSwap(e.Seq-1, e.Seq) {
					t.Errorf("reader %d is told %d after %d", i, e.Seq, r.last[i].Load())
				}
			}
		})
	}
	return r
}

func (r *readers) commit(n int) {
	b := session.Batch{Tree: r.id}
	for range n {
		b.Events = append(b.Events, session.Scope{Root: r.id, Agent: r.id}.Event(session.EventSessionError, session.SessionError{}))
	}
	if _, err := r.store.Commit(r.t.Context(), b); err != nil {
		r.t.Error(err)
	}
}

// seen waits until all have seen a seq, and returns how long that took.
func (r *readers) seen(seq uint64) time.Duration {
	r.t.Helper()
	began := time.Now()
	for i := range r.last {
		for r.last[i].Load() < seq {
			if time.Since(began) > time.Minute {
				r.t.Fatalf("reader %d has seen %d, want %d", i, r.last[i].Load(), seq)
			}
			time.Sleep(time.Millisecond) // of the bubble
		}
	}
	return time.Since(began)
}

func TestACommitIsReadOnceForAllItsSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReaders(t, 50)
		defer r.stop()
		r.seen(1)
		for n := range 30 {
			time.Sleep(100 * time.Millisecond) // of the bubble: all wait
			before := r.store.reads.Load()
			r.commit(1)
			r.seen(uint64(n) + 2)
			synctest.Wait()
			if reads := r.store.reads.Load() - before; reads > 2 && n%10 != 9 { // each second all look again
				t.Errorf("commit %d was read %d times for 50 subscribers", n, reads)
			}
		}
	})
}

func TestACommitBehindAReadingIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReaders(t, 20)
		defer r.stop()
		r.seen(1)
		time.Sleep(100 * time.Millisecond) // of the bubble: all wait
		again := func() { r.commit(1) }
		r.store.commit.Store(&again)
		r.commit(1)
		if took := r.seen(3); took > 100*time.Millisecond {
			t.Errorf("what was committed while the log was read was told after %s", took)
		}
	})
}

func TestSubscribersThatAreBehindAndAheadAreToldAllOfItOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReaders(t, 8)
		defer r.stop()
		head := uint64(1)
		for n := range 60 {
			size := n * n % 700 // over what is kept at once, too
			if size > 0 {
				r.commit(size)
				head += uint64(size)
			}
			if n%7 == 0 {
				r.seen(head)
			}
		}
		late := make(chan uint64, 1)
		r.wg.Go(func() {
			var last uint64
			for e, err := range r.m.Subscribe(r.ctx, session.SubscribeRequest{Session: r.id}) {
				if err != nil || e.Seq != last+1 {
					t.Errorf("the late reader is told %d after %d, %v", e.Seq, last, err)
					return
				}
				if last = e.Seq; last == head {
					late <- last
					return
				}
			}
		})
		r.seen(head)
		<-late
	})
}

// endsWhileRead is a store whose readings of events are ended by what ends the reader, as a database's are.
type endsWhileRead struct {
	session.Store
	end func()
}

func (s endsWhileRead) Events(ctx context.Context, q session.EventQuery) ([]session.Event, error) {
	if _, err := s.Store.Events(ctx, q); err != nil {
		return nil, err
	}
	s.end()
	return nil, ctx.Err()
}

func TestASubscriptionEndedWhileItReadsSaysWhatEndedIt(t *testing.T) {
	why := errors.New("the server is stopping")
	ctx, cancel := context.WithCancelCause(t.Context())
	m, err := session.NewManager(session.Config{Store: endsWhileRead{session.NewMemory(), func() { cancel(why) }}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range m.Subscribe(ctx, session.SubscribeRequest{Session: open(t, m)}) {
		if !errors.Is(err, why) {
			t.Errorf("it ends with %v, want %v", err, why)
		}
	}
}
