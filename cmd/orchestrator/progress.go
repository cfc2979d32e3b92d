package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
)

// progressAfter is how long a command may be silent before it says what it waits for.
const progressAfter = time.Second

// progress is a line at the bottom of a terminal that says what a command waits for and how long already. It shows
// nothing during the first second, and nothing at all when standard error is no terminal. Its methods may be called from
// any goroutine.
type progress struct {
	w     io.Writer // nil: shows nothing
	began time.Time
	over  chan struct{}
	wg    sync.WaitGroup
	once  sync.Once

	mu    sync.Mutex
	text  string
	shown bool
}

// progress begins to wait for something. The caller ends it with Stop before it prints its result.
func (c *cli) progress(text string) *progress {
	p := &progress{text: text, began: time.Now(), over: make(chan struct{})}
	if c.output != outputText || c.terminal == nil || !isatty.IsTerminal(c.terminal.Fd()) || environment(c.environ)["TERM"] == "dumb" {
		return p
	}
	p.w = c.stderr
	p.wg.Go(func() {
		tick := time.NewTicker(redraw)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				if now.Sub(p.began) >= progressAfter {
					p.draw(now)
				}
			case <-p.over:
				return
			}
		}
	})
	return p
}

// Set says what is waited for now.
func (p *progress) Set(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
}

// Print takes the line away while f writes.
func (p *progress) Print(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLocked()
	f()
}

// Stop takes the line away for good. It may be called twice.
func (p *progress) Stop() {
	p.once.Do(func() { close(p.over) })
	p.wg.Wait()
	p.Print(func() {})
}

func (p *progress) draw(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shown = true
	fmt.Fprintf(p.w, "\r\x1b[K%s … %s", shortText(p.text, 60), now.Sub(p.began).Round(time.Second))
}

func (p *progress) eraseLocked() {
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
