package a2aqueue

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadsAndWritesEndWhateverDeadlineOthersSet(t *testing.T) {
	for what, use := range map[string]func(net.Conn) (int, error){
		"Read":  func(c net.Conn) (int, error) { return c.Read(make([]byte, 1)) },
		"Write": func(c net.Conn) (int, error) { return c.Write(make([]byte, 1)) },
	} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			c := &bounded{Conn: ours, silence: 15 * time.Second, write: 15 * time.Second}
			defer c.Close()
			began, ended := time.Now(), make(chan error)
			go func() { // received below
				_, err := use(c)
				ended <- err
			}()
			synctest.Wait() // it is blocked
			for _, set := range []func(time.Time) error{c.SetDeadline, c.SetReadDeadline, c.SetWriteDeadline} {
				if err := set(time.Time{}); err != nil {
					t.Error(err)
				}
			}
			select {
			case err := <-ended:
				if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != 15*time.Second {
					t.Errorf("%s() = %v after %v, want its deadline after 15s", what, err, took)
				}
			case <-time.After(time.Hour):
				t.Errorf("%s() doesn't end", what)
			}
		})
	}
}

func TestPausesGrowAreRandomAndLongAfterRefusals(t *testing.T) {
	p := newPauses(time.Second, 16*time.Second)
	within := func(what string, err error, low, high time.Duration) {
		t.Helper()
		if d := p.next(err); d < low || d > high {
			t.Errorf("the pause %s is %v, want %v to %v", what, d, low, high)
		}
	}
	lost, no := errors.New("lost"), &RefusedError{Reason: ErrCredentials}
	within("after the first error", lost, time.Second/2, time.Second*3/2)
	within("after the second", lost, time.Second, 3*time.Second)
	p.held(time.Second)
	within("after what held for a moment", lost, 2*time.Second, 6*time.Second)
	p.held(time.Minute)
	within("after what held for long", lost, time.Second/2, time.Second*3/2)
	for range 10 {
		p.next(lost)
	}
	within("after many", lost, 8*time.Second, 24*time.Second)
	p.held(time.Minute)
	within("after a refusal", no, time.Second/2, time.Second*3/2)
	within("after a second one", no, 8*time.Second, 24*time.Second)
	p.held(0)
	within("after one since a connection", no, time.Second, 12*time.Second)
	p.next(lost)
	p.held(time.Minute)
	forced := &RefusedError{Code: 320}
	within("after a stop of the broker", forced, time.Second/2, time.Second*3/2)
	within("after a second stop", forced, time.Second, 3*time.Second)
	within("after something else", lost, 2*time.Second, 6*time.Second)
	random := map[time.Duration]bool{}
	for range 10 {
		p.held(time.Minute)
		random[p.next(lost)] = true
	}
	if len(random) < 5 {
		t.Errorf("of ten pauses there are only %d different ones", len(random))
	}
}
