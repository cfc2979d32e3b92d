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
